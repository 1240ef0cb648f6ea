//! The layout of a VM's memory: regions of its VMM's address space, and the part of the memory file
//! that each region shows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The highest number of regions of a VM. Firecracker has one or two.
const MOST_REGIONS: usize = 64;

/// The end of user-space addresses on any machine.
const MOST_ADDRESS: u64 = 1 << 56;

const HUGETLB: u64 = 2 << 20;

/// The reason why a VM's regions are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitLayout {
    /// The message is not a message of a VMM.
    #[error("not a list of regions: {0}")]
    Malformed(String),
    /// There are no regions, or too many.
    #[error("{0} regions: between 1 and {MOST_REGIONS} are served")]
    Count(usize),
    /// The page size is not supported, or the regions have several page sizes.
    #[error(
        "pages of {0} bytes: {base} bytes or 2 MiB are served, and one size for all regions",
        base = base_page()
    )]
    Pages(u64),
    /// An address, a size or an offset is not a multiple of the page, the region has no bytes, or
    /// its end lies beyond all addresses.
    #[error(
        "region at {start:#x} of {len} bytes from offset {offset}: not whole pages of addresses"
    )]
    Region {
        /// The first address of the region.
        start: u64,
        /// The length of the region in bytes.
        len: u64,
        /// The offset of the region in the memory file.
        offset: u64,
    },
    /// Two regions share an address or a byte of the file.
    #[error("regions overlap at {0:#x}")]
    Overlap(u64),
    /// The file ends before the regions do.
    #[error("the regions end at byte {end} of a memory file of {len} bytes")]
    BeyondSource {
        /// The end of the last region's offsets.
        end: u64,
        /// Bytes of the file.
        len: u64,
    },
}

/// A part of the VMM's address space that shows a part of the memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Region {
    /// The first address of the region.
    pub start: u64,
    /// The length of the region in bytes.
    pub len: u64,
    /// The offset of the region in the memory file.
    pub offset: u64,
}

impl Region {
    /// Returns all addresses of the region.
    #[must_use]
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    pub(crate) fn offsets(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// A run of bytes of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Piece {
    pub(crate) fn offsets(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// All regions of a VM, ascending by offset, without overlaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    regions: Vec<Region>,
    page: u64,
}

impl Layout {
    /// Checks the layout against a memory file of `source` bytes.
    pub(crate) fn checked(mut self, source: u64) -> Result<Self, UnfitLayout> {
        if self.regions.is_empty() || self.regions.len() > MOST_REGIONS {
            return Err(UnfitLayout::Count(self.regions.len()));
        }
        if self.page != base_page() && self.page != HUGETLB {
            return Err(UnfitLayout::Pages(self.page));
        }
        for &region in &self.regions {
            check_region(region, self.page, source)?;
        }
        self.regions.sort_unstable_by_key(|region| region.start);
        check_apart(&self.regions, Region::addresses)?;
        self.regions.sort_unstable_by_key(|region| region.offset);
        check_apart(&self.regions, Region::offsets)?;
        Ok(self)
    }

    /// Makes a layout of unchecked regions.
    pub(crate) fn new(regions: Vec<Region>, page: u64) -> Self {
        Self { regions, page }
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the regions, ascending by address.
    pub(crate) fn by_address(&self) -> Vec<Region> {
        let mut regions = self.regions.clone();
        regions.sort_unstable_by_key(|region| region.start);
        regions
    }

    /// Returns true if another VM's regions have the same sizes, offsets and pages, in the same
    /// order of addresses.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let parts = |layout: &Self| -> Vec<_> {
            layout.by_address().iter().map(|region| (region.len, region.offset)).collect()
        };
        self.page == other.page && parts(self) == parts(other)
    }

    /// Returns the length of a page in bytes. A fault supplies at least one page.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    pub(crate) fn is_hugetlb(&self) -> bool {
        self.page != base_page()
    }

    /// Returns the number of bytes of all regions.
    pub(crate) fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }

    /// Returns the end of the last region's offsets.
    pub(crate) fn end(&self) -> u64 {
        self.regions.last().map_or(0, |region| region.offset + region.len)
    }

    /// Returns the offset that an address shows.
    pub(crate) fn offset_of(&self, address: u64) -> Option<u64> {
        let region = self.regions.iter().find(|region| region.addresses().contains(&address))?;
        Some(region.offset + (address - region.start))
    }

    /// Returns the parts of regions that show these offsets.
    pub(crate) fn pieces(&self, offsets: Range<u64>) -> impl Iterator<Item = Piece> {
        self.regions.iter().filter_map(move |region| {
            let start = offsets.start.max(region.offset);
            let end = offsets.end.min(region.offset + region.len);
            (start < end).then(|| Piece {
                address: region.start + (start - region.offset),
                offset: start,
                len: end - start,
            })
        })
    }

    /// Returns the offsets that a range of addresses shows, region by region.
    pub(crate) fn offsets_of(&self, addresses: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.regions.iter().filter_map(move |region| {
            let start = addresses.start.max(region.start);
            let end = addresses.end.min(region.start + region.len);
            let offset = |address: u64| region.offset + (address - region.start);
            (start < end).then(|| offset(start)..offset(end))
        })
    }
}

