//! The units of a file that hold data.

use std::fs::File;
use std::ops::Range;

use hugekit_sys::{HUGE_PAGE_BYTES, HeapShortage, data_runs};

use crate::error::WarmError;

/// Bytes of a unit.
pub(crate) const UNIT: u64 = HUGE_PAGE_BYTES as u64;

/// Runs of units, ascending and apart: numbers from the beginning of the file.
#[derive(Debug)]
pub(crate) struct Units {
    pub(crate) runs: Vec<Range<u64>>,
    /// Units of the runs.
    pub(crate) count: u64,
    /// The others.
    pub(crate) holes: u64,
}

impl Units {
    /// Finds the whole units of a file of `bytes` in which any byte lies in no hole; or takes all.
    pub(crate) fn of(file: &File, bytes: u64, fill_holes: bool) -> Result<Self, WarmError> {
        let all = bytes / UNIT;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut next = 0;
        while next < all {
            let run = if fill_holes { Some(0..all * UNIT) } else { data(file, next..all)? };
            let Some(run) = run else { break };
            let units = run.start / UNIT..run.end.div_ceil(UNIT);
            next = units.end;
            match runs.last_mut() {
                Some(last) if last.end == units.start => last.end = units.end,
                _ => {
                    runs.try_reserve(1).map_err(|_| HeapShortage)?;
                    runs.push(units);
                }
            }
        }
        let count = runs.iter().map(|run| run.end - run.start).sum();
        Ok(Self { runs, count, holes: all - count })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count * UNIT
    }

    /// Returns pieces of the runs of at most `window` units, each with whether a hole follows that
    /// is to stay one.
    pub(crate) fn windows(&self, window: u32) -> impl Iterator<Item = (Range<u64>, bool)> {
        let all = self.count + self.holes;
        self.runs.iter().flat_map(move |run| {
            let starts = run.clone().step_by(window as usize);
            starts.map(move |start| {
                let end = run.end.min(start + u64::from(window));
                (start..end, end == run.end && end < all)
            })
        })
    }
}

fn data(file: &File, units: Range<u64>) -> Result<Option<Range<u64>>, WarmError> {
    let found = data_runs::next(file, &(units.start * UNIT..units.end * UNIT));
    found.map_err(|source| WarmError::Read { at: units.start * UNIT, source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn sparse() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(9 * UNIT + 5).unwrap();
        for at in [UNIT + 5, 2 * UNIT - 1, 2 * UNIT, 7 * UNIT, 9 * UNIT] {
            file.write_all_at(&[1], at).unwrap();
        }
        file
    }

    #[test]
    fn units_with_any_data_are_found_and_the_rest_behind_the_last_is_none() {
        let units = Units::of(&sparse(), 9 * UNIT + 5, false).unwrap();
        assert_eq!((units.runs, units.count, units.holes), (vec![1..3, 7..8], 3, 6));
        let all = Units::of(&sparse(), 9 * UNIT + 5, true).unwrap();
        let runs = std::slice::from_ref(&(0..9));
        assert_eq!((&all.runs[..], all.count, all.holes), (runs, 9, 0));
    }

    #[test]
    fn windows_say_whether_a_hole_follows() {
        let units = Units { runs: vec![1..4, 7..9], count: 5, holes: 4 };
        let windows: Vec<_> = units.windows(2).collect();
        assert_eq!(windows, [(1..3, false), (3..4, true), (7..9, false)]);
        let last = Units { runs: vec![0..1, 2..3], count: 2, holes: 2 };
        assert_eq!(last.windows(8).collect::<Vec<_>>(), [(0..1, true), (2..3, true)]);
    }
}
