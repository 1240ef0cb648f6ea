//! A row of the table of formats: where an entry keeps its frame, and the meaning of its bits.

use core::fmt::Debug;
use core::hash::Hash;
use core::ops::{BitAnd, BitOr, BitXor, Not};

/// A format of page-table entries: a row of the table, as a type, so that code over it is compiled
/// for this row alone and its masks are constants.
pub trait Format: Clone + Copy + Debug + Eq + Hash + Send + Sync + 'static {
    /// An entry's width.
    type Bits: Bits;
    /// The row.
    const LAYOUT: Layout;
}

/// The bits of a format: a row of the table. Masks are of the lowest bits of 64, for entries of 32 bits as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The format's name.
    pub name: &'static str,
    /// The definition of the bits: the architecture's manual, and the kernel's header for those that the manual leaves
    /// to software.
    pub source: &'static str,
    /// Bytes of a page, as a power of two.
    pub page_shift: u32,
    /// The place of the frame number.
    pub frame: Frame,
    /// An entry that maps nothing and never did.
    pub empty: u64,
    /// Set in every entry that maps a page; one bit.
    pub present: u64,
    /// Set in entries that map memory of no folio, such as a device; 0 if there is no such bit.
    pub special: u64,
    /// The bits that an entry of a readable page of user space has set beyond the flags below, `present`
    /// among them.
    pub base: u64,
    /// The page was used.
    pub accessed: Flag,
    /// The page was written.
    pub dirty: Flag,
    /// The page may be written.
    pub write: Flag,
    /// The hardware lets a store through: where software keeps `dirty`, only once the page is both
    /// writable and dirty, so that the first store is noticed.
    pub store: Flag,
    /// The hardware itself turns `store` on at the first store to a writable page, instead of
    /// setting `dirty`: a page is then dirty by either.
    pub store_is_dirty: bool,
    /// The page was written since its owner began to track soft-dirty bits.
    pub soft_dirty: Flag,
    /// userfaultfd protects the page from writes.
    pub uffd_wp: Flag,
}

/// The place of a frame number in an entry: `low_bits` of the number from bit `low_shift` on, and, in formats that ran
/// out of room, the `high_bits` above those from bit `high_shift` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The entry's bit that holds the frame number's bit 0. One frame further is an entry larger by
    /// `1 << low_shift`, up to the field's end.
    pub low_shift: u32,
    /// Bits there.
    pub low_bits: u32,
    /// The entry's bit that holds the frame number's bit `low_bits`.
    pub high_shift: u32,
    /// Bits there; 0 if the frame number is in one piece.
    pub high_bits: u32,
}

impl Frame {
    pub(crate) const fn one_piece(low_shift: u32, low_bits: u32) -> Self {
        Self { low_shift, low_bits, high_shift: 0, high_bits: 0 }
    }

    /// The largest frame number.
    #[must_use]
    pub const fn max(self) -> u64 {
        low_ones(self.low_bits + self.high_bits)
    }

    /// The frame number of an entry.
    #[inline]
    #[must_use]
    pub const fn decode(self, entry: u64) -> u64 {
        let low = entry >> self.low_shift & low_ones(self.low_bits);
        let high = entry >> self.high_shift & low_ones(self.high_bits);
        low | high << self.low_bits
    }

    /// An entry with this frame number and nothing else. Bits beyond [`max`](Self::max) are lost.
    #[inline]
    #[must_use]
    pub const fn encode(self, frame: u64) -> u64 {
        let low = frame & low_ones(self.low_bits);
        let high = frame >> self.low_bits & low_ones(self.high_bits);
        low << self.low_shift | high << self.high_shift
    }

    /// The number of frames from this one on whose entries differ by `1 << low_shift` each, this one included: up to
    /// the carry out of the low piece.
    #[inline]
    pub(crate) const fn until_carry(self, frame: u64) -> u64 {
        low_ones(self.low_bits) - (frame & low_ones(self.low_bits)) + 1
    }
}

const fn low_ones(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// A property of an entry: the bit that tells, and the bits that change with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The one bit that tells; 0 in formats without the property.
    pub tells: u64,
    /// Set with the property, cleared without it.
    pub on: u64,
    /// Cleared with the property, set without it.
    pub off: u64,
}

impl Flag {
    /// A property this format does not know: nothing has it, and giving it changes nothing.
    pub(crate) const NONE: Self = Self { tells: 0, on: 0, off: 0 };

    /// A bit that is set with the property.
    pub(crate) const fn bit(bit: u32) -> Self {
        Self { tells: 1 << bit, on: 1 << bit, off: 0 }
    }

    /// A bit that is set without it.
    pub(crate) const fn inverted(bit: u32) -> Self {
        Self { tells: 1 << bit, on: 0, off: 1 << bit }
    }

    /// Another bit that is set along with the property.
    pub(crate) const fn and_bit(self, bit: u32) -> Self {
        Self { on: self.on | 1 << bit, ..self }
    }

    /// Another bit that is cleared along with the property and set without it.
    pub(crate) const fn and_inverted(self, bit: u32) -> Self {
        Self { off: self.off | 1 << bit, ..self }
    }

    /// The bit that tells, if it is set without the property.
    pub(crate) const fn tells_by_absence(self) -> u64 {
        self.tells & self.off
    }

    /// Every bit that changes.
    pub(crate) const fn all(self) -> u64 {
        self.on | self.off
    }
}

impl Layout {
    /// Bits that tell by being absent. An entry with these flipped has a bit set for each property.
    pub(crate) const fn inverted(&self) -> u64 {
        self.accessed.tells_by_absence()
            | self.dirty.tells_by_absence()
            | self.write.tells_by_absence()
            | self.soft_dirty.tells_by_absence()
            | self.uffd_wp.tells_by_absence()
    }
}

/// The integer that holds an entry: `u32` or `u64`.
pub trait Bits:
    Copy
    + Debug
    + Eq
    + Hash
    + Send
    + Sync
    + Into<u64>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + sealed::Sealed
    + 'static
{
    /// The lowest bits of `bits`.
    fn truncated(bits: u64) -> Self;
    /// The sum, the carry out of the highest bit lost.
    fn plus(self, other: Self) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

impl Bits for u32 {
    #[inline]
    fn truncated(bits: u64) -> Self {
        bits as Self
    }

    #[inline]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}

impl Bits for u64 {
    #[inline]
    fn truncated(bits: u64) -> Self {
        bits
    }

    #[inline]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}
