//! The free folios, their states, and the choice of folios to allocate.
//!
//! Five sets of runs overlap on purpose, because each answers another question at once: *clean* runs
//! are allocated as they are, *populated* ones (clean or dirty) after a clear, *free* ones (holes
//! too) after the kernel has been asked for memory; *dirty* ones are the scrubber's and *holes* the
//! populate's.
#![allow(unsafe_code)]

use std::ops::Range;

use super::extent::{Clean, Dirty, Extent, Hole, Idle};
use super::runs::Runs;

/// The folios of a pool for which no token exists.
#[derive(Debug)]
pub(super) struct FreeFolios {
    capacity: usize,
    free: Runs,
    populated: Runs,
    clean: Runs,
    dirty: Runs,
    holes: Runs,
}

impl FreeFolios {
    /// Makes the set of `capacity` folios, all of them holes. Only one set may exist for a file,
    /// because it makes the tokens.
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

    /// Returns the number of free folios.
    pub(super) fn free(&self) -> usize {
        self.free.total()
    }

    /// Returns the highest number of folios that one extent could have.
    pub(super) fn longest_free(&self) -> usize {
        self.free.longest().map_or(0, |run| run.len())
    }

    /// Returns tokens for one contiguous extent of `count` folios, in ascending order: clean folios
    /// if there is such a run, otherwise clean and dirty folios, otherwise any free folios. The
    /// shortest sufficient run is cut, so that long runs remain.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<Idle>> {
        let run = [&self.clean, &self.populated, &self.free]
            .into_iter()
            .find_map(|runs| runs.best_fit(count))?;
        Some(self.take_run(self.cleanest_end(run, count)))
    }

    /// Like [`take`](Self::take), for a caller that overwrites them: of dirty folios if there is a run of them,
    /// so that clean ones stay for those who need them; and if no run suffices, of as few runs as do, each of
    /// whole units of `unit` folios but for the last folios of all.
    pub(super) fn take_in_pieces(&mut self, count: usize, unit: usize) -> Option<Vec<Idle>> {
        let in_one = [&self.dirty, &self.populated, &self.free];
        let in_one = in_one.into_iter().find_map(|runs| runs.best_fit(count));
        if let Some(run) = in_one {
            return Some(self.take_run(run.start..run.start + count));
        }
        let (mut left, mut taken) = (count, Vec::new());
        while left > 0 {
            let run = self.free.best_fit(left).or_else(|| self.free.longest());
            let len = run
                .as_ref()
                .map_or(0, |run| if run.len() < left { run.len() / unit * unit } else { left });
            let Some(run) = run.filter(|_| len > 0) else {
                taken.into_iter().for_each(|part: Idle| self.put(part));
                return None;
            };
            taken.extend(self.take_run(run.start..run.start + len));
            left -= len;
        }
        Some(taken)
    }

    /// Returns tokens for every hole.
    pub(super) fn take_holes(&mut self) -> Vec<Extent<Hole>> {
        let holes: Vec<_> = self.holes.within(0..self.capacity).collect();
        let taken = holes.into_iter().flat_map(|run| self.take_run(run));
        let hole = |idle| if let Idle::Hole(hole) = idle { Some(hole) } else { None };
        taken.filter_map(hole).collect()
    }

    /// Returns a token for the first folios, `most` at most, of the longest dirty run: long runs
    /// are what streams well and what grows into long clean ones.
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

    /// Returns the end of a run that has more clean folios.
    fn cleanest_end(&self, run: Range<usize>, count: usize) -> Range<usize> {
        let (first, last) = (run.start..run.start + count, run.end - count..run.end);
        let clean =
            |part: &Range<usize>| self.clean.within(part.clone()).map(|run| run.len()).sum();
        let (in_first, in_last): (usize, usize) = (clean(&first), clean(&last));
        if in_last > in_first { last } else { first }
    }

    /// Returns tokens for a run of free folios.
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
        parts.sort_unstable_by_key(|idle| idle.folios().start);
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

    /// Checks in debug builds that every free folio is in exactly one state and that the sets
    /// agree.
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

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const FOLIOS: usize = 24;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum FolioState {
        Hole,
        Clean,
        Dirty,
        Out,
    }

    fn named(idle: &Idle) -> (Range<usize>, FolioState) {
        match idle {
            Idle::Hole(extent) => (extent.folios(), FolioState::Hole),
            Idle::Clean(extent) => (extent.folios(), FolioState::Clean),
            Idle::Dirty(extent) => (extent.folios(), FolioState::Dirty),
        }
    }

    #[derive(Clone, Debug)]
    enum FolioStep {
        Take(usize),
        TakeDirty(usize),
        TakeInPieces(usize, usize),
        TakeHoles,
        /// Puts the token at this index back, in another state.
        Put(usize, FolioState),
    }

    fn steps() -> impl Strategy<Value = FolioStep> {
        let state =
            prop_oneof![Just(FolioState::Hole), Just(FolioState::Clean), Just(FolioState::Dirty)];
        prop_oneof![
            4 => (1..FOLIOS).prop_map(FolioStep::Take),
            1 => (0..FOLIOS).prop_map(FolioStep::TakeDirty),
            2 => (1..FOLIOS, 1_usize..4).prop_map(|(count, unit)| FolioStep::TakeInPieces(count, unit)),
            1 => Just(FolioStep::TakeHoles),
            5 => (0..FOLIOS, state).prop_map(|(at, state)| FolioStep::Put(at, state)),
        ]
    }

    /// Returns the length of the longest run of folios in one of these states.
    fn longest(model: &[FolioState], states: &[FolioState]) -> usize {
        let runs = model.split(|state| !states.contains(state));
        runs.map(<[FolioState]>::len).max().unwrap_or(0)
    }

    /// Removes tokens from the model, after a check that the model has them.
    fn note_out(model: &mut [FolioState], tokens: &[Idle]) {
        for (folios, state) in tokens.iter().map(named) {
            assert!(model[folios.clone()].iter().all(|&is| is == state), "{folios:?} {state:?}");
            model[folios].fill(FolioState::Out);
        }
    }

    fn put(folios: &mut FreeFolios, token: Idle, state: FolioState) {
        let (range, _) = named(&token);
        // SAFETY: there is no memory behind these tokens, and the old one is forgotten.
        unsafe {
            match state {
                FolioState::Hole => folios.put(Extent::<Hole>::mint(range)),
                FolioState::Clean => folios.put(Extent::<Clean>::mint(range)),
                _ => folios.put(Extent::<Dirty>::mint(range)),
            }
        }
    }

    fn take(folios: &mut FreeFolios, model: &mut [FolioState], count: usize) -> Vec<Idle> {
        use FolioState::{Clean, Dirty, Hole};
        let possible = longest(model, &[Clean, Dirty, Hole]) >= count;
        let Some(tokens) = folios.take(count) else {
            assert!(!possible, "{count} of {model:?}");
            return Vec::new();
        };
        let parts: Vec<_> = tokens.iter().map(named).collect();
        assert!(parts.windows(2).all(|pair| pair[0].0.end == pair[1].0.start), "{parts:?}");
        assert_eq!(parts.iter().map(|(folios, _)| folios.len()).sum::<usize>(), count);
        let has = |state| parts.iter().any(|(_, is)| *is == state);
        assert!(!has(Hole) || longest(model, &[Clean, Dirty]) < count, "needless hole");
        assert!(!(has(Hole) || has(Dirty)) || longest(model, &[Clean]) < count, "needless clear");
        tokens
    }

    proptest! {
        #[test]
        fn folios_under_any_operations_are_like_one_state_each(steps in vec(steps(), 1..80)) {
            let mut folios = FreeFolios::new(FOLIOS);
            let mut model = vec![FolioState::Hole; FOLIOS];
            let mut out: Vec<Idle> = Vec::new();
            for step in steps {
                let taken = match step {
                    FolioStep::Take(count) => take(&mut folios, &mut model, count),
                    FolioStep::TakeDirty(most) => {
                        let taken = folios.take_dirty(most);
                        let dirty = longest(&model, &[FolioState::Dirty]);
                        let len = taken.as_ref().map_or(0, |extent| extent.folios().len());
                        prop_assert_eq!(len, dirty.min(most.max(1)));
                        taken.into_iter().map(Idle::from).collect()
                    }
                    FolioStep::TakeInPieces(count, unit) => {
                        let runs = model.split(|&state| state == FolioState::Out);
                        let units: usize = runs.map(|run| run.len() / unit * unit).sum();
                        let free = [FolioState::Hole, FolioState::Clean, FolioState::Dirty];
                        let in_one = longest(&model, &free);
                        let taken = folios.take_in_pieces(count, unit).unwrap_or_default();
                        let len: usize = taken.iter().map(|part| part.folios().len()).sum();
                        prop_assert!(len == count || len == 0);
                        prop_assert!(len == count || in_one < count && units < count);
                        taken
                    }
                    FolioStep::TakeHoles => folios.take_holes().into_iter().map(Idle::from).collect(),
                    FolioStep::Put(at, state) => {
                        if let Some(at) = at.checked_rem(out.len()) {
                            let token = out.swap_remove(at);
                            model[named(&token).0].fill(state);
                            put(&mut folios, token, state);
                        }
                        Vec::new()
                    }
                };
                note_out(&mut model, &taken);
                out.extend(taken);
                let count = |state| model.iter().filter(|&&is| is == state).count();
                prop_assert_eq!(folios.holes(), count(FolioState::Hole));
                prop_assert_eq!(folios.clean(), count(FolioState::Clean));
                prop_assert_eq!(folios.dirty(), count(FolioState::Dirty));
                prop_assert_eq!(folios.free(), FOLIOS - count(FolioState::Out));
                let free = [FolioState::Hole, FolioState::Clean, FolioState::Dirty];
                prop_assert_eq!(folios.longest_free(), longest(&model, &free));
            }
        }
    }

    #[test]
    fn take_beside_clean_folios_is_from_the_end_with_more() {
        let mut folios = FreeFolios::new(10);
        // SAFETY: there is no memory behind these tokens, and those taken are forgotten.
        unsafe {
            drop(folios.take(10));
            folios.put(Extent::<Dirty>::mint(0..6));
            folios.put(Extent::<Clean>::mint(6..10));
        }
        let parts: Vec<_> = folios.take(5).unwrap().iter().map(named).collect();
        assert_eq!(parts, [(5..6, FolioState::Dirty), (6..10, FolioState::Clean)]);
    }
}
