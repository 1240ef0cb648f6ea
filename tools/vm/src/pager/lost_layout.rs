//! The layout of a VM whose message was lost with an earlier pager. It is derived from the mappings
//! of its VMM, and from layouts of other VMs that were restored from the same memory file.
//!
//! A VMM program maps the regions of a snapshot always in the same order. So the sizes and the
//! order of another VM's regions separate regions that the kernel has merged. If anything is
//! ambiguous, there is no layout, because a guess would show wrong bytes.

use crate::firecracker::regions::ONE_REGION;
use crate::pager::served::Served;
use crate::vmm::{Layout, Region};

/// Finds the layout of a VM whose memory file has `source` bytes. `known` are layouts of other VMs.
pub(crate) fn find(mappings: &[Served], known: &[Layout], source: u64) -> Option<Layout> {
    let page = mappings.first()?.page;
    if mappings.iter().any(|mapping| mapping.page != page) {
        return None;
    }
    let regions = if known.is_empty() {
        only_region(mappings, source)?
    } else {
        let mut found = known
            .iter()
            .filter(|layout| layout.page() == page)
            .filter_map(|layout| in_order(mappings, layout).or_else(|| by_size(mappings, layout)));
        let first = found.next()?;
        if found.any(|other| other != first) {
            return None;
        }
        first
    };
    Layout::new(regions, page).checked(source).ok()
}

fn only_region(mappings: &[Served], source: u64) -> Option<Vec<Region>> {
    let [Served { addresses, .. }] = mappings else { return None };
    let len = addresses.end - addresses.start;
    let is_whole = len == source && len <= ONE_REGION;
    is_whole.then(|| vec![Region { start: addresses.start, len, offset: 0 }])
}

/// Returns the other VM's regions in the order of its addresses, if each mapping ends at the end of
/// a region.
fn in_order(mappings: &[Served], other: &Layout) -> Option<Vec<Region>> {
    let mut regions = other.by_address().into_iter();
    let mut found = Vec::new();
    for Served { addresses, .. } in mappings {
        let mut start = addresses.start;
        while start < addresses.end {
            let Region { len, offset, .. } = regions.next()?;
            found.push(Region { start, len, offset });
            start += len;
        }
        if start != addresses.end {
            return None;
        }
    }
    sorted(regions.next().is_none().then_some(found)?)
}

/// Returns regions that are mapped in another order, if each region has a mapping and a size of its
/// own.
fn by_size(mappings: &[Served], other: &Layout) -> Option<Vec<Region>> {
    if mappings.len() != other.regions().len() {
        return None;
    }
    let mut found = Vec::new();
    for &Region { len, offset, .. } in other.regions() {
        let mut fitting = mappings.iter().filter(|mapping| mapping.len() == len);
        let (Some(only), None) = (fitting.next(), fitting.next()) else { return None };
        found.push(Region { start: only.addresses.start, len, offset });
    }
    sorted(found)
}

fn sorted(mut regions: Vec<Region>) -> Option<Vec<Region>> {
    regions.sort_unstable_by_key(|region| region.offset);
    Some(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmm::base_page;

    const SOURCE: u64 = 64 << 20;

    fn mapping(start: u64, len: u64) -> Served {
        Served { addresses: start..start + len, page: base_page() }
    }

    fn region(start: u64, len: u64, offset: u64) -> Region {
        Region { start, len, offset }
    }

    fn layout(regions: &[Region]) -> Layout {
        Layout::new(regions.to_vec(), base_page())
    }

    /// 48 MiB from offset 0, above 16 MiB: the order of Firecracker.
    fn two() -> Layout {
        layout(&[region(9 << 30, 48 << 20, 0), region(8 << 30, 16 << 20, 48 << 20)])
    }

    #[test]
    fn one_mapping_of_the_whole_file_is_one_region() {
        let found = find(&[mapping(1 << 30, SOURCE)], &[], SOURCE);
        assert_eq!(found, Some(layout(&[region(1 << 30, SOURCE, 0)])));
        assert_eq!(find(&[mapping(1 << 30, SOURCE / 2)], &[], SOURCE), None);
        assert_eq!(find(&[], &[], SOURCE), None);
    }

    #[test]
    fn large_or_several_mappings_alone_are_ambiguous() {
        let large = (3 << 30) + base_page();
        assert_eq!(find(&[mapping(1 << 40, large)], &[], large), None);
        let halves = [mapping(1 << 30, SOURCE / 2), mapping(2 << 30, SOURCE / 2)];
        assert_eq!(find(&halves, &[], SOURCE), None);
    }

    #[test]
    fn merged_regions_are_distinguished_by_another_vms_order() {
        let found = find(&[mapping(5 << 30, SOURCE)], &[two()], SOURCE).unwrap();
        let expected =
            [region((5 << 30) + (16 << 20), 48 << 20, 0), region(5 << 30, 16 << 20, 48 << 20)];
        assert_eq!(found, layout(&expected));
    }

    #[test]
    fn regions_apart_are_distinguished_by_order_or_by_size() {
        let expected = layout(&[region(7 << 30, 48 << 20, 0), region(5 << 30, 16 << 20, 48 << 20)]);
        let same = [mapping(5 << 30, 16 << 20), mapping(7 << 30, 48 << 20)];
        assert_eq!(find(&same, &[two()], SOURCE), Some(expected));
        let expected = layout(&[region(5 << 30, 48 << 20, 0), region(7 << 30, 16 << 20, 48 << 20)]);
        let turned = [mapping(5 << 30, 48 << 20), mapping(7 << 30, 16 << 20)];
        assert_eq!(find(&turned, &[two()], SOURCE), Some(expected));
    }

    #[test]
    fn mappings_that_fit_no_other_vm_or_two_are_refused() {
        let merged = [mapping(5 << 30, SOURCE)];
        let turned = layout(&[region(8 << 30, 48 << 20, 0), region(9 << 30, 16 << 20, 48 << 20)]);
        assert_eq!(find(&merged, &[two(), turned], SOURCE), None);
        assert!(find(&merged, &[two(), two()], SOURCE).is_some());
        assert_eq!(find(&[mapping(5 << 30, SOURCE / 2)], &[two()], SOURCE), None);
        let more = [mapping(5 << 30, SOURCE), mapping(9 << 30, SOURCE)];
        assert_eq!(find(&more, &[two()], SOURCE), None);
        let huge = [Served { page: 2 << 20, ..mapping(5 << 30, SOURCE) }];
        assert_eq!(find(&huge, &[two()], SOURCE), None);
        let mixed = [mapping(5 << 30, SOURCE / 2), huge[0].clone()];
        assert_eq!(find(&mixed, &[], SOURCE), None);
    }
}
