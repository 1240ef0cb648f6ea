//! A VM that was saved three times: in full, and by two deltas.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hugekit_delta::Chain;
use hugekit_vm::checkpoint::state_of;
use hugekit_vm::oci::{PackOptions, PackReport, pack};
use tempfile::TempDir;

/// Bytes of the memory. Its last chunk of 64 KiB is not whole.
pub(crate) const LEN: usize = (9 << 20) + 3 * 4096;

pub(crate) const CHUNK: usize = 64 << 10;

/// Folders of checkpoints, and the memory of each one.
pub(crate) struct Saved {
    pub(crate) folder: TempDir,
    pub(crate) memory: Vec<Vec<u8>>,
}

impl Saved {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut memory = vec![first()];
        let mut next = memory[0].clone();
        next[CHUNK + 4096..3 * CHUNK].fill(7);
        next[5 << 20..6 << 20].fill(0);
        next[LEN - 4096..].fill(8);
        memory.push(next.clone());
        next[2 * CHUNK..2 * CHUNK + 4096].fill(9);
        // Zeroes become data, and data of the first delta is zero again.
        next[(4 << 20) + 8192..(4 << 20) + 12288].fill(10);
        next[LEN - 4096..].fill(0);
        memory.push(next);
        let saved = Self { folder, memory };
        saved.write();
        saved
    }

    fn write(&self) {
        for (number, state) in (0..).zip(["first state", "second state", "third state"]) {
            fs::create_dir(self.saved(number)).unwrap();
            fs::write(self.saved(number).join("vmstate"), state).unwrap();
        }
        let path = self.saved(0).join("memory");
        let memory = File::create(&path).unwrap();
        memory.set_len(LEN as u64).unwrap();
        for (number, bytes) in self.memory[0].chunks(4096).enumerate() {
            if bytes.iter().any(|&byte| byte != 0) {
                memory.write_all_at(bytes, number as u64 * 4096).unwrap();
            }
        }
        let raw = File::open(&path).unwrap();
        let mut chain = Chain::resume_raw(&raw, state_of(&path).unwrap(), []).unwrap();
        for number in 1..=2 {
            let delta = self.saved(number).join("memory.delta");
            let delta =
                File::options().read(true).write(true).create_new(true).open(delta).unwrap();
            let mut saving = chain.save(&delta).unwrap();
            std::io::Write::write_all(&mut saving, &self.memory[number]).unwrap();
            saving.finish().unwrap();
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of a checkpoint.
    pub(crate) fn saved(&self, number: usize) -> PathBuf {
        self.path(&format!("saved-{number}"))
    }

    /// Packs the first checkpoint and some deltas.
    pub(crate) fn pack(&self, deltas: usize, name: &str) -> PackReport {
        self.pack_with(deltas, name, |options| options)
    }

    pub(crate) fn pack_with(
        &self,
        deltas: usize,
        name: &str,
        change: impl FnOnce(PackOptions) -> PackOptions,
    ) -> PackReport {
        let options = PackOptions::of_saved(&self.saved(0), self.path(name));
        let deltas = (1..=deltas).map(|number| self.saved(number)).collect();
        pack(&change(PackOptions { deltas, ..options }), &|_, _| ()).unwrap()
    }

    /// Records a working set, as a pager does of the memory and these deltas.
    pub(crate) fn record(&self, deltas: usize, ranges: &[(usize, usize)]) {
        let deltas = (1..=deltas).map(|number| self.saved(number).join("memory.delta"));
        let files = [self.saved(0).join("memory")].into_iter().chain(deltas);
        let of: Vec<_> = files.map(|path| version(&path)).collect();
        let set = serde_json::json!({"version": 2, "length": LEN, "of": of, "ranges": ranges});
        fs::write(self.saved(0).join("memory.working-set"), set.to_string()).unwrap();
    }
}

fn version(path: &Path) -> ((i64, i64), u64) {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path).unwrap();
    ((found.mtime(), found.mtime_nsec()), found.len())
}

/// Holes, written zeroes, bytes that compress, and bytes that do not.
fn first() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let mut random = fastrand::Rng::with_seed(55);
    random.fill(&mut bytes[..2 << 20]);
    for (at, byte) in bytes[5 << 20..7 << 20].iter_mut().enumerate() {
        *byte = (at / 100) as u8;
    }
    // One byte in a chunk of zeroes, and the last page.
    bytes[8 << 20] = 1;
    bytes[LEN - 4096..].fill(2);
    bytes
}
