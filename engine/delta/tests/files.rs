//! What happens to the files of a chain between two saves: no change is ever lost, and the chain keeps nothing alive.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hugekit_delta::{BLOCK, Chain, DeltaError, Saved, StateId, apply};
use tempfile::TempDir;

const BLOCKS: usize = 40;

struct Scene {
    folder: TempDir,
    chain: Chain,
    state: Vec<u8>,
    /// The files, as they were when they were complete.
    kept: Vec<Vec<u8>>,
}

impl Scene {
    fn new() -> Self {
        let state: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK + 1) as u8).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut scene =
            Self { folder, chain: Chain::new(state.len() as u64), state, kept: Vec::new() };
        assert!(scene.save().is_full);
        scene
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(number.to_string())
    }

    fn save(&mut self) -> Saved {
        let path = self.path(self.kept.len());
        let file = File::create(&path).unwrap();
        let saved = self.save_to(&file).unwrap();
        self.kept.push(fs::read(path).unwrap());
        saved
    }

    fn save_to(&mut self, file: &File) -> Result<Saved, DeltaError> {
        let mut saving = self.chain.save(file)?;
        saving.write_all(&self.state)?;
        saving.finish()
    }

    fn change(&mut self, block: usize) {
        self.state[block * BLOCK + 100] ^= 0x80;
    }

    /// Changes a block and saves: the blocks that are in the delta, after all that was kept leads to the state.
    fn changed_blocks(&mut self, block: usize) -> u64 {
        self.change(block);
        let saved = self.save();
        let mut restored = vec![0; self.state.len()];
        let mut state = None;
        for delta in &self.kept {
            let mut delta = std::io::Cursor::new(delta);
            state = Some(apply(&mut restored, state, &mut delta).unwrap());
        }
        assert!(restored == self.state);
        saved.changed / BLOCK as u64
    }
}

/// How many descriptors of this process are of files in the folder.
fn open_files(folder: &Path) -> usize {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| target.starts_with(folder)).count()
}

#[test]
fn file_that_was_moved_is_compared_with() {
    let mut scene = Scene::new();
    fs::rename(scene.path(0), scene.path(1000)).unwrap();
    assert_eq!(scene.changed_blocks(3), 1);
    assert_eq!(scene.changed_blocks(3), 1);
}

#[test]
fn file_that_was_removed_or_cut_off_or_overwritten_is_written_again_and_let_go() {
    type Harm = fn(&Path);
    let harms: [Harm; 4] = [
        |path| fs::remove_file(path).unwrap(),
        |path| File::options().write(true).open(path).unwrap().set_len(5000).unwrap(),
        |path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&[1], file.metadata().unwrap().len()).unwrap();
        },
        |path| fs::write(path, fs::read(path).unwrap()).unwrap(),
    ];
    for harm in harms {
        let mut scene = Scene::new();
        assert_eq!(scene.changed_blocks(3), 1);
        harm(&scene.path(0));
        let all_but_one = BLOCKS as u64 - 1;
        assert_eq!(
            scene.changed_blocks(3),
            all_but_one + 1,
            "one is in the other file, and has changed"
        );
        assert_eq!(scene.changed_blocks(4), 1);
        let open = open_files(scene.folder.path());
        assert_eq!(open, 2, "of the last two");
    }
}

/// What a new block is now may be found where the old one was, because another delta was written over it.
#[test]
fn file_that_is_used_for_each_state_hides_no_change() {
    let mut scene = Scene::new();
    let mut file = File::options().read(true).write(true).open(scene.path(0)).unwrap();
    for block in 0..BLOCKS {
        // Its bytes become those that the file has at the place of the last delta's first block.
        let other = (block + 1) % BLOCKS;
        let bytes = scene.state[other * BLOCK..][..BLOCK].to_vec();
        scene.state[block * BLOCK..][..BLOCK].copy_from_slice(&bytes);
        scene.change(other);
        file.rewind().unwrap();
        let saved = scene.save_to(&file).unwrap();
        let mut delta = vec![0; saved.written as usize];
        file.read_exact_at(&mut delta, 0).unwrap();
        scene.kept.push(delta);
        scene.changed_blocks(other);
    }
}

#[test]
fn deltas_in_one_file_behind_each_other_are_compared_with() {
    let mut scene = Scene::new();
    for append in [false, true] {
        let path = scene.folder.path().join(format!("log-{append}"));
        File::create(&path).unwrap().write_all(b"a header of the program's").unwrap();
        let mut chain = Chain::new(scene.state.len() as u64);
        std::mem::swap(&mut scene.chain, &mut chain);
        let mut file = File::options().write(true).append(append).open(&path).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        assert!(scene.save_to(&file).unwrap().is_full);
        for block in 0..100 {
            if append {
                file = File::options().append(true).open(&path).unwrap();
            }
            scene.change(block % BLOCKS);
            assert_eq!(scene.save_to(&file).unwrap().changed, BLOCK as u64, "{append}");
        }
        assert!(open_files(scene.folder.path()) <= 3);
    }
}

#[test]
fn chain_keeps_64_files_open_at_most_and_loses_no_change() {
    let mut scene = Scene::new();
    scene.state.resize(200 * BLOCK, 9);
    scene.chain = Chain::new(scene.state.len() as u64);
    scene.kept.clear();
    scene.save();
    for block in 0..150 {
        assert!(scene.changed_blocks(block) <= 1 + block as u64);
        assert!(open_files(scene.folder.path()) <= 64);
    }
    for _ in 0..10 {
        scene.state.iter_mut().for_each(|byte| *byte ^= 1);
        scene.save();
    }
    assert_eq!(open_files(scene.folder.path()), 1, "one has all blocks of the last state");
}

