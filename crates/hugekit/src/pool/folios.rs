//! Which folios nobody uses, in which state, and which of them to hand out.
//!
//! Five sets of runs overlap on purpose, because each answers another question at once: *clean* runs
//! are handed out as they are, *populated* ones (clean or dirty) after a clear, *free* ones (holes
//! too) after the kernel has been asked for memory; *dirty* ones are the scrubber's and *holes* the
//! populate's.
#![allow(unsafe_code)]

use std::ops::Range;

use super::extent::{Clean, Dirty, Extent, Hole, Idle};
use super::runs::Runs;

/// The folios of a pool of which no token is out.
#[derive(Debug)]
pub(super) struct Folios {
    capacity: usize,
    free: Runs,
    populated: Runs,
    clean: Runs,
    dirty: Runs,
    holes: Runs,
}

impl Folios {
    /// So many folios, all of them holes. Only one of these may exist for a file: it mints the
    /// tokens for it.
    pub(super) fn new(capacity: usize) -> Self {
        let mut all = Runs::default();
        all.insert(0..capacity);
        Self {
            capacity,
            free: all.clone(),
            holes: all,
            populated: Runs::default(),
            clean: Runs::default(),
            dirty: Runs::default(),
        }
    }

    pub(super) fn clean(&self) -> usize {
        self.clean.total()
    }

    pub(super) fn dirty(&self) -> usize {
        self.dirty.total()
    }

    pub(super) fn holes(&self) -> usize {
        self.holes.total()
    }

    /// Folios that nobody uses.
    pub(super) fn free(&self) -> usize {
        self.free.total()
    }

    /// The most folios that could be had in one extent.
    pub(super) fn longest_free(&self) -> usize {
        self.free.longest().map_or(0, |run| run.len())
    }

    /// Tokens for one contiguous extent of `count` folios, in ascending order: of clean folios if
    /// there is a run of them, else of clean and dirty ones, else of whatever is free. The shortest
    /// run that suffices is cut, so that long ones stay.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<Idle>> {
        let run = [&self.clean, &self.populated, &self.free]
            .into_iter()
            .find_map(|runs| runs.best_fit(count))?;
        Some(self.take_run(self.cleanest_end(run, count)))
    }

    /// Tokens for every hole.
    pub(super) fn take_holes(&mut self) -> Vec<Extent<Hole>> {
        let holes: Vec<_> = self.holes.within(0..self.capacity).collect();
        let taken = holes.into_iter().flat_map(|run| self.take_run(run));
        let hole = |idle| if let Idle::Hole(hole) = idle { Some(hole) } else { None };
        taken.filter_map(hole).collect()
    }

    /// A token for the first folios, `most` at most, of the longest dirty run: long runs are what
    /// streams well and what grows into long clean ones.
    pub(super) fn take_dirty(&mut self, most: usize) -> Option<Extent<Dirty>> {
        let run = self.dirty.longest()?;
        let run = run.start..run.end.min(run.start + most.max(1));
        self.forget(run.clone());
        // SAFETY: these folios were dirty and no token for them was out; now they are in no set.
        Some(unsafe { Extent::mint(run) })
    }

    /// Takes folios back.
    pub(super) fn put(&mut self, idle: impl Into<Idle>) {
        let (run, populated, state) = match idle.into() {
            Idle::Hole(extent) => (extent.folios(), false, &mut self.holes),
            Idle::Clean(extent) => (extent.folios(), true, &mut self.clean),
            Idle::Dirty(extent) => (extent.folios(), true, &mut self.dirty),
        };
        state.insert(run.clone());
        if populated {
            self.populated.insert(run.clone());
        }
        self.free.insert(run);
        self.check();
    }

    /// Of a run, the end where more is clean already.
    fn cleanest_end(&self, run: Range<usize>, count: usize) -> Range<usize> {
        let (first, last) = (run.start..run.start + count, run.end - count..run.end);
        let clean =
            |part: &Range<usize>| self.clean.within(part.clone()).map(|run| run.len()).sum();
        let (in_first, in_last): (usize, usize) = (clean(&first), clean(&last));
        if in_last > in_first { last } else { first }
    }

    /// Tokens for a run of folios that are all free.
    fn take_run(&mut self, run: Range<usize>) -> Vec<Idle> {
        let mut parts: Vec<Idle> = Vec::new();
        // SAFETY: the folios are in the state of the set that they are taken from, and are in no
        // set once this returns; no token for them is out, because `forget` takes them out of all.
        unsafe {
            parts.extend(
                self.holes.within(run.clone()).map(|part| Extent::<Hole>::mint(part).into()),
            );
            parts.extend(
                self.clean.within(run.clone()).map(|part| Extent::<Clean>::mint(part).into()),
            );
            parts.extend(
                self.dirty.within(run.clone()).map(|part| Extent::<Dirty>::mint(part).into()),
            );
        }
        parts.sort_unstable_by_key(|idle| match idle {
            Idle::Hole(extent) => extent.folios().start,
            Idle::Clean(extent) => extent.folios().start,
            Idle::Dirty(extent) => extent.folios().start,
        });
        self.forget(run);
        parts
    }

    fn forget(&mut self, run: Range<usize>) {
        for runs in
            [&mut self.free, &mut self.populated, &mut self.clean, &mut self.dirty, &mut self.holes]
        {
            runs.remove(run.clone());
        }
        self.check();
    }

    /// In debug builds, that every free folio is in exactly one state and that the sets agree.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let sets = [&self.free, &self.populated, &self.clean, &self.dirty, &self.holes];
        assert!(sets.iter().all(|runs| runs.is_consistent()), "{self:?}");
        assert_eq!(self.clean.total() + self.dirty.total(), self.populated.total(), "{self:?}");
        assert_eq!(self.populated.total() + self.holes.total(), self.free.total(), "{self:?}");
        assert!(self.free.total() <= self.capacity, "{self:?}");
        for run in self.free.within(0..self.capacity) {
            let states = [&self.clean, &self.dirty, &self.holes];
            let parts = states.into_iter().flat_map(|runs| runs.within(run.clone()));
            assert_eq!(parts.map(|part| part.len()).sum::<usize>(), run.len(), "{run:?}: {self:?}");
        }
    }
}
