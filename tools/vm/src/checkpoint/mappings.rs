//! The VM's memory among the mappings of its VMM, by `/proc/PID/smaps`.
//!
//! Firecracker maps each region of guest memory privately and without a reservation. The sizes of
//! the regions follow from the VM's size, and each one must fit exactly one mapping: to guess would
//! save wrong bytes. Regions that lie beside each other are one mapping, whose parts the order tells
//! that the pager has kept.

use hugekit_machine::processes::Mapping;

use crate::vmm::mappings::is_hugetlb;
use crate::vmm::{Region, RegionOrder};

/// Guest memory below the addresses of 32-bit devices, on x86-64.
const BELOW_DEVICES: u64 = 3 << 30;

fn may_be_guest_memory(mapping: &Mapping) -> bool {
    let is_writable = mapping.has(&[b"rd"]) && mapping.has(&[b"wr"]) && !mapping.has(&[b"ex"]);
    mapping.is_private && is_writable && (mapping.inode == 0 || is_hugetlb(mapping))
}

/// Returns whether a mapping goes on in the next one. The kernel does not join mappings of hugetlbfs again
/// that a checkpoint has split.
fn goes_on_in(mapping: &Mapping, next: &Mapping) -> bool {
    let unserved = |mapping: &Mapping| {
        let Mapping { is_private, device, inode, page, flags, .. } = mapping;
        let flags = flags.iter().copied().filter(|flag| ![*b"um", *b"uw"].contains(flag));
        (*is_private, *device, *inode, *page, flags.collect::<Vec<_>>())
    };
    mapping.addresses.end == next.addresses.start && unserved(mapping) == unserved(next)
}

/// The regions of a VM of this many bytes, in the order of their offsets; `None` if they cannot be
/// told.
pub(crate) fn guest_memory(
    mappings: &[Mapping],
    bytes: u64,
    order: Option<RegionOrder>,
) -> Option<Vec<Region>> {
    let (mappings, sizes) = (joined(mappings), sizes(bytes));
    let apart = || sizes.iter().map(|&len| only_start(&mappings, len)).collect();
    let beside_each_other = || Some(starts_beside(only_start(&mappings, bytes)?, &sizes, order?));
    let starts: Vec<u64> = Option::or_else(apart(), beside_each_other)?;
    let mut offset = 0;
    let region = |(start, len)| {
        let region = Region { start, len, offset };
        offset += len;
        region
    };
    Some(starts.into_iter().zip(sizes).map(region).collect())
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

/// Returns the starts of regions of these sizes that lie beside each other, from `start` on.
fn starts_beside(start: u64, sizes: &[u64], order: RegionOrder) -> Vec<u64> {
    let mut upwards: Vec<usize> = (0..sizes.len()).collect();
    if order == RegionOrder::Descending {
        upwards.reverse();
    }
    let (mut starts, mut at) = (vec![start; sizes.len()], start);
    for index in upwards {
        starts[index] = at;
        at += sizes[index];
    }
    starts
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

/// Returns the sizes of the regions.
fn sizes(bytes: u64) -> Vec<u64> {
    if cfg!(target_arch = "x86_64") && bytes > BELOW_DEVICES {
        vec![BELOW_DEVICES, bytes - BELOW_DEVICES]
    } else {
        vec![bytes]
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::vmm::mappings::{is_protected, is_served, mappings_in};

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
        assert_eq!(guest_memory(&mappings, len, None), Some(vec![base]));
        let (start, len) = (0x7f00_2000_0000, 64 << 20);
        let hugetlb = Region { start, len, offset: 0 };
        assert_eq!(guest_memory(&mappings, len, None), Some(vec![hugetlb]));
        assert_eq!(guest_memory(&mappings, 32 << 20, None), None);
    }

    #[test]
    fn two_mappings_of_one_size_are_ambiguous() {
        let one = parsed()[0].clone();
        let other = Mapping { addresses: 0x1000_0000..0x1800_0000, ..one.clone() };
        assert_eq!(guest_memory(&[one, other], 128 << 20, None), None);
    }

    #[test]
    fn mapping_that_was_split_is_one() {
        let all = parsed()[2].clone();
        let (start, end) = (all.addresses.start, all.addresses.end);
        let part = |addresses| Mapping { addresses, ..all.clone() };
        let halves = [part(start..start + (2 << 20)), part(start + (2 << 20)..end)];
        assert_eq!(
            guest_memory(&halves, 64 << 20, None),
            guest_memory(slice::from_ref(&all), 64 << 20, None)
        );
        assert!(guest_memory(&halves, 64 << 20, None).is_some());
        let apart = [part(start..start + (2 << 20)), part(start + (4 << 20)..end)];
        assert_eq!(guest_memory(&apart, 64 << 20, None), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn memory_above_the_devices_is_a_second_region() {
        let one = parsed()[0].clone();
        let low = Mapping { addresses: 8 << 30..11 << 30, ..one.clone() };
        let high = Mapping { addresses: 4 << 30..5 << 30, ..one };
        let regions = guest_memory(&[high, low], 4 << 30, None).unwrap();
        let places: Vec<_> = regions.iter().map(|region| (region.start, region.offset)).collect();
        assert_eq!(places, [(8 << 30, 0), (4 << 30, 3 << 30)]);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn merged_regions_are_told_by_their_order() {
        let all = Mapping { addresses: 8 << 30..12 << 30, ..parsed()[0].clone() };
        let starts = |order| -> Option<Vec<u64>> {
            let regions = guest_memory(slice::from_ref(&all), 4 << 30, order)?;
            Some(regions.iter().map(|region| region.start).collect())
        };
        assert_eq!(starts(None), None);
        assert_eq!(starts(Some(RegionOrder::Ascending)), Some(vec![8 << 30, 11 << 30]));
        assert_eq!(starts(Some(RegionOrder::Descending)), Some(vec![9 << 30, 8 << 30]));
    }
}
