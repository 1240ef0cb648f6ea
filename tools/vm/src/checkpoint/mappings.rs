//! The VM's memory among the mappings of its VMM, from `/proc/PID/smaps`.
//!
//! A VM that hugekit's pager or a fork has restored keeps its layout, which is checked against the
//! mappings. After another handler, the layout is derived from the sizes of regions in the VMM's
//! versions, and each region must match exactly one mapping, because a guess could save wrong
//! bytes.

use hugekit_machine::processes::Mapping;

use crate::vmm::Region;
use crate::vmm::mappings::is_hugetlb;

fn may_be_guest_memory(mapping: &Mapping) -> bool {
    let is_writable = mapping.has(&[b"rd"]) && mapping.has(&[b"wr"]) && !mapping.has(&[b"ex"]);
    mapping.is_private && is_writable && (mapping.inode == 0 || is_hugetlb(mapping))
}

/// Returns true if a mapping continues in the next mapping. The kernel does not join mappings of
/// hugetlbfs again after a checkpoint has split them.
fn goes_on_in(mapping: &Mapping, next: &Mapping) -> bool {
    let unserved = |mapping: &Mapping| {
        let Mapping { is_private, device, inode, page, flags, .. } = mapping;
        let flags = flags.iter().copied().filter(|flag| ![*b"um", *b"uw"].contains(flag));
        (*is_private, *device, *inode, *page, flags.collect::<Vec<_>>())
    };
    mapping.addresses.end == next.addresses.start && unserved(mapping) == unserved(next)
}

/// Returns true if all of these regions lie in mappings that may be guest memory. Regions of
/// another VM's layout do not.
pub(crate) fn has_guest_memory(mappings: &[Mapping], regions: &[Region]) -> bool {
    let mappings: Vec<Mapping> =
        mappings.iter().filter(|mapping| may_be_guest_memory(mapping)).cloned().collect();
    let is_mapped = |region: &Region| {
        let mut at = region.start;
        for mapping in &mappings {
            if mapping.addresses.contains(&at) {
                at = mapping.addresses.end;
            }
        }
        at >= region.addresses().end
    };
    regions.iter().all(is_mapped)
}

/// Returns the regions of a VM that keeps no layout, in the order of their offsets, with the sizes
/// of one of these layouts; `None` if they cannot be determined.
pub(crate) fn guest_memory(mappings: &[Mapping], layouts: &[Vec<u64>]) -> Option<Vec<Region>> {
    let mappings = joined(mappings);
    let mut fitting = layouts.iter().filter_map(|sizes| regions_of_sizes(&mappings, sizes));
    let only = fitting.next()?;
    fitting.next().is_none().then_some(only)
}

fn regions_of_sizes(mappings: &[Mapping], sizes: &[u64]) -> Option<Vec<Region>> {
    let mut offset = 0;
    let region = |&len| {
        let region = Region { start: only_start(mappings, len)?, len, offset };
        offset += len;
        Some(region)
    };
    sizes.iter().map(region).collect()
}

/// Returns the start of the only mapping of this length that may be guest memory.
fn only_start(mappings: &[Mapping], len: u64) -> Option<u64> {
    let fits = |mapping: &&Mapping| {
        may_be_guest_memory(mapping) && mapping.addresses.end - mapping.addresses.start == len
    };
    let mut fitting = mappings.iter().filter(fits);
    let only = fitting.next()?;
    fitting.next().is_none().then_some(only.addresses.start)
}

