//! Guest memory, divided at the ends of huge pages. Each granule is copied and released as a whole,
//! so huge pages stay whole.

use std::ops::{Index, Range};

use crate::vmm::Region;
use hugekit_sys::HUGE_PAGE_BYTES;

pub(crate) const HUGE: u64 = HUGE_PAGE_BYTES as u64;

/// An aligned huge page of memory, or the part of it that belongs to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granule {
    pub(crate) addresses: Range<u64>,
    /// The offset in the memory file.
    pub(crate) offset: u64,
}

impl Granule {
    pub(crate) fn offsets(&self) -> Range<u64> {
        self.offset..self.offset + (self.addresses.end - self.addresses.start)
    }
}

/// Returns the granules of regions.
pub(crate) fn granules(regions: &[Region]) -> impl Iterator<Item = Granule> {
    regions.iter().flat_map(|region| {
        let (start, end, offset) = (region.start, region.start + region.len, region.offset);
        (start / HUGE * HUGE..end).step_by(HUGE_PAGE_BYTES).map(move |huge| {
            let addresses = huge.max(start)..(huge + HUGE).min(end);
            Granule { offset: offset + (addresses.start - start), addresses }
        })
    })
}

/// The granules of all regions, in the order of the memory file.
#[derive(Debug)]
pub(crate) struct Granules {
    all: Vec<Granule>,
    /// Each region, with its first granule.
    regions: Vec<(Range<u64>, usize)>,
}

impl Granules {
    pub(crate) fn of(regions: &[Region]) -> Self {
        let mut all = Vec::new();
        let mut with_first = Vec::new();
        for region in regions {
            with_first.push((region.addresses(), all.len()));
            all.extend(granules(std::slice::from_ref(region)));
        }
        Self { all, regions: with_first }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the granule of an address; `None` if it is not guest memory.
    pub(crate) fn at(&self, address: u64) -> Option<usize> {
        let mut regions = self.regions.iter();
        let (addresses, first) = regions.find(|(addresses, _)| addresses.contains(&address))?;
        Some(first + (address / HUGE - addresses.start / HUGE) as usize)
    }

    /// Returns the granules that contain one of these addresses.
    pub(crate) fn of_addresses(&self, range: &Range<u64>) -> impl Iterator<Item = usize> {
        let parts = self
            .regions
            .iter()
            .map(|(addresses, _)| range.start.max(addresses.start)..range.end.min(addresses.end));
        let parts = parts.filter(|part| part.start < part.end);
        parts.flat_map(|part| {
            let ends = self.at(part.start).zip(self.at(part.end - 1));
            ends.map_or(0..0, |(first, last)| first..last + 1)
        })
    }
}

impl Index<usize> for Granules {
    type Output = Granule;

    fn index(&self, index: usize) -> &Granule {
        &self.all[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_are_found_by_their_addresses_in_whatever_order_regions_lie() {
        // The second region of the file lies below the first one, and neither begins with a huge page.
        let high = Region { start: 9 * HUGE - 4096, len: 2 * HUGE, offset: 0 };
        let low = Region { start: HUGE + 8192, len: HUGE, offset: 2 * HUGE };
        let granules = Granules::of(&[high, low]);
        assert_eq!(granules.len(), 5);
        for index in 0..granules.len() {
            let Range { start, end } = granules[index].addresses;
            assert_eq!((granules.at(start), granules.at(end - 1)), (Some(index), Some(index)));
            assert_eq!(granules.of_addresses(&(start..start + 1)).collect::<Vec<_>>(), [index]);
        }
        for outside in [0, HUGE, 2 * HUGE + 8192, 9 * HUGE - 4097, 11 * HUGE] {
            assert_eq!(granules.at(outside), None, "{outside:#x}");
        }
        let some = |range| granules.of_addresses(&range).collect::<Vec<_>>();
        assert_eq!(some(0..20 * HUGE), [0, 1, 2, 3, 4]);
        assert_eq!(some(2 * HUGE..9 * HUGE), [0, 4]);
        assert_eq!(some(3 * HUGE..8 * HUGE), [0; 0]);
    }

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
