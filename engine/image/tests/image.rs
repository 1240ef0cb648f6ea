//! Images of raw memory files, as a program loads and maps them.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

use hugekit_image::{Image, ImageError, ImageRange, clones};
use hugekit_machine::Root;
use hugekit_testing::trials::skipped;
use rustix::fs::{MemfdFlags, SealFlags, memfd_create};

const GRANULE: usize = 2 << 20;

/// Random bytes, which no two pages have in common.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// A file in the system's folder for temporary files.
fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn load(source: File) -> Image {
    Image::builder("test").source(source).load().unwrap()
}

#[test]
fn image_has_the_bytes_of_its_file_whatever_its_length() {
    for len in [1, 4095, 4097, GRANULE - 1, GRANULE, 3 * GRANULE + 12_345] {
        let bytes = random(len, len as u64);
        let image = load(file(&bytes));
        assert_eq!(image.bytes(), len);
        assert!(*image.map().unwrap() == bytes[..]);
    }
}

#[test]
fn holes_and_zeroes_take_no_memory() {
    let source = tempfile::tempfile().unwrap();
    source.set_len(16 * GRANULE as u64).unwrap();
    source.write_all_at(&vec![0; 2 * GRANULE], 0).unwrap();
    source.write_all_at(&[7; 5], 9 * GRANULE as u64 + 4094).unwrap();
    let builder = Image::builder("test").source(source);
    let needed = builder.needed().unwrap();
    assert!(needed >= GRANULE as u64 && needed <= 4 * GRANULE as u64, "{needed}");
    assert_eq!(needed % GRANULE as u64, 0);
    let image = builder.load().unwrap();
    assert!(image.present().unwrap() <= GRANULE as u64, "{}", image.present().unwrap());
    let mut mapped = image.map().unwrap();
    let at = 9 * GRANULE + 4094;
    assert_eq!(mapped[at - 1..at + 6], [0, 7, 7, 7, 7, 7, 0]);
    // A write to a hole is this process's own.
    mapped[0] = 1;
    assert!(image.map().unwrap()[..GRANULE].iter().all(|&byte| byte == 0));
}

/// What another program does to a file while it is loaded.
type FileChange = fn(&File);

/// Changes a file when a part of it is loaded.
fn change_while_it_is_loaded(change: FileChange, bytes: &[u8]) {
    let source = file(bytes);
    let changed = source.try_clone().unwrap();
    let times = || {
        let found = changed.metadata().unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let (before, is_first) = (times(), AtomicBool::new(true));
    let progress = |_: usize, _: usize| {
        // Time is counted in steps that may be longer than a call.
        while is_first.load(Ordering::Relaxed) {
            change(&changed);
            is_first.store(times() == before, Ordering::Relaxed);
        }
    };
    let loaded = Image::builder("test").source(source).progress(&progress).load();
    assert!(!is_first.into_inner(), "the file was not changed");
    assert!(matches!(loaded, Err(ImageError::Changed { nth: 0, .. })), "{loaded:?}");
}

/// Changes a file at many moments. No image ever has bytes of two moments: it is one of `whole`, or the beginning of the
/// first.
fn change_at_any_moment(change: FileChange, whole: &[&[u8]]) {
    let mut refused = 0;
    for round in 0..3000 {
        let source = file(whole[0]);
        let changed = source.try_clone().unwrap();
        let loaded = std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..round % 1000 * 50).for_each(|_| std::hint::spin_loop());
                change(&changed);
            });
            Image::builder("test").source(source).load()
        });
        match loaded {
            Ok(image) => {
                let mapped = image.map().unwrap();
                assert!(whole.contains(&&mapped[..]) || whole[0].starts_with(&mapped));
            }
            Err(ImageError::Changed { nth: 0, .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(refused > 0, "no load was met");
}

fn cut(file: &File) {
    file.set_len(GRANULE as u64).unwrap();
}

fn grow(file: &File) {
    file.write_all_at(&[7; 9], 4 * GRANULE as u64).unwrap();
}

fn write(file: &File) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5).unwrap();
    file.write_all_at(&[!byte[0]], 5).unwrap();
}

#[test]
fn file_that_is_changed_while_it_is_loaded_makes_no_image() {
    let bytes = random(4 * GRANULE, 9);
    for change in [cut, grow, write] {
        change_while_it_is_loaded(change, &bytes);
    }
}