fn joined(mappings: &[Mapping]) -> Vec<Mapping> {
    let mut joined: Vec<Mapping> = Vec::new();
    for mapping in mappings {
        match joined.last_mut() {
            Some(last) if goes_on_in(last, mapping) => last.addresses.end = mapping.addresses.end,
            _ => joined.push(mapping.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::firecracker::regions::sizes;
    use crate::vmm::mappings::{is_protected, is_served, mappings_in};

    const GIB: u64 = 1 << 30;

    const SMAPS: &str = "\
7f0000000000-7f0008000000 rw-p 00000000 00:00 0 \nSize: 131072 kB\n\
VmFlags: rd wr mr mw me nr sd um uw \n\
7f0010000000-7f0018000000 rw-s 00000000 00:00 0 \nVmFlags: rd wr sh mr mw \n\
7f0020000000-7f0024000000 rw-p 00000000 00:11 7    /anon_hugepage (deleted)\n\
VmFlags: rd wr mr mw me nr ht \n\
7f0030000000-7f0034000000 rw-p 00000000 08:11 9    /tmp/memory.bin\nVmFlags: rd wr mr mw \n\
7f0040000000-7f0042000000 ---p 00000000 00:00 0 \nVmFlags: mr mw me nr sd \n";

    fn parsed() -> Vec<Mapping> {
        mappings_in(SMAPS.as_bytes()).unwrap()
    }

    #[test]
    fn guest_memory_is_the_only_private_mapping_of_its_size() {
        let mappings = parsed();
        assert_eq!(mappings.len(), 5);
        assert!(is_served(&mappings[0]) && is_protected(&mappings[0]));
        assert!(!is_served(&mappings[2]) && !is_protected(&mappings[2]));
        let (start, len) = (0x7f00_0000_0000, 128 << 20);
        let base = Region { start, len, offset: 0 };
        assert_eq!(guest_memory(&mappings, &[vec![len]]), Some(vec![base]));
        let (start, len) = (0x7f00_2000_0000, 64 << 20);
        let hugetlb = Region { start, len, offset: 0 };
        assert_eq!(guest_memory(&mappings, &[vec![len]]), Some(vec![hugetlb]));
        assert_eq!(guest_memory(&mappings, &[vec![32 << 20]]), None);
    }

    #[test]
    fn two_mappings_of_one_size_are_ambiguous() {
        let one = parsed()[0].clone();
        let other = Mapping { addresses: 0x1000_0000..0x1800_0000, ..one.clone() };
        assert_eq!(guest_memory(&[one, other], &[vec![128 << 20]]), None);
    }

    #[test]
    fn mapping_that_was_split_is_one() {
        let all = parsed()[2].clone();
        let (start, end) = (all.addresses.start, all.addresses.end);
        let part = |addresses| Mapping { addresses, ..all.clone() };
        let halves = [part(start..start + (2 << 20)), part(start + (2 << 20)..end)];
        assert_eq!(
            guest_memory(&halves, &[vec![64 << 20]]),
            guest_memory(slice::from_ref(&all), &[vec![64 << 20]])
        );
        assert!(guest_memory(&halves, &[vec![64 << 20]]).is_some());
        let apart = [part(start..start + (2 << 20)), part(start + (4 << 20)..end)];
        assert_eq!(guest_memory(&apart, &[vec![64 << 20]]), None);
    }

    fn layout_of(addresses: &[(u64, u64)], bytes: u64) -> Option<Vec<(u64, u64)>> {
        let one = parsed()[0].clone();
        let mappings: Vec<Mapping> = addresses
            .iter()
            .map(|&(start, end)| Mapping { addresses: start..end, ..one.clone() })
            .collect();
        let regions = guest_memory(&mappings, &sizes(bytes))?;
        Some(regions.iter().map(|region| (region.start, region.offset)).collect())
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn memory_above_the_devices_is_a_second_region_by_its_sizes() {
        let found = layout_of(&[(4 * GIB, 5 * GIB), (8 * GIB, 11 * GIB)], 4 * GIB);
        assert_eq!(found, Some(vec![(8 * GIB, 0), (4 * GIB, 3 * GIB)]));
        // Before 1.13, the gap had 768 MiB.
        let (low, high) = (13 * GIB / 4, 3 * GIB / 4);
        let found = layout_of(&[(8 * GIB, 8 * GIB + high), (16 * GIB, 16 * GIB + low)], 4 * GIB);
        assert_eq!(found, Some(vec![(16 * GIB, 0), (8 * GIB, low)]));
        // Behind the 64-bit devices.
        let (middle, high) = (252 * GIB, 9 * GIB);
        let found = layout_of(
            &[(GIB, GIB + high), (100 * GIB, 100 * GIB + middle), (1000 * GIB, 1003 * GIB)],
            264 * GIB,
        );
        assert_eq!(found, Some(vec![(1000 * GIB, 0), (100 * GIB, 3 * GIB), (GIB, 255 * GIB)]));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn regions_that_the_kernel_has_merged_are_not_told() {
        assert_eq!(layout_of(&[(8 * GIB, 12 * GIB)], 4 * GIB), None);
        assert_eq!(layout_of(&[(8 * GIB, 272 * GIB)], 264 * GIB), None);
        // One region of Firecracker before 1.13, or two of a later one.
        let bytes = 13 * GIB / 4;
        assert_eq!(layout_of(&[(8 * GIB, 8 * GIB + bytes)], bytes), Some(vec![(8 * GIB, 0)]));
    }

    #[test]
    fn kept_regions_lie_within_mappings_of_guest_memory() {
        let mappings = parsed();
        let within = |start, len| has_guest_memory(&mappings, &[Region { start, len, offset: 0 }]);
        assert!(within(0x7f00_0000_0000, 128 << 20));
        assert!(within(0x7f00_0010_0000, 1 << 20));
        assert!(!within(0x7f00_0000_0000, 129 << 20));
        // Shared, of a file, and not readable.
        for start in [0x7f00_1000_0000, 0x7f00_3000_0000, 0x7f00_4000_0000] {
            assert!(!within(start, 1 << 20), "{start:#x}");
        }
    }
}
