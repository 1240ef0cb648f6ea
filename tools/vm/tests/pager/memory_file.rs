//! A memory file with a pattern in parts of it, and a check of all bytes that a VM shows.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hugekit_guests::{Request, Serial, pattern_at};

pub(crate) const MIB: u64 = 1 << 20;

const SEED: u64 = 0x0123_4567_89ab_cdef;

/// Pages of the pattern and of zeroes, which a hole is too.
pub(crate) struct MemoryFile {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    /// Ranges that have the pattern; all other bytes are zero.
    data: Vec<(u64, u64)>,
}

impl MemoryFile {
    /// With data in most of it: a hole in the middle, written zeroes before, and single pages of
    /// data in a hole.
    pub(crate) fn create(folder: &Path, len: u64) -> Self {
        let path = folder.join("memory.bin");
        let file = File::create(&path).unwrap();
        file.set_len(len).unwrap();
        let eighth = len / 8;
        let mut data = vec![(0, 3 * eighth), (5 * eighth + 4096, 3 * eighth - 4096)];
        data.extend((0..4).map(|at| (4 * eighth + at * 3 * 4096, 4096)));
        for &(start, len) in &data {
            let words =
                (start..start + len).step_by(8).map(|at| pattern_at(at, SEED).to_le_bytes());
            file.write_all_at(&words.flatten().collect::<Vec<u8>>(), start).unwrap();
        }
        file.write_all_at(&vec![0; MIB as usize], 3 * eighth).unwrap();
        data.sort_unstable();
        Self { path, len, data }
    }

    /// Checks every byte but those of a range that was given back and must be zero.
    pub(crate) fn check(&self, serial: &mut Serial, removed: Option<(u64, u64)>) {
        let mut next = 0;
        for &(start, len) in &self.data {
            if next < start {
                let gap = Request::NotZero { start: next, len: start - next };
                assert_eq!(serial.ask(gap).unwrap(), 0, "words behind {next:#x} are not zero");
            }
            for (start, len) in without((start, len), removed) {
                let verify = Request::Verify { start, len, seed: SEED };
                assert_eq!(serial.ask(verify).unwrap(), 0, "words behind {start:#x} differ");
            }
            next = start + len;
        }
        if let Some((start, len)) = removed {
            let zero = Request::NotZero { start, len };
            assert_eq!(serial.ask(zero).unwrap(), 0, "words that were given back are not zero");
        }
    }
}

/// A range without another one, which lies within it or is apart from it.
fn without((start, len): (u64, u64), hole: Option<(u64, u64)>) -> Vec<(u64, u64)> {
    match hole {
        Some((from, count)) if from < start + len && from + count > start => {
            let parts = [(start, from - start), (from + count, start + len - from - count)];
            parts.into_iter().filter(|&(_, len)| len > 0).collect()
        }
        _ => vec![(start, len)],
    }
}
