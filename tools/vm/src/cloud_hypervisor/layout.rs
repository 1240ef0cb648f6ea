//! The places of guest memory: in the snapshot's memory file, and in the file that the VMM maps.
//!
//! Each *mapping* of the VMM has a slot of KVM, a guest-physical address, a length and an offset in
//! a file. The memory file contains *ranges*, one after the other. This file gives each mapping a
//! new offset, in one file for all mappings.

use std::collections::BTreeSet;
use std::path::PathBuf;

use hugekit_image::ImageRange;
use hugekit_sys::{ErrorKind, HUGE_PAGE_BYTES, Remedy};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cloud_hypervisor::config::VmConfig;

/// The smallest page size of a guest.
const PAGE: u64 = 4096;

/// The part of the VMM's state that describes memory. Everything else in the state is kept
/// unchanged.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct MemoryLayout {
    memory_ranges: Ranges,
    guest_ram_mappings: Vec<Mapping>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Ranges {
    data: Vec<Range>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Bytes of the memory file.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Range {
    gpa: u64,
    length: u64,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Mapping {
    slot: u32,
    gpa: u64,
    size: u64,
    zone_id: String,
    #[serde(default)]
    virtio_mem: bool,
    #[serde(default)]
    file_offset: u64,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The ranges of the memory file, and their places in the guest.
#[derive(Debug)]
struct Contents {
    /// Address, length and offset in the file, by address.
    ranges: Vec<(u64, u64, u64)>,
    bytes: u64,
}

/// The offset of a mapping's memory in the file that the VMM maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub slot: u32,
    pub offset: u64,
}

/// The reason why the memory of a snapshot cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitMemory {
    /// The snapshot has no memory, or more than any machine has.
    #[error("the snapshot has {0} ranges of memory, and their lengths make no sense")]
    Lengths(usize),
    /// Two ranges of the memory file are the same memory of the guest.
    #[error("the snapshot has two ranges of memory at {gpa:#x} of the guest")]
    Ranges {
        /// An address in both ranges.
        gpa: u64,
    },
    /// A mapping does not consist of whole pages.
    #[error("the snapshot maps {size} bytes at {gpa:#x} of the guest, which are no whole pages")]
    Mapping {
        /// The address of the mapping in the guest.
        gpa: u64,
        /// The length of the mapping in bytes.
        size: u64,
    },
    /// Two mappings have the same address in the guest, or the same slot.
    #[error("the snapshot maps the memory at {gpa:#x} of the guest, or its slot {slot}, twice")]
    Twice {
        /// An address in both mappings.
        gpa: u64,
        /// The slot of one of the mappings.
        slot: u32,
    },
    /// A mapping belongs to a zone that the configuration does not have.
    #[error("the state has memory of the zone {0:?}, which the configuration lacks")]
    Zone(String),
    /// The memory file lacks a mapping, or contains only a part of it.
    #[error("the memory file lacks some of the {size} bytes at {gpa:#x} of the guest{}", Remedy(self.remedy()))]
    Missing {
        /// The address of the mapping in the guest.
        gpa: u64,
        /// The length of the mapping in bytes.
        size: u64,
    },
    /// A zone is in a file that the VMM maps shared, so the snapshot does not contain this memory.
    #[error("the memory of zone {zone} is in the shared file {}, and not in the snapshot{}", file.display(), Remedy(self.remedy()))]
    InFile {
        /// The name of the zone.
        zone: String,
        /// The path of the file.
        file: PathBuf,
    },
    /// The memory was added by virtio-mem.
    #[error("the {size} bytes at {gpa:#x} of the guest are memory of virtio-mem{}", Remedy(self.remedy()))]
    VirtioMem {
        /// The address of the mapping in the guest.
        gpa: u64,
        /// The length of the mapping in bytes.
        size: u64,
    },
    /// The VM may get more memory later.
    #[error("the VM can be given more memory, which an image does not permit{}", Remedy(self.remedy()))]
    Hotplug,
    /// The VMM restricts itself by Landlock, which cannot permit an image.
    #[error("the VM has landlock_enable, so its VMM may not open an image{}", Remedy(self.remedy()))]
    Landlock,
    /// Other processes handle devices of the VM, and must map its memory.
    #[error("other processes serve the VM's `{devices}` and map its memory, but clones of an image are private{}", Remedy(self.remedy()))]
    Sharers {
        /// The name of the devices in the configuration.
        devices: &'static str,
    },
    /// The memory file is truncated.
    #[error("the memory file has {has} bytes, and the state describes {needs}{}", Remedy(self.remedy()))]
    Short {
        /// Bytes of the memory file.
        has: u64,
        /// Bytes of all ranges.
        needs: u64,
    },
    /// The image belongs to another VM.
    #[error("the image has {image} bytes, and the snapshot's memory file {snapshot}{}", Remedy(self.remedy()))]
    Image {
        /// Bytes of the image.
        image: u64,
        /// Bytes of the memory file.
        snapshot: u64,
    },
}

impl UnfitMemory {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. }
            | Self::InFile { .. }
            | Self::VirtioMem { .. }
            | Self::Hotplug
            | Self::Landlock
            | Self::Sharers { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    pub(crate) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Missing { .. } | Self::VirtioMem { .. } | Self::InFile { .. } => {
                Some("restore it by `cloud-hypervisor --restore`")
            }
            Self::Hotplug | Self::Landlock | Self::Sharers { .. } => {
                Some("restore it without an image")
            }
            Self::Short { .. } => Some("copy the snapshot again"),
            Self::Image { .. } => Some("load the image from `memory-ranges` of this snapshot"),
            _ => None,
        }
    }
}

