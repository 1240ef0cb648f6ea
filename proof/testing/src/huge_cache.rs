//! Files that a program writes so that the page cache has them on huge pages.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::free_blocks::make_free_blocks;
use hugekit_warm::{WarmMode, WarmOptions, Warmer};

use super::trials::skipped;

/// The most times that a file is written. Other programs may use up the blocks of 2 MiB that a test has just made.
const TRIES: u32 = 20;

/// Units of a file that are huge.
fn huge(path: &Path) -> u64 {
    let check = WarmOptions { mode: WarmMode::Check, ..WarmOptions::default() };
    Warmer::new(check).run(path).unwrap().report.huge()
}

/// Writes a file until at least `units` of it are huge, while free blocks are made before. The number in the name of each
/// try is passed, and the path of the file is returned. Skipped where not even a file that is written at once is huge.
///
/// # Panics
/// The other file is huge, and this one never is.
pub fn check_is_huge(folder: &Path, units: u64, mut write: impl FnMut(u32) -> std::path::PathBuf) {
    let (mut most, mut can_be) = (0, false);
    let other = folder.join("written-at-once");
    for number in 0..TRIES {
        // Blocks that cannot be made are missed in the count of huge units.
        let _ = make_free_blocks(units as usize);
        most = most.max(huge(&write(number)));
        if most >= units {
            return;
        }
        let _ = make_free_blocks(1);
        let at_once = vec![7; HUGE_PAGE_BYTES];
        File::create(&other).unwrap().write_all_at(&at_once, 0).unwrap();
        can_be |= huge(&other) == 1;
    }
    if can_be {
        panic!("{most} units are huge, and {units} should be");
    }
    skipped("this file system has no huge pages of its cache, or memory is fragmented");
}