#[test]
#[ignore = "nightly: it changes files at many moments"]
fn file_that_is_changed_at_any_moment_makes_no_image_of_two_moments() {
    let bytes = random(4 * GRANULE, 10);
    let grown = [&bytes[..], &[7; 9]].concat();
    let mut written = bytes.clone();
    written[5] = !written[5];
    change_at_any_moment(cut, &[&bytes]);
    change_at_any_moment(grow, &[&bytes, &grown]);
    change_at_any_moment(write, &[&bytes, &written]);
}

#[test]
fn ranges_lie_where_they_were_said_to() {
    let bytes = random(3 * GRANULE, 1);
    let from = |from, len, to| ImageRange { from, len, to };
    let ranges = [from(5, GRANULE as u64, 4 * GRANULE as u64 - 7), from(GRANULE as u64, 9, 3)];
    let builder = Image::builder("test").source(file(&bytes));
    let image = ranges.iter().fold(builder, |builder, &range| builder.range(range)).load().unwrap();
    assert!(image.present().unwrap() <= 3 * GRANULE as u64);
    let mut expected = vec![0; 5 * GRANULE - 7];
    expected[4 * GRANULE - 7..].copy_from_slice(&bytes[5..GRANULE + 5]);
    expected[3..12].copy_from_slice(&bytes[GRANULE..GRANULE + 9]);
    assert!(*image.map().unwrap() == expected[..]);
}

/// A range that begins within a granule of the image, and ends within one.
#[test]
fn needed_bytes_are_those_of_the_granules_that_a_range_meets() {
    let needed = |from, len, to| {
        let builder = Image::builder("test").source(file(&random(3 * GRANULE, 12)));
        builder.range(ImageRange { from, len, to }).needed().unwrap()
    };
    let granule = GRANULE as u64;
    assert_eq!(needed(0, 3 * granule, 0), 3 * granule);
    assert_eq!(needed(0, 3 * granule, 5), 4 * granule);
    assert_eq!(needed(7, 1, granule - 1), granule);
    assert_eq!(needed(7, 2, granule - 1), 2 * granule);
    assert_eq!(needed(0, granule, 1 << 40), granule);
}

#[test]
fn ranges_that_overlap_are_refused() {
    let builder = Image::builder("test").source(file(&[7; 9]));
    let builder = builder.range(ImageRange { from: 0, len: 5, to: 0 });
    let refused = builder.range(ImageRange { from: 0, len: 5, to: 4 }).load();
    assert!(matches!(refused, Err(ImageError::Range { .. })), "{refused:?}");
}

#[test]
fn no_process_can_change_an_image() {
    let image = load(file(&random(GRANULE + 5, 2)));
    let path = format!("/proc/self/fd/{}", image.as_fd().as_raw_fd());
    assert!(File::from(image.as_fd().try_clone_to_owned().unwrap()).write_all(&[1]).is_err());
    // VMMs open it for writing, and map it privately.
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    assert!(writer.write_all_at(&[1], 0).is_err());
    assert!(writer.set_len(0).is_err());
    assert!(writer.set_len(4 * GRANULE as u64).is_err());
    let seals = rustix::fs::fcntl_get_seals(&image).unwrap();
    assert!(
        seals.contains(SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)
    );
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(found.mode() & 0o777, 0o666);
}

#[test]
fn what_one_process_writes_no_other_sees() {
    let bytes = random(2 * GRANULE, 3);
    let image = load(file(&bytes));
    let mut mapped = image.map().unwrap();
    // It inherits the mapping, and the descriptor by its path.
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_fd().as_raw_fd());
    mapped.fill(7);
    let output = std::process::Command::new("cat").arg(path).output().unwrap();
    assert!(output.stdout == bytes);
    assert!(mapped.iter().all(|&byte| byte == 7));
    assert!(*image.map().unwrap() == bytes[..]);
}

#[test]
fn mapping_goes_on_without_its_image() {
    let bytes = random(GRANULE, 4);
    let mapped = load(file(&bytes)).map().unwrap();
    assert!(*mapped == bytes[..]);
}

