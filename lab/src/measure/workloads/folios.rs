//! The folios behind memory of this process, as the kernel tells them to root.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use hugekit_sys::pagemap::entries;

/// A bit of `/proc/kpageflags`, of the kernel's `kernel-page-flags.h`: the first page of a folio of several.
const COMPOUND_HEAD: u64 = 1 << 15;

const FLAGS: usize = size_of::<u64>();

/// The number of folios of more than one page behind these addresses; `None` if the kernel does not tell this user.
pub fn large_folios(addresses: &Range<usize>) -> Option<usize> {
    let map = File::open("/proc/self/pagemap").ok()?;
    let flags = File::open("/proc/kpageflags").ok()?;
    let range = addresses.start as u64..addresses.end as u64;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for entry in entries::all(&map, &range).ok()? {
        let frame = entry.frame()?;
        match runs.last_mut().filter(|run| run.end == frame) {
            Some(run) => run.end += 1,
            None => runs.push(frame..frame + 1),
        }
    }
    let mut heads = 0;
    for run in runs {
        let mut bytes = vec![0; (run.end - run.start) as usize * FLAGS];
        flags.read_exact_at(&mut bytes, run.start * FLAGS as u64).ok()?;
        let (flags, _) = bytes.as_chunks::<FLAGS>();
        heads +=
            flags.iter().filter(|flags| u64::from_ne_bytes(**flags) & COMPOUND_HEAD != 0).count();
    }
    Some(heads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::workloads::anonymous::{Anonymous, Pages};
    use hugekit_machine::size::MIB;
    use hugekit_testing::trials::skipped;

    #[test]
    fn folios_of_huge_pages_are_counted_and_those_of_base_pages_are_none() {
        for (pages, expected) in [(Pages::Thp, 4), (Pages::Base, 0)] {
            let mut memory = Anonymous::new(pages, 8 * MIB).unwrap();
            memory.bytes().fill(1);
            let Some(found) = large_folios(&memory.addresses()) else {
                return skipped("the kernel tells frames to root only");
            };
            // A kernel short of memory gives base pages.
            assert!(found == expected || pages == Pages::Thp && found < expected, "{found}");
        }
    }
}