impl MemoryLayout {
    /// Checks all numbers before memory is made.
    pub(crate) fn check(&self, config: &VmConfig) -> Result<(), UnfitMemory> {
        let saved: BTreeSet<u64> = self.memory_ranges.data.iter().map(|range| range.gpa).collect();
        for Mapping { zone_id: zone, gpa, virtio_mem, .. } in &self.guest_ram_mappings {
            if !config.has_zone(zone) {
                return Err(UnfitMemory::Zone(zone.clone()));
            }
            let is_missing = !virtio_mem && !saved.contains(gpa);
            if let Some(file) = config.shared_file(zone).filter(|_| is_missing) {
                return Err(UnfitMemory::InFile { zone: zone.clone(), file: file.to_owned() });
            }
        }
        self.check_mappings()?;
        self.in_new_file().map(drop)
    }

    fn check_mappings(&self) -> Result<(), UnfitMemory> {
        for &Mapping { gpa, size, .. } in &self.guest_ram_mappings {
            let is_whole = size > 0 && (gpa | size).is_multiple_of(PAGE);
            if !is_whole || gpa.checked_add(size).is_none() {
                return Err(UnfitMemory::Mapping { gpa, size });
            }
        }
        let mut mappings: Vec<_> = self.guest_ram_mappings.iter().collect();
        let mut refuse_twice = |is_twice: fn(&Mapping, &Mapping) -> bool,
                                key: fn(&Mapping) -> u64| {
            mappings.sort_by_key(|mapping| key(mapping));
            match mappings.windows(2).find(|pair| is_twice(pair[0], pair[1])) {
                Some(pair) => Err(UnfitMemory::Twice { gpa: pair[1].gpa, slot: pair[1].slot }),
                None => Ok(()),
            }
        };
        refuse_twice(|one, next| next.gpa - one.gpa < one.size, |mapping| mapping.gpa)?;
        refuse_twice(|one, next| one.slot == next.slot, |mapping| mapping.slot.into())
    }

    /// Returns the number of bytes of the memory file.
    pub(crate) fn bytes(&self) -> Result<u64, UnfitMemory> {
        Ok(self.contents()?.bytes)
    }

    fn contents(&self) -> Result<Contents, UnfitMemory> {
        let found = &self.memory_ranges.data;
        let senseless = || UnfitMemory::Lengths(found.len());
        let (mut ranges, mut bytes) = (Vec::with_capacity(found.len()), 0_u64);
        for &Range { gpa, length, .. } in found {
            gpa.checked_add(length).ok_or_else(senseless)?;
            ranges.push((gpa, length, bytes));
            bytes = bytes.checked_add(length).ok_or_else(senseless)?;
        }
        if !(1..=i64::MAX as u64).contains(&bytes) {
            return Err(senseless());
        }
        ranges.retain(|&(_, length, _)| length > 0);
        ranges.sort_unstable();
        match ranges.windows(2).find(|pair| pair[1].0 - pair[0].0 < pair[0].1) {
            Some(pair) => Err(UnfitMemory::Ranges { gpa: pair[1].0 }),
            None => Ok(Contents { ranges, bytes }),
        }
    }

    /// Returns the mappings in the memory file itself.
    pub(crate) fn in_memory_file(&self) -> Result<Vec<Placed>, UnfitMemory> {
        let contents = self.contents()?;
        self.guest_ram_mappings
            .iter()
            .map(|mapping| Ok(Placed { slot: mapping.slot, offset: contents.offset(mapping)? }))
            .collect()
    }

