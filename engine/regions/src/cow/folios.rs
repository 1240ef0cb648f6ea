//! The folios of a group, until the pool or the kernel has them again.
//!
//! Their tokens are what the group owes the pool. They are kept outside of the gate, which handlers wait for: to cut a
//! token may allocate, and the allocator may be what a handler has interrupted.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::ForkError;
use super::frames::{GivenUp, Holding, Run};
use crate::pool::{Extent, InUse, Pool, Reserved};

/// The folios that the group must return to the pool.
#[derive(Debug)]
pub(super) struct Folios {
    pool: Pool,
    /// Tokens of those that the pool does not have again, ascending.
    tokens: Mutex<Vec<Extent<InUse>>>,
    /// Shared by readers of frames that others may give up meanwhile.
    reading: RwLock<()>,
}

impl Folios {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, tokens: Mutex::default(), reading: RwLock::default() }
    }

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
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing goes back meanwhile to the pool, which may have holes where it was.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.reading.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread that begins to read from now on does not find given-up frames.
    fn wait_for_readers(&self) {
        drop(self.reading.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Gives back the places of a reservation that has not become a mapping's. Not in the gate.
    pub(super) fn return_unused(&self, holdings: &[Holding]) {
        let piece = |holding: &Holding| {
            let (folios, contents) = holding.whole();
            (self.withdraw(&folios), contents)
        };
        self.return_pieces(holdings.iter().map(piece).collect());
    }

    /// Gives back pieces that no region shows any more. Not in the gate.
    pub(super) fn return_pieces(&self, pieces: Vec<Reserved>) {
        self.wait_for_readers();
        for (extent, contents) in pieces {
            // SAFETY: nothing maps them but the alias; the contents are what was noted.
            unsafe { self.pool.give_back(extent, &contents) };
        }
    }

    /// Gives given-up folios to the pool or to the kernel. Not in the gate.
    pub(super) fn return_given_up(&self, given_up: &GivenUp) -> Result<(), ForkError> {
        self.wait_for_readers();
        given_up.runs.iter().try_for_each(|run| self.return_run(run))
    }

    fn return_run(&self, run: &Run) -> Result<(), ForkError> {
        let extent = self.withdraw(&run.folios);
        if run.to_kernel {
            // SAFETY: nothing maps them but the alias.
            return unsafe { self.pool.give_back_as_holes(extent) }.map_err(ForkError::Kept);
        }
        // SAFETY: nothing maps them but the alias; the contents are what was noted.
        unsafe { self.pool.give_back(extent, &[(run.folios.len(), run.content)]) };
        Ok(())
    }
}
