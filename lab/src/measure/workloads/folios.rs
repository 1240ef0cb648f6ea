//! The folios behind memory of this process, as the kernel tells them to root.

use std::fs::File;
use std::ops::Range;

use hugekit_sys::pagemap::entries;
use hugekit_sys::pagemap::frames::Frames;

/// The number of folios of more than one page behind these addresses; `None` if the kernel does not tell this user.
pub fn large_folios(addresses: &Range<usize>) -> Option<usize> {
    let map = File::open("/proc/self/pagemap").ok()?;
    let range = addresses.start as u64..addresses.end as u64;
    let flags = Frames::open()?.flags_of(entries::all(&map, &range).ok()?)?;
    Some(flags.into_iter().filter(|flags| flags.is_folio_head()).count())
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
