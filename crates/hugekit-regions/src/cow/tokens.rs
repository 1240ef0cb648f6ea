//! The tokens of a group's folios: what it owes the pool. Kept outside of the gate, which handlers wait for: to cut a
//! token may allocate, and the allocator may be what a handler has interrupted.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pool::{Extent, InUse};

/// Tokens of folios that the pool does not have again, ascending.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<Vec<Extent<InUse>>>);

impl Tokens {
    /// Before a region with these folios joins the group.
    pub(super) fn add(&self, extents: impl IntoIterator<Item = Extent<InUse>>) {
        let mut tokens = self.lock();
        tokens.extend(extents);
        tokens.sort_unstable_by_key(|token| token.folios().start);
    }

    /// The token of folios that lie side by side in what came with one region.
    pub(super) fn withdraw(&self, folios: &Range<usize>) -> Extent<InUse> {
        let mut tokens = self.lock();
        let at = tokens.partition_point(|token| token.folios().end <= folios.start);
        let mut before = tokens.remove(at);
        let mut taken = before.split_off(folios.start - before.folios().start);
        let after = taken.split_off(folios.len());
        let left = [before, after].into_iter().filter(|token| !token.folios().is_empty());
        tokens.splice(at..at, left);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Extent<InUse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
