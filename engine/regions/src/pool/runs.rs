//! A set of numbers kept as maximal runs, by position and by length.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Every operation is logarithmic in the number of runs, plus the runs it touches.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    /// The start of each run, and its length. No two runs touch.
    by_start: BTreeMap<usize, usize>,
    /// The same as (length, start).
    by_len: BTreeSet<(usize, usize)>,
    total: usize,
}

impl Runs {
    /// Returns the count of numbers in the set.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Returns the longest run; of several, the one that starts last.
    pub(super) fn longest(&self) -> Option<Range<usize>> {
        self.by_len.last().map(|&(len, start)| start..start + len)
    }

    /// Returns the shortest run of at least `len`; of several, the first.
    pub(super) fn best_fit(&self, len: usize) -> Option<Range<usize>> {
        self.by_len.range((len, 0)..).next().map(|&(len, start)| start..start + len)
    }

    /// Adds numbers of which none is in the set.
    pub(super) fn insert(&mut self, run: Range<usize>) {
        if run.is_empty() {
            return;
        }
        debug_assert_eq!(self.within(run.clone()).next(), None, "{run:?} is here already");
        self.total += run.len();
        let before = self.by_start.range(..run.start).next_back();
        let before = before.map(|(&start, &len)| start..start + len);
        let before = before.filter(|before| before.end == run.start);
        let after = self.by_start.get(&run.end).map(|&len| run.end..run.end + len);
        let mut whole = run;
        for neighbour in [before, after].into_iter().flatten() {
            self.forget(&neighbour);
            whole = whole.start.min(neighbour.start)..whole.end.max(neighbour.end);
        }
        self.remember(whole);
    }

    /// Takes out whatever of these numbers is in the set.
    pub(super) fn remove(&mut self, run: Range<usize>) {
        let Some((first, last)) = self.touched(&run) else { return };
        for part in self.within(run.clone()).collect::<Vec<_>>() {
            self.total -= part.len();
            let start = self.by_start.range(..=part.start).next_back();
            let (&start, &len) = start.expect("a run that was just found");
            self.forget(&(start..start + len));
        }
        self.remember(first.start..run.start.max(first.start));
        self.remember(run.end.min(last.end)..last.end);
    }

    /// Returns the runs within a range, cut to it, ascending.
    pub(super) fn within(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let reaching_in = self.by_start.range(..range.start).next_back();
        let inside = self.by_start.range(range.start..range.end.max(range.start));
        let runs = reaching_in.into_iter().chain(inside);
        let cut = move |(&start, &len): (&usize, &usize)| {
            start.max(range.start)..(start + len).min(range.end)
        };
        runs.map(cut).filter(|run| !run.is_empty())
    }

    /// Returns the first and the last whole run that have a number in a range.
    fn touched(&self, range: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
        let whole = |part: Range<usize>| {
            let (&start, &len) = self.by_start.range(..=part.start).next_back()?;
            Some(start..start + len)
        };
        let first = whole(self.within(range.clone()).next()?)?;
        let last = whole(range.end - 1..range.end).filter(|last| last.end >= range.end);
        let last = last.or_else(|| whole(self.within(range.clone()).last()?))?;
        Some((first, last))
    }

    fn remember(&mut self, run: Range<usize>) {
        if !run.is_empty() {
            self.by_start.insert(run.start, run.len());
            self.by_len.insert((run.len(), run.start));
        }
    }

    fn forget(&mut self, run: &Range<usize>) {
        self.by_start.remove(&run.start);
        self.by_len.remove(&(run.len(), run.start));
    }

    /// Returns true if both indexes and the total say the same and no two runs touch.
    pub(super) fn is_consistent(&self) -> bool {
        let lengths: BTreeSet<_> =
            self.by_start.iter().map(|(&start, &len)| (len, start)).collect();
        let ends = self.by_start.iter().map(|(start, len)| start + len);
        let apart = ends.zip(self.by_start.keys().skip(1)).all(|(end, &next)| end < next);
        apart && lengths == self.by_len && self.total == self.by_start.values().sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const NUMBERS: usize = 40;

    fn runs_of(model: &[bool]) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for number in (0..model.len()).filter(|&number| model[number]) {
            match runs.last_mut() {
                Some(run) if run.end == number => run.end += 1,
                _ => runs.push(number..number + 1),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn runs_under_any_operations_are_like_one_flag_each(
            steps in vec((any::<bool>(), 0..NUMBERS, 0..NUMBERS), 1..60)
        ) {
            let mut runs = Runs::default();
            let mut model = vec![false; NUMBERS];
            for (insert, a, b) in steps {
                let range = a.min(b)..a.max(b);
                if insert {
                    for number in range.clone().filter(|&number| !model[number]).collect::<Vec<_>>() {
                        runs.insert(number..number + 1);
                    }
                } else {
                    runs.remove(range.clone());
                }
                model[range.clone()].fill(insert);
                let expected = runs_of(&model);
                prop_assert!(runs.is_consistent());
                prop_assert_eq!(runs.within(0..NUMBERS).collect::<Vec<_>>(), expected.clone());
                prop_assert_eq!(
                    runs.longest().map(|run| run.len()),
                    expected.iter().map(Range::len).max()
                );
                for len in 1..NUMBERS {
                    let fitting = expected.iter().filter(|run| run.len() >= len);
                    let shortest = fitting.min_by_key(|run| run.len()).cloned();
                    prop_assert_eq!(runs.best_fit(len), shortest);
                }
                let mut cut = model.clone();
                cut[..range.start].fill(false);
                cut[range.end..].fill(false);
                prop_assert_eq!(runs.within(range).collect::<Vec<_>>(), runs_of(&cut));
            }
        }
    }
}
