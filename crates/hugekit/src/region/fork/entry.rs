//! What a region shows at one slot, in one word.

/// The frame is from here on; below it are flags.
const FRAME: u32 = 12;

const WRITABLE: u64 = 1 << 0;
const ACCESSED: u64 = 1 << 1;

/// An entry: its frame is the slot's granule. *Writable*: the kernel lets writes through, because no other
/// region has the frame. *Accessed*: the kernel may have mapped it for the region since it last was taken
/// from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    /// Shows a frame, protected from writes and not accessed.
    pub(super) fn new(frame: u64) -> Self {
        debug_assert!(frame <= u64::MAX >> FRAME, "no entry holds frame {frame:#x}");
        Self(frame << FRAME)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn frame(self) -> u64 {
        self.0 >> FRAME
    }

    pub(super) fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    pub(super) fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// The same for another frame.
    pub(super) fn with_frame(self, frame: u64) -> Self {
        Self(Self::new(frame).0 | self.0 & (WRITABLE | ACCESSED))
    }

    pub(super) fn writable(self) -> Self {
        Self(self.0 | WRITABLE)
    }

    pub(super) fn write_protected(self) -> Self {
        Self(self.0 & !WRITABLE)
    }

    pub(super) fn accessed(self) -> Self {
        Self(self.0 | ACCESSED)
    }

    /// The same, not accessed.
    pub(super) fn old(self) -> Self {
        Self(self.0 & !ACCESSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_part_leaves_the_others() {
        let entry = Entry::new(0x12345).writable().accessed();
        let parts = |entry: Entry| (entry.frame(), entry.is_writable(), entry.is_accessed());
        assert_eq!(parts(Entry::new(7)), (7, false, false));
        assert_eq!(parts(entry), (0x12345, true, true));
        assert_eq!(parts(entry.write_protected()), (0x12345, false, true));
        assert_eq!(parts(entry.old()), (0x12345, true, false));
        assert_eq!(parts(entry.with_frame(u64::MAX >> FRAME)), (u64::MAX >> FRAME, true, true));
        assert_eq!(Entry::from_bits(entry.bits()), entry);
    }
}