#[test]
fn file_that_can_still_be_changed_is_no_image() {
    let refused = |file: OwnedFd| match Image::check(file) {
        Err(ImageError::NotSealed) => {}
        other => panic!("{other:?}"),
    };
    refused(file(&[7; 9]).into());
    refused(File::open("/dev/null").unwrap().into());
    refused(rustix::pipe::pipe().unwrap().0);
    let sealed = |seals| {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    refused(sealed(SealFlags::SHRINK | SealFlags::GROW));
    refused(sealed(SealFlags::WRITE | SealFlags::GROW));
    refused(sealed(SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW));
    let whole = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    assert_eq!(Image::check(sealed(whole)).unwrap().bytes(), 4096);
    let empty = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&empty, whole).unwrap();
    refused(empty);
}

#[test]
fn sources_that_make_no_image_are_refused() {
    let load = |source: File| Image::builder("test").source(source).load();
    assert!(matches!(load(file(&[])), Err(ImageError::Nothing)));
    assert!(matches!(Image::builder("test").load(), Err(ImageError::Nothing)));
    // Migration streams of QEMU, also with mapped-ram, are memory and much else.
    let mut mapped_ram = b"QEVM".to_vec();
    mapped_ram.resize(8192, 3);
    let saved = load(file(&mapped_ram));
    assert!(matches!(saved, Err(ImageError::SavedVm { nth: 0 })), "{saved:?}");
    assert!(saved.unwrap_err().remedy().unwrap().contains("x-ignore-shared"));
    // A part of it may be memory.
    let part = ImageRange { from: 4096, len: 4096, to: 0 };
    Image::builder("test").source(file(&mapped_ram)).range(part).load().unwrap();
    let device = load(File::open("/dev/zero").unwrap());
    assert!(matches!(device, Err(ImageError::NoFile { nth: 0 })), "{device:?}");
    let unreadable = tempfile::NamedTempFile::new().unwrap();
    unreadable.as_file().write_all_at(&[1], 0).unwrap();
    let write_only = File::options().write(true).open(unreadable.path()).unwrap();
    assert!(matches!(load(write_only), Err(ImageError::Read { nth: 0, .. })));
    let most = Image::builder("test").source(file(&random(GRANULE, 5))).most(4096).load();
    assert!(matches!(most, Err(ImageError::TooLarge { most: 4096 })), "{most:?}");
    let missing = Image::load("/nonexistent");
    assert!(matches!(missing, Err(ImageError::Read { .. })), "{missing:?}");
}

#[test]
fn file_in_a_tmpfs_is_complete_when_it_has_its_name() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let bytes = random(GRANULE + 9, 6);
    let path = folder.path().join("vm");
    let load = || Image::builder("test").source(file(&bytes)).load_to(&path);
    load().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
    assert!(matches!(load(), Err(ImageError::Kernel { call: "linkat", .. })));
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let refused = Image::builder("test").source(file(&bytes)).load_to(&elsewhere.path().join("vm"));
    assert!(matches!(refused, Err(ImageError::NoTmpfs)), "{refused:?}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

/// This process is the clone.
#[test]
fn clone_has_what_it_read_shared_and_what_it_wrote_alone() {
    let image = load(file(&random(8 * GRANULE, 7)));
    let here = || {
        let (found, _) = clones(&Root::default(), &[image.identity().unwrap()]).unwrap();
        found.into_iter().find(|clone| clone.pid == std::process::id())
    };
    assert_eq!(here(), None);
    let mut mapped = image.map().unwrap();
    assert!(mapped.chunks(4096).all(|page| page.iter().any(|&byte| byte != 0)));
    let read = here().unwrap();
    assert_eq!((read.shared, read.private), (8 * GRANULE as u64, 0));
    mapped[..3 * 4096].fill(1);
    let page = rustix::param::page_size() as u64;
    assert_eq!(here().unwrap().private, (3 * 4096_u64).next_multiple_of(page));
}

/// Where the kernel makes huge pages of shared memory at all.
#[test]
fn image_is_on_huge_pages_and_mapped_by_them() {
    let image = load(file(&random(32 * GRANULE, 8)));
    if image.huge_bytes() < 32 * GRANULE as u64 {
        skipped(format_args!("the kernel gave {} bytes on huge pages", image.huge_bytes()));
        return;
    }
    let mapped = image.map().unwrap();
    assert!(mapped.chunks(4096).all(|page| page.iter().any(|&byte| byte != 0)));
    let (found, _) = clones(&Root::default(), &[image.identity().unwrap()]).unwrap();
    let here = found.iter().find(|clone| clone.pid == std::process::id()).unwrap();
    assert!(here.huge as usize * 100 >= mapped.len() * 98, "{here:?}");
}
