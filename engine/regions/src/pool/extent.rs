//! Tokens for runs of folios: only the holder of a token has the right to its folios.
//!
//! A token cannot be copied, and its state is a type, so that only one order compiles:
//!
//! ```text
//!            populate                 map                    unmap
//!   Hole ───────────────▶ Clean ───────────────▶ InUse ───────────────▶ Dirty
//!    ▲                      ▲                                            │ │
//!    │                      └────────────────── scrub ───────────────────┘ │
//!    └───────────────────────────────── punch ─────────────────────────────┘
//! ```
//!
//! If a token is dropped, no caller ever gets its folios again. This is right for folios that may
//! still be in use.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// Not populated yet. The kernel will clear the pages.
pub(crate) enum Hole {}
/// Populated, and all bytes are zero.
pub(crate) enum Clean {}
/// Mapped for a user, who reads and writes the folios.
pub(crate) enum InUse {}
/// Not mapped for a user. The folios contain bytes of their last user.
pub(crate) enum Dirty {}

/// Consecutive folios in one state. Numbers are folios of the pool, not bytes.
#[must_use = "folios of which the token is dropped are lost to the pool"]
pub(crate) struct Extent<S> {
    folios: Range<usize>,
    state: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for Extent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(std::any::type_name::<S>()).field(&self.folios).finish()
    }
}

#[allow(unsafe_code)]
impl<S> Extent<S> {
    /// # Safety
    /// The folios are in this state, and no other token names any of them.
    pub(super) const unsafe fn mint(folios: Range<usize>) -> Self {
        Self { folios, state: PhantomData }
    }

    /// Returns the same folios, after what brings them from one state to the other was done.
    ///
    /// # Safety
    /// The folios are in the state `T`.
    pub(super) unsafe fn become_<T>(self) -> Extent<T> {
        Extent { folios: self.folios, state: PhantomData }
    }

    pub(crate) fn folios(&self) -> Range<usize> {
        self.folios.clone()
    }

    /// Splits off all folios after the first `count`, which stay.
    ///
    /// # Panics
    /// If there are fewer folios than `count`.
    pub(crate) fn split_off(&mut self, count: usize) -> Self {
        let middle = self.folios.start + count;
        assert!(middle <= self.folios.end, "an extent has no folio behind its end");
        let tail = middle..std::mem::replace(&mut self.folios.end, middle);
        Self { folios: tail, state: PhantomData }
    }

    /// Like [`join`](Self::join), in place.
    ///
    /// # Panics
    /// If `next` does not begin where this ends.
    pub(crate) fn append(&mut self, next: Self) {
        let nothing = self.split_off(self.folios.len());
        *self = std::mem::replace(self, nothing).join(next);
    }

    /// Joins the tokens of two adjacent extents.
    ///
    /// # Panics
    /// If `next` does not begin where this ends.
    pub(crate) fn join(self, next: Self) -> Self {
        assert_eq!(self.folios.end, next.folios.start, "only neighbours make one extent");
        Self { folios: self.folios.start..next.folios.end, state: PhantomData }
    }
}

/// The content of a folio that is no longer in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: no fault has populated the folio.
    Hole,
    /// Zeroes, because no user ever saw the folio.
    Clean,
    /// Bytes of its last user, or of the one before.
    Dirty,
    /// Nothing: the memory failed. No caller gets the folio again.
    Broken,
}

/// Folios that no thread uses, with their state.
#[derive(Debug)]
pub(crate) enum Idle {
    Hole(Extent<Hole>),
    Clean(Extent<Clean>),
    Dirty(Extent<Dirty>),
}

impl Idle {
    pub(crate) fn folios(&self) -> Range<usize> {
        match self {
            Self::Hole(extent) => extent.folios(),
            Self::Clean(extent) => extent.folios(),
            Self::Dirty(extent) => extent.folios(),
        }
    }

    /// Returns the folios as an extent in use that no user has been shown.
    #[allow(unsafe_code)]
    pub(super) fn reserved(self) -> Extent<InUse> {
        // SAFETY: the token that named these folios ends here; nothing but the alias maps them.
        unsafe { Extent::mint(self.folios()) }
    }

    pub(crate) fn content(&self) -> Content {
        match self {
            Self::Hole(_) => Content::Hole,
            Self::Clean(_) => Content::Clean,
            Self::Dirty(_) => Content::Dirty,
        }
    }
}

impl From<Extent<Hole>> for Idle {
    fn from(extent: Extent<Hole>) -> Self {
        Self::Hole(extent)
    }
}

impl From<Extent<Clean>> for Idle {
    fn from(extent: Extent<Clean>) -> Self {
        Self::Clean(extent)
    }
}

impl From<Extent<Dirty>> for Idle {
    fn from(extent: Extent<Dirty>) -> Self {
        Self::Dirty(extent)
    }
}