pub(crate) fn base_page() -> u64 {
    rustix::param::page_size() as u64
}

fn check_region(region: Region, page: u64, source: u64) -> Result<(), UnfitLayout> {
    let Region { start, len, offset } = region;
    let is_whole = [start, len, offset].iter().all(|number| number % page == 0);
    let ends = start.checked_add(len).filter(|&end| end <= MOST_ADDRESS);
    let (Some(_), Some(end), true) = (ends, offset.checked_add(len), is_whole && len > 0) else {
        return Err(UnfitLayout::Region { start, len, offset });
    };
    if end > source { Err(UnfitLayout::BeyondSource { end, len: source }) } else { Ok(()) }
}

/// Checks that no two of these regions overlap. The regions are in the order of `range`.
fn check_apart(regions: &[Region], range: fn(&Region) -> Range<u64>) -> Result<(), UnfitLayout> {
    let overlap = regions.windows(2).find(|pair| range(&pair[0]).end > range(&pair[1]).start);
    overlap.map_or(Ok(()), |pair| Err(UnfitLayout::Overlap(range(&pair[1]).start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: u64 = 64 << 20;

    fn region(start: u64, len: u64, offset: u64) -> Region {
        Region { start, len, offset }
    }

    fn checked(regions: &[Region], page: u64) -> Result<Layout, UnfitLayout> {
        Layout::new(regions.to_vec(), page).checked(SOURCE)
    }

    #[test]
    fn layout_of_two_regions_maps_addresses_to_offsets() {
        let page = base_page();
        let upper = region(1 << 40, 4 * page, 8 * page);
        let lower = region(1 << 30, 8 * page, 0);
        let layout = checked(&[upper, lower], page).unwrap();
        assert_eq!((layout.bytes(), layout.end()), (12 * page, 12 * page));
        assert_eq!(layout.offset_of((1 << 40) + page), Some(9 * page));
        assert_eq!(layout.offset_of((1 << 30) + 8 * page), None);
        let pieces: Vec<_> = layout.pieces(6 * page..10 * page).collect();
        let piece = |address, offset, len| Piece { address, offset, len };
        let expected =
            [piece((1 << 30) + 6 * page, 6 * page, 2 * page), piece(1 << 40, 8 * page, 2 * page)];
        assert_eq!(pieces, expected);
        let offsets: Vec<_> = layout.offsets_of(0..u64::MAX).collect();
        assert_eq!(offsets, [0..8 * page, 8 * page..12 * page]);
    }

    #[test]
    fn hostile_regions_are_refused_each_for_its_reason() {
        let page = base_page();
        let one = |start, size, offset, page| checked(&[region(start, size, offset)], page);
        let is_region = |layout| matches!(layout, Err(UnfitLayout::Region { .. }));
        assert!(is_region(one(page, 1 << 62, 0, page)));
        assert!(is_region(one(1 << 62, page, 0, page)));
        assert!(is_region(one(u64::MAX - page + 1, page, 0, page)));
        assert!(is_region(one(page, page, u64::MAX - page + 1, page)));
        assert!(is_region(one(page, 0, 0, page)));
        assert!(is_region(one(page + 1, page, 0, page)));
        assert!(is_region(one(page, page + 1, 0, page)));
        assert!(is_region(one(page, page, 1, page)));
        assert!(is_region(one(2 << 20, page, 0, 2 << 20)));
        assert_eq!(one(page, page, 0, 12345), Err(UnfitLayout::Pages(12345)));
        assert_eq!(one(page, page, 0, 0), Err(UnfitLayout::Pages(0)));
        let beyond = UnfitLayout::BeyondSource { end: SOURCE + page, len: SOURCE };
        assert_eq!(one(page, page, SOURCE, page), Err(beyond));
        assert_eq!(checked(&[], page), Err(UnfitLayout::Count(0)));
        let many: Vec<_> = (0..65).map(|at| region(page * (at + 1), page, page * at)).collect();
        assert_eq!(checked(&many, page), Err(UnfitLayout::Count(65)));
        let overlap = [region(page, 2 * page, 0), region(2 * page, page, 2 * page)];
        assert_eq!(checked(&overlap, page), Err(UnfitLayout::Overlap(2 * page)));
        let same_bytes = [region(page, page, 0), region(8 * page, page, 0)];
        assert_eq!(checked(&same_bytes, page), Err(UnfitLayout::Overlap(0)));
    }
}
