//! Guest memory cut at the ends of huge pages: each piece is copied and released as a whole, so huge
//! pages stay whole.

use std::ops::Range;

use crate::vmm::Region;
use hugekit_sys::HUGE_PAGE_BYTES;

pub(crate) const HUGE: u64 = HUGE_PAGE_BYTES as u64;

/// An aligned huge page of memory, or the part of one that a region has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granule {
    pub(crate) addresses: Range<u64>,
    /// In the memory file.
    pub(crate) offset: u64,
}

impl Granule {
    pub(crate) fn offsets(&self) -> Range<u64> {
        self.offset..self.offset + (self.addresses.end - self.addresses.start)
    }
}

/// The granules of regions.
pub(crate) fn granules(regions: &[Region]) -> impl Iterator<Item = Granule> {
    regions.iter().flat_map(|region| {
        let (start, end, offset) = (region.start, region.start + region.len, region.offset);
        (start / HUGE * HUGE..end).step_by(HUGE_PAGE_BYTES).map(move |huge| {
            let addresses = huge.max(start)..(huge + HUGE).min(end);
            Granule { offset: offset + (addresses.start - start), addresses }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_end_where_huge_pages_do() {
        let cut = |start, len| {
            let region = Region { start, len, offset: 7 * HUGE };
            granules(&[region]).map(|granule| (granule.addresses, granule.offset)).collect()
        };
        let all: Vec<_> = cut(0, 2 * HUGE);
        assert_eq!(all, [(0..HUGE, 7 * HUGE), (HUGE..2 * HUGE, 8 * HUGE)]);
        let odd: Vec<_> = cut(HUGE - 4096, 8192);
        assert_eq!(odd, [(HUGE - 4096..HUGE, 7 * HUGE), (HUGE..HUGE + 4096, 7 * HUGE + 4096)]);
        let within: Vec<_> = cut(HUGE + 4096, 4096);
        assert_eq!(within, [(HUGE + 4096..HUGE + 8192, 7 * HUGE)]);
    }
}
