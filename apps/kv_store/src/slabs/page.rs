//! The page of a slab: what the slab holds.

use super::SLAB;

/// Bytes of bookkeeping for each slab.
pub const PAGE: usize = 4096;

/// Behind these, a page has a bit for each slot.
pub(super) const PAGE_HEAD: usize = 16;

/// Sizes of slots: four to a doubling, so that less than a fifth is wasted; as many of the smallest as a page has
/// bits for.
pub(super) const SIZES: [usize; 56] = sizes();

const fn sizes() -> [usize; 56] {
    let mut sizes = [0; 56];
    let (mut at, mut base) = (0, 64);
    while at < sizes.len() {
        sizes[at] = base + base / 4 * (1 + at % 4);
        at += 1;
        if at % 4 == 0 {
            base *= 2;
        }
    }
    sizes
}

/// What the kind of a slab of slots is counted from.
pub(super) const FIRST_CLASS: usize = 16;

/// What a slab holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Empty,
    Index,
    /// Slots of this size.
    Slots(usize),
    /// The first of so many slabs that one entry has to itself.
    Large(u32),
    /// Another one of these.
    Rest,
    /// The first of so many slabs of bookkeeping.
    Pages(u32),
}

/// The page of one slab, wherever its bytes are: in the arena or in a snapshot of it.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a>(pub &'a [u8]);

impl<'a> Page<'a> {
    /// Of so manieth slab; one that is beyond these pages is empty.
    pub fn of(pages: &'a [u8], slab: usize) -> Self {
        Self(pages.get(slab * PAGE..(slab + 1) * PAGE).unwrap_or(&[0; PAGE]))
    }

    pub fn kind(self) -> Kind {
        self.known_kind().unwrap_or(Kind::Empty)
    }

    /// The kind; `None` if it is none, which is only in files.
    pub fn known_kind(self) -> Option<Kind> {
        Some(match self.word(0) {
            0 => Kind::Empty,
            1 => Kind::Index,
            2 => Kind::Large(self.word(1)),
            3 => Kind::Rest,
            4 => Kind::Pages(self.word(1)),
            class => Kind::Slots(*SIZES.get((class as usize).checked_sub(FIRST_CLASS)?)?),
        })
    }

    /// Whether bytes of entries lie in its slab.
    pub fn has_entries(self) -> bool {
        matches!(self.kind(), Kind::Slots(_) | Kind::Large(_) | Kind::Rest)
    }

    /// Kind; slabs in a row; slots that are taken; the first word of bits that may have a free one.
    pub(super) fn word(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at * 4..at * 4 + 4].try_into().expect("a word"))
    }

    /// Where in the slab its slots that are taken begin, ascending.
    pub fn taken(self) -> impl Iterator<Item = usize> {
        let size = match self.kind() {
            Kind::Slots(size) => size,
            _ => SLAB,
        };
        let slots = if size < SLAB { SLAB / size } else { 0 };
        let words = self.0[PAGE_HEAD..].chunks_exact(8).take(slots.div_ceil(64)).enumerate();
        words.flat_map(move |(at, word)| {
            let mut left = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                (bit < 64).then(|| {
                    left &= left - 1;
                    (at * 64 + bit) * size
                })
            })
        })
    }
}
