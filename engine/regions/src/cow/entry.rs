//! What a region shows at one slot, in one word.

use super::slot::Slot;

/// The frame is from here on; below it is the slot's code.
const FRAME: u32 = 4;

/// The granule that a region shows at a slot, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) frame: u64,
    pub(super) slot: Slot,
}

impl Entry {
    pub(super) fn from_bits(bits: u64) -> Self {
        let code = bits & ((1 << FRAME) - 1);
        Self { frame: bits >> FRAME, slot: Slot::ALL[code as usize] }
    }

    pub(super) fn bits(self) -> u64 {
        debug_assert!(self.frame <= u64::MAX >> FRAME, "no entry holds frame {:#x}", self.frame);
        self.frame << FRAME | self.slot.code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_of_every_slot_and_frame_fits_a_word() {
        for slot in Slot::ALL {
            for frame in [0, 1, 0x12345, u64::MAX >> FRAME] {
                let entry = Entry { frame, slot };
                assert_eq!(Entry::from_bits(entry.bits()), entry);
            }
        }
    }
}
