//! The folios of a group, until they return to the pool or to the kernel.
//!
//! The tokens are the group's debt to the pool. They are outside of the gate, because cutting a token may allocate.
//! Handlers wait for the gate, and a handler may have interrupted the allocator.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::ForkError;
use super::frames::{GivenUpFolios, Holding, Run};
use crate::pool::{Extent, InUse, Pool, Reserved};

/// The folios that a group must return to the pool.
#[derive(Debug)]
pub(super) struct GroupFolios {
    pool: Pool,
    /// The tokens of folios that the pool does not have again, ascending.
    tokens: Mutex<Vec<Extent<InUse>>>,
    /// Shared by readers of frames that other threads may give up at the same time.
    reading: RwLock<()>,
}

impl GroupFolios {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, tokens: Mutex::default(), reading: RwLock::default() }
    }

    /// Adds the tokens of a region, before the region joins the group.
    pub(super) fn add(&self, extents: impl IntoIterator<Item = Extent<InUse>>) {
        let mut tokens = self.lock();
        tokens.extend(extents);
        tokens.sort_unstable_by_key(|token| token.folios().start);
    }

    /// Takes out the token of these folios. They lie side by side and joined the group with one region.
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

    /// While the lock is held, nothing returns to the pool, which may punch the folios.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.reading.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for readers. A thread that starts to read afterwards finds no given-up frames.
    fn wait_for_readers(&self) {
        drop(self.reading.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the places of a reservation that has not become part of a mapping. Not in the gate.
    pub(super) fn return_unused(&self, holdings: &[Holding]) {
        let piece = |holding: &Holding| {
            let (folios, contents) = holding.whole();
            (self.withdraw(&folios), contents)
        };
        self.return_pieces(holdings.iter().map(piece).collect());
    }

    /// Returns pieces that no region shows any more. Not in the gate.
    pub(super) fn return_pieces(&self, pieces: Vec<Reserved>) {
        self.wait_for_readers();
        for (extent, contents) in pieces {
            // SAFETY: nothing maps them but the alias; the contents are what was noted.
            unsafe { self.pool.give_back(extent, &contents) };
        }
    }

    /// Returns given-up folios to the pool or to the kernel. Not in the gate.
    pub(super) fn return_given_up(&self, given_up: &GivenUpFolios) -> Result<(), ForkError> {
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
