//! The VM's memory among the mappings of its VMM, by `/proc/PID/smaps`.
//!
//! Firecracker maps each region of guest memory privately and without a reservation. The sizes of
//! the regions follow from the VM's size, and each one must fit exactly one mapping: to guess would
//! save wrong bytes.

use std::ops::Range;

/// Guest memory below the addresses of 32-bit devices, on x86-64.
const BELOW_DEVICES: u64 = 3 << 30;

/// A mapping of a VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addresses: Range<u64>,
    is_private: bool,
    is_hugetlb: bool,
    is_anonymous: bool,
    flags: Vec<String>,
}

impl Mapping {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|has| has == flag)
    }

    /// A userfaultfd serves first accesses there.
    pub(crate) fn is_served(&self) -> bool {
        self.has("um")
    }

    /// A userfaultfd serves writes there, which no pager asks for.
    pub(crate) fn is_protected(&self) -> bool {
        self.has("uw")
    }

    /// Whether another mapping goes on where this one ends. The kernel does not join mappings of
    /// hugetlbfs again that a checkpoint has split.
    fn goes_on_in(&self, next: &Self) -> bool {
        let kind = |mapping: &Self| (mapping.is_private, mapping.is_hugetlb, mapping.is_anonymous);
        let kept = |mapping: &Self| -> Vec<String> {
            let is_kept = |flag: &&String| !["um", "uw"].contains(&flag.as_str());
            mapping.flags.iter().filter(is_kept).cloned().collect()
        };
        self.addresses.end == next.addresses.start
            && kind(self) == kind(next)
            && kept(self) == kept(next)
    }

    fn may_be_guest_memory(&self) -> bool {
        let is_writable = self.has("rd") && self.has("wr") && !self.has("ex");
        self.is_private && is_writable && (self.is_anonymous || self.is_hugetlb)
    }
}

/// A part of the VMM's address space that shows a part of the memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) offset: u64,
    pub(crate) is_hugetlb: bool,
}

impl Region {
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.start..self.start + self.len
    }
}

pub(crate) fn parse(smaps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = first_line(line) {
            found.push(mapping);
        } else if let (Some(flags), Some(last)) = (line.strip_prefix("VmFlags:"), found.last_mut())
        {
            last.flags = flags.split_ascii_whitespace().map(str::to_owned).collect();
            last.is_hugetlb = last.has("ht");
        }
    }
    found
}

/// `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
fn first_line(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let addresses = number(start)?..number(end)?;
    let is_private = words.next()?.ends_with('p');
    let is_anonymous = words.nth(2)? == "0";
    Some(Mapping { addresses, is_private, is_anonymous, ..Mapping::default() })
}

/// The regions of a VM of this many bytes, in the order of their offsets; `None` if they cannot be
/// told.
pub(crate) fn guest_memory(mappings: &[Mapping], bytes: u64) -> Option<Vec<Region>> {
    let mappings = joined(mappings);
    let mut offset = 0;
    let region = |len| {
        let fits = |mapping: &&Mapping| {
            mapping.may_be_guest_memory() && mapping.addresses.end - mapping.addresses.start == len
        };
        let mut fitting = mappings.iter().filter(fits);
        let (Some(only), None) = (fitting.next(), fitting.next()) else { return None };
        let (start, is_hugetlb) = (only.addresses.start, only.is_hugetlb);
        let region = Region { start, len, offset, is_hugetlb };
        offset += len;
        Some(region)
    };
    sizes(bytes).into_iter().map(region).collect()
}

fn joined(mappings: &[Mapping]) -> Vec<Mapping> {
    let mut joined: Vec<Mapping> = Vec::new();
    for mapping in mappings {
        match joined.last_mut() {
            Some(last) if last.goes_on_in(mapping) => last.addresses.end = mapping.addresses.end,
            _ => joined.push(mapping.clone()),
        }
    }
    joined
}

/// Of the regions.
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

    const SMAPS: &str = "\
7f0000000000-7f0008000000 rw-p 00000000 00:00 0 \nSize: 131072 kB\n\
VmFlags: rd wr mr mw me nr sd um uw \n\
7f0010000000-7f0018000000 rw-s 00000000 00:00 0 \nVmFlags: rd wr sh mr mw \n\
7f0020000000-7f0024000000 rw-p 00000000 00:11 7    /anon_hugepage (deleted)\n\
VmFlags: rd wr mr mw me nr ht \n\
7f0030000000-7f0034000000 rw-p 00000000 08:11 9    /tmp/memory.bin\nVmFlags: rd wr mr mw \n\
7f0040000000-7f0042000000 ---p 00000000 00:00 0 \nVmFlags: mr mw me nr sd \n";

    #[test]
    fn guest_memory_is_the_only_private_mapping_of_its_size() {
        let mappings = parse(SMAPS);
        assert_eq!(mappings.len(), 5);
        assert!(mappings[0].is_served() && mappings[0].is_protected());
        assert!(!mappings[2].is_served() && !mappings[2].is_protected());
        let (start, len) = (0x7f00_0000_0000, 128 << 20);
        let base = Region { start, len, offset: 0, is_hugetlb: false };
        assert_eq!(guest_memory(&mappings, len), Some(vec![base]));
        let (start, len) = (0x7f00_2000_0000, 64 << 20);
        let hugetlb = Region { start, len, offset: 0, is_hugetlb: true };
        assert_eq!(guest_memory(&mappings, len), Some(vec![hugetlb]));
        assert_eq!(guest_memory(&mappings, 32 << 20), None);
    }

    #[test]
    fn two_mappings_of_one_size_are_ambiguous() {
        let one = parse(SMAPS)[0].clone();
        let other = Mapping { addresses: 0x1000_0000..0x1800_0000, ..one.clone() };
        assert_eq!(guest_memory(&[one, other], 128 << 20), None);
    }

    #[test]
    fn mapping_that_was_split_is_one() {
        let all = parse(SMAPS)[2].clone();
        let (start, end) = (all.addresses.start, all.addresses.end);
        let part = |addresses| Mapping { addresses, ..all.clone() };
        let halves = [part(start..start + (2 << 20)), part(start + (2 << 20)..end)];
        assert_eq!(guest_memory(&halves, 64 << 20), guest_memory(slice::from_ref(&all), 64 << 20));
        assert!(guest_memory(&halves, 64 << 20).is_some());
        let apart = [part(start..start + (2 << 20)), part(start + (4 << 20)..end)];
        assert_eq!(guest_memory(&apart, 64 << 20), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn memory_above_the_devices_is_a_second_region() {
        let one = parse(SMAPS)[0].clone();
        let low = Mapping { addresses: 8 << 30..11 << 30, ..one.clone() };
        let high = Mapping { addresses: 4 << 30..5 << 30, ..one };
        let regions = guest_memory(&[high, low], 4 << 30).unwrap();
        let places: Vec<_> = regions.iter().map(|region| (region.start, region.offset)).collect();
        assert_eq!(places, [(8 << 30, 0), (4 << 30, 3 << 30)]);
    }
}