    /// Returns the mappings in a new file, in which huge pages begin at the same addresses as in
    /// the guest. Also returns the ranges of the memory file, with their places in the new file.
    pub(crate) fn in_new_file(&self) -> Result<(Vec<Placed>, Vec<ImageRange>), UnfitMemory> {
        let (mut placed, mut ranges) = (Vec::new(), Vec::new());
        let mut end = 0;
        for (mapping, old) in self.guest_ram_mappings.iter().zip(self.in_memory_file()?) {
            let offset = aligned_with(end, mapping.gpa);
            let behind = offset.and_then(|offset| offset.checked_add(mapping.size));
            let (Some(offset), Some(behind)) = (offset, behind) else {
                return Err(UnfitMemory::Lengths(self.memory_ranges.data.len()));
            };
            end = behind;
            placed.push(Placed { slot: mapping.slot, offset });
            ranges.push(ImageRange { from: old.offset, len: mapping.size, to: offset });
        }
        Ok((placed, ranges))
    }

    /// Returns the same part of the state with these places of the mappings. Places and mappings
    /// have the same order.
    pub(crate) fn placed(&self, places: &[Placed]) -> Self {
        let mut moved = self.clone();
        for (mapping, placed) in moved.guest_ram_mappings.iter_mut().zip(places) {
            mapping.file_offset = placed.offset;
        }
        moved
    }

    /// Returns a slot of KVM that no mapping has.
    pub(crate) fn spare_slot(&self) -> Option<u32> {
        let last = self.guest_ram_mappings.iter().map(|mapping| mapping.slot).max();
        last.map_or(Some(0), |slot| slot.checked_add(1))
    }
}

impl Contents {
    /// Returns the offset of a mapping in the memory file, which has all of it in one range.
    fn offset(&self, mapping: &Mapping) -> Result<u64, UnfitMemory> {
        let (gpa, size) = (mapping.gpa, mapping.size);
        if mapping.virtio_mem {
            return Err(UnfitMemory::VirtioMem { gpa, size });
        }
        let before = self.ranges.partition_point(|&(start, ..)| start <= gpa);
        let missing = UnfitMemory::Missing { gpa, size };
        let &(start, length, offset) =
            self.ranges[..before].last().ok_or_else(|| missing.clone())?;
        let into = gpa - start;
        let has_all = length.checked_sub(into).is_some_and(|left| left >= size);
        if has_all { Ok(offset + into) } else { Err(missing) }
    }
}

