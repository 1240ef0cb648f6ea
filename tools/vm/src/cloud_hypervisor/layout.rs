//! Where each part of guest memory is: in the snapshot's memory file, and in the file that the VMM
//! maps.
//!
//! Each *mapping* of the VMM has a slot of KVM, a guest-physical address, a length and an offset in
//! a file. The memory file contains *ranges*, one after the other. Here each mapping gets a new
//! offset, in one file for all of them.

use hugekit_image::ImageRange;
use hugekit_sys::{HUGE_PAGE_BYTES, Remedy};
use serde::Deserialize;

/// The part of the VMM's state that describes memory.
#[derive(Debug, Deserialize)]
pub(crate) struct Layout {
    memory_ranges: Ranges,
    guest_ram_mappings: Vec<Mapping>,
}

#[derive(Debug, Deserialize)]
struct Ranges {
    data: Vec<Range>,
}

/// Bytes of the memory file.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Range {
    gpa: u64,
    length: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Mapping {
    slot: u32,
    gpa: u64,
    size: u64,
    #[serde(default)]
    virtio_mem: bool,
}

/// The offset of a mapping's memory in the file that the VMM maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub slot: u32,
    pub offset: u64,
}

/// Memory of a snapshot that is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitMemory {
    /// There is none, or as much as no machine has.
    #[error("the snapshot has {0} ranges of memory, and their lengths make no sense")]
    Lengths(usize),
    /// The memory file lacks a mapping, or has a part of it.
    #[error("the memory file lacks some of the {size} bytes at {gpa:#x} of the guest{}", Remedy(self.remedy()))]
    Missing {
        /// The address of the mapping in the guest.
        gpa: u64,
        /// Its length.
        size: u64,
    },
    /// The memory was added by virtio-mem.
    #[error("the {size} bytes at {gpa:#x} of the guest are memory of virtio-mem{}", Remedy(self.remedy()))]
    VirtioMem {
        /// The address of the mapping in the guest.
        gpa: u64,
        /// Its length.
        size: u64,
    },
    /// The VM may get more memory later.
    #[error("the VM can be given more memory, which an image does not permit{}", Remedy(self.remedy()))]
    Hotplug,
    /// The image is that of another VM.
    #[error("the image has {image} bytes, and the snapshot's memory file {snapshot}{}", Remedy(self.remedy()))]
    Image {
        /// Bytes of the image.
        image: u64,
        /// Bytes of the memory file.
        snapshot: u64,
    },
}

impl UnfitMemory {
    pub(crate) fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Missing { .. } | Self::VirtioMem { .. } => {
                Some("restore it by `cloud-hypervisor --restore`")
            }
            Self::Hotplug => Some("restore it without an image"),
            Self::Image { .. } => Some("load the image from `memory-ranges` of this snapshot"),
            Self::Lengths(_) => None,
        }
    }
}

impl Layout {
    /// Bytes of the memory file.
    pub(crate) fn bytes(&self) -> Result<u64, UnfitMemory> {
        let ranges = &self.memory_ranges.data;
        let sum = ranges.iter().try_fold(0, |sum: u64, range| sum.checked_add(range.length));
        let is_possible = |&bytes: &u64| (1..=i64::MAX as u64).contains(&bytes);
        sum.filter(is_possible).ok_or(UnfitMemory::Lengths(ranges.len()))
    }

    /// The mappings in the memory file itself.
    pub(crate) fn in_memory_file(&self) -> Result<Vec<Placed>, UnfitMemory> {
        self.bytes()?;
        self.guest_ram_mappings
            .iter()
            .map(|mapping| Ok(Placed { slot: mapping.slot, offset: self.offset(mapping)? }))
            .collect()
    }

    /// The mappings in a new file, in which huge pages begin where they do in the guest, and what
    /// of the memory file is where in it.
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

    /// Returns the offset of a mapping in the memory file, which has all of it in one range.
    fn offset(&self, mapping: &Mapping) -> Result<u64, UnfitMemory> {
        let (gpa, size) = (mapping.gpa, mapping.size);
        if mapping.virtio_mem {
            return Err(UnfitMemory::VirtioMem { gpa, size });
        }
        let mut offset = 0;
        for range in &self.memory_ranges.data {
            let into = gpa.checked_sub(range.gpa).filter(|&into| into < range.length);
            if let Some(into) = into.filter(|into| range.length - into >= size) {
                return Ok(offset + into);
            }
            offset += range.length;
        }
        Err(UnfitMemory::Missing { gpa, size })
    }
}

/// The first offset from `from` on that has the same place in 2 MiB as a guest-physical address.
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

    /// Makes the layout of ranges and mappings, each an address and a length in MiB.
    fn layout(ranges: &[(u64, u64)], mappings: &[(u64, u64)]) -> Layout {
        let ranges = ranges.iter().map(|(gpa, len)| json!({"gpa": gpa * MIB, "length": len * MIB}));
        let mappings = mappings.iter().enumerate().map(|(slot, (gpa, size))| {
            json!({"slot": slot, "gpa": gpa * MIB, "size": size * MIB, "zone_id": "mem0"})
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
    }
}