#[test]
fn file_without_a_name_is_not_kept_alive() {
    let mut scene = Scene::new();
    let mut numbers = Vec::new();
    for _ in 0..5 {
        scene.state.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        let file = tempfile::tempfile_in(scene.folder.path()).unwrap();
        scene.save_to(&file).unwrap();
        numbers.push(file.metadata().unwrap().ino());
        assert!(open_files(scene.folder.path()) <= 3, "{}", file.as_raw_fd());
    }
}

/// A pipe, and a file that may not be read.
#[test]
fn output_that_cannot_be_read_back_needs_no_reading() {
    let mut scene = Scene::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let taken = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
        bytes
    });
    scene.chain.begin_anew();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    scene.save_to(&file).unwrap();
    scene.change(7);
    assert_eq!(scene.save_to(&file).unwrap().changed, BLOCK as u64);
    drop(file);
    // The chain has given its own back, or this would not end.
    assert!(taken.join().unwrap().len() > scene.state.len() + BLOCK);

    let path = scene.folder.path().join("write-only");
    let file = File::create(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o200)).unwrap();
    scene.save_to(&file).unwrap();
    scene.change(8);
    assert_eq!(scene.save().changed, BLOCK as u64);
}

#[test]
fn save_that_fails_or_is_dropped_leaves_what_is_known() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        scene.change(5);
        let full = File::options().write(true).open("/dev/full").unwrap();
        scene.state.iter_mut().for_each(|byte| *byte ^= 2);
        assert!(scene.save_to(&full).is_err());
        let dropped = File::create(scene.folder.path().join("dropped")).unwrap();
        let mut saving = scene.chain.save(&dropped).unwrap();
        saving.write_all(&scene.state[..10 * BLOCK]).unwrap();
        drop(saving);
        drop(dropped);
        assert_eq!(
            open_files(scene.folder.path()),
            scene.kept.len().min(2),
            "the one that failed is not kept"
        );
        scene.state.iter_mut().for_each(|byte| *byte ^= 2);
        assert_eq!(scene.changed_blocks(6), 2);
    }
}

/// A raw file with a hole, of which a chain of two deltas follows, each by another chain.
#[test]
fn raw_file_is_followed_by_deltas_of_what_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let raw = File::create_new(path("raw")).unwrap();
    raw.set_len((64 * BLOCK) as u64).unwrap();
    let mut state = vec![0; 64 * BLOCK];
    for block in (0..8).chain(40..44) {
        state[block * BLOCK..][..BLOCK].fill(block as u8 + 1);
        raw.write_all_at(&state[block * BLOCK..][..BLOCK], (block * BLOCK) as u64).unwrap();
    }
    let first = StateId::from_bytes([7; 16]).unwrap();
    let (mut restored, mut current) = (state.clone(), first);
    let mut deltas: Vec<PathBuf> = Vec::new();
    for (changed, cleared) in [(3, 5..7), (20, 41..60)] {
        let before = deltas.iter().map(|path| File::open(path).unwrap());
        let mut chain =
            Chain::resume_raw(&File::open(path("raw")).unwrap(), first, before).unwrap();
        assert_eq!(chain.state(), Some(current));
        state[changed * BLOCK + 9] = 99;
        state[cleared.start * BLOCK..cleared.end * BLOCK].fill(0);
        let file = path(&changed.to_string());
        let (out, start) = (File::create(&file).unwrap(), cleared.start * BLOCK);
        let mut saving = chain.save_changes(&out).unwrap();
        saving.put(0, &state[..start]).unwrap();
        saving.clear(start as u64, (cleared.len() * BLOCK) as u64).unwrap();
        saving.put((cleared.end * BLOCK) as u64, &state[cleared.end * BLOCK..]).unwrap();
        let saved = saving.finish().unwrap();
        let were_data = cleared.filter(|&block| restored[block * BLOCK] != 0).count();
        assert_eq!(saved.changed, ((1 + were_data) * BLOCK) as u64);
        current = apply(&mut restored, Some(current), &mut File::open(&file).unwrap()).unwrap();
        assert!(restored == state);
        deltas.push(file);
    }
}

#[test]
fn delta_of_another_state_than_that_of_the_raw_file_is_refused() {
    let scene = Scene::new();
    let raw = tempfile::tempfile().unwrap();
    raw.write_all_at(&scene.state, 0).unwrap();
    let ids = [1, 2].map(|byte| StateId::from_bytes([byte; 16]).unwrap());
    let delta = File::create_new(scene.path(1)).unwrap();
    let mut chain = Chain::resume_raw(&raw, ids[0], []).unwrap();
    chain.save_changes(&delta).unwrap().finish().unwrap();
    for (state, is_right) in ids.into_iter().zip([true, false]) {
        let delta = File::open(scene.path(1)).unwrap();
        let resumed = Chain::resume_raw(&raw, state, [delta]);
        match resumed {
            Ok(_) => assert!(is_right),
            Err(DeltaError::OtherBase { found, .. }) => assert!(!is_right && found == Some(state)),
            Err(other) => panic!("{other}"),
        }
    }
}