/// Returns the first offset from `from` on that has the same place in 2 MiB as a guest-physical
/// address.
fn aligned_with(from: u64, gpa: u64) -> Option<u64> {
    let huge = HUGE_PAGE_BYTES as u64;
    let base = from.checked_next_multiple_of(huge)?;
    base.checked_add(gpa % huge)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Makes a layout from ranges and mappings, each an address and a length in MiB.
    fn layout(ranges: &[(u64, u64)], mappings: &[(u64, u64)]) -> MemoryLayout {
        let ranges = ranges.iter().map(|(gpa, len)| json!({"gpa": gpa * MIB, "length": len * MIB}));
        let mappings = mappings.iter().enumerate().map(|(slot, (gpa, size))| {
            json!({"slot": slot, "gpa": gpa * MIB, "size": size * MIB, "zone_id": "mem0", "new": [1]})
        });
        let state = json!({
            "memory_ranges": {"data": ranges.collect::<Vec<_>>()},
            "guest_ram_mappings": mappings.collect::<Vec<_>>(),
            "next_memory_slot": 9,
        });
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn mappings_follow_each_other_in_the_memory_file() {
        let layout = layout(&[(0, 3072), (4096, 5)], &[(0, 3072), (4096, 5)]);
        assert_eq!(layout.bytes(), Ok(3077 * MIB));
        let placed = [Placed { slot: 0, offset: 0 }, Placed { slot: 1, offset: 3072 * MIB }];
        assert_eq!(layout.in_memory_file().unwrap(), placed);
    }

    #[test]
    fn huge_pages_of_a_new_file_begin_where_they_do_in_the_guest() {
        let layout = layout(&[(0, 3), (5, 4)], &[(0, 3), (5, 4)]);
        let (placed, ranges) = layout.in_new_file().unwrap();
        assert_eq!(placed[1], Placed { slot: 1, offset: 5 * MIB });
        let second = ImageRange { from: 3 * MIB, len: 4 * MIB, to: 5 * MIB };
        assert_eq!(ranges[1], second);
    }

    #[test]
    fn mappings_without_their_memory_are_refused() {
        for ranges in [&[(0, 7)][..], &[(1, 8)], &[(0, 4), (4, 4)], &[(16, 8)]] {
            let missing = UnfitMemory::Missing { gpa: 0, size: 8 * MIB };
            assert_eq!(layout(ranges, &[(0, 8)]).in_memory_file(), Err(missing), "{ranges:?}");
        }
        let mut virtio = layout(&[(0, 8)], &[(0, 8)]);
        virtio.guest_ram_mappings[0].virtio_mem = true;
        let refused = UnfitMemory::VirtioMem { gpa: 0, size: 8 * MIB };
        assert_eq!(virtio.in_new_file(), Err(refused));
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let mut long = layout(&[(0, 8), (8, 8)], &[(0, 8)]);
        long.memory_ranges.data[1].length = u64::MAX;
        assert_eq!(long.in_new_file(), Err(UnfitMemory::Lengths(2)));
        assert_eq!(layout(&[], &[]).bytes(), Err(UnfitMemory::Lengths(0)));
        let mut wrapped = layout(&[(0, 8)], &[(0, 8)]);
        wrapped.guest_ram_mappings[0].size = u64::MAX;
        assert!(wrapped.in_new_file().is_err());
        assert!(checked(&wrapped).is_err());
    }

    fn checked(layout: &MemoryLayout) -> Result<(), UnfitMemory> {
        let config = json!({"memory": {"size": 8 * MIB}});
        layout.check(&serde_json::from_value(config).unwrap())
    }

    #[test]
    fn memory_that_is_described_twice_is_refused() {
        checked(&layout(&[(0, 8), (8, 8)], &[(8, 8), (0, 8)])).unwrap();
        let twice = |ranges, mappings| checked(&layout(ranges, mappings)).unwrap_err();
        let same = twice(&[(0, 8)], &[(0, 8); 400]);
        assert_eq!(same, UnfitMemory::Twice { gpa: 0, slot: 1 });
        let overlapping = twice(&[(0, 16)], &[(6, 8), (0, 8)]);
        assert_eq!(overlapping, UnfitMemory::Twice { gpa: 6 * MIB, slot: 0 });
        let ranges = twice(&[(4, 8), (0, 8)], &[(0, 8)]);
        assert_eq!(ranges, UnfitMemory::Ranges { gpa: 4 * MIB });
        let mut slots = layout(&[(0, 16)], &[(0, 8), (8, 8)]);
        slots.guest_ram_mappings[1].slot = 0;
        assert_eq!(checked(&slots), Err(UnfitMemory::Twice { gpa: 8 * MIB, slot: 0 }));
    }

    #[test]
    fn mappings_of_no_whole_pages_and_of_unknown_zones_are_refused() {
        for (gpa, size) in [(0, 0), (1, 4096), (0, 4097), (u64::MAX - 4095, 4096)] {
            let mut odd = layout(&[(0, 8)], &[(0, 8)]);
            (odd.guest_ram_mappings[0].gpa, odd.guest_ram_mappings[0].size) = (gpa, size);
            assert_eq!(checked(&odd), Err(UnfitMemory::Mapping { gpa, size }));
        }
        let mut unknown = layout(&[(0, 8)], &[(0, 8)]);
        unknown.guest_ram_mappings[0].zone_id = "high".to_owned();
        assert_eq!(checked(&unknown), Err(UnfitMemory::Zone("high".to_owned())));
    }

    #[test]
    fn memory_in_a_shared_file_is_refused_with_its_zone() {
        let zone = json!({"id": "mem0", "size": 8 * MIB, "file": "/f", "shared": true});
        let config = json!({"memory": {"size": 0, "zones": [zone]}});
        let config = serde_json::from_value(config).unwrap();
        let refused = layout(&[], &[(0, 8)]).check(&config);
        let in_file = UnfitMemory::InFile { zone: "mem0".to_owned(), file: "/f".into() };
        assert_eq!(refused, Err(in_file));
        // Cloud Hypervisor saves the memory of a file that has no name any more.
        layout(&[(0, 8)], &[(0, 8)]).check(&config).unwrap();
    }

    #[test]
    fn many_ranges_and_mappings_take_little_time() {
        let many: Vec<_> = (0..20_000).map(|nth| (nth, 1)).collect();
        checked(&layout(&many, &many)).unwrap();
    }

    #[test]
    fn everything_else_of_the_state_stays() {
        let layout = layout(&[(0, 8)], &[(0, 8)]);
        let moved = serde_json::to_value(layout.placed(&[Placed { slot: 0, offset: 7 }])).unwrap();
        assert_eq!(moved["next_memory_slot"], 9);
        assert_eq!(moved["guest_ram_mappings"][0]["file_offset"], 7);
        assert_eq!(
            (layout.spare_slot(), &moved["guest_ram_mappings"][0]["new"]),
            (Some(1), &json!([1]))
        );
    }
}
