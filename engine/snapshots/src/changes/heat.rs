//! Granules that change in each state. To record their writes costs one fault per state and shows nothing new.

use std::ops::Range;

/// A granule that changed in this many successive states is no longer watched, and counts as changed.
const HOT: u8 = 2;
/// After this many states, the granule is watched for one state, to see whether it is still written.
const LOOKED_AT: u8 = 8;

/// For each granule, the number of successive states in which it has changed or was not watched.
#[derive(Debug)]
pub(super) struct Heat(Vec<u8>);

impl Heat {
    /// Makes the heat of this many granules, of which nothing is known.
    pub(super) fn unknown(granules: usize) -> Self {
        Self(vec![0; granules])
    }

    /// Returns the heat after one more state.
    pub(super) fn after(mut self, changed: impl Iterator<Item = Range<usize>>) -> Self {
        let mut next = 0;
        for granules in changed {
            self.0[next..granules.start].fill(0);
            for count in &mut self.0[granules.clone()] {
                *count = if *count == LOOKED_AT { HOT } else { *count + 1 };
            }
            next = granules.end;
        }
        self.0[next..].fill(0);
        self
    }

    /// Returns true if the granule is hot: its writes are not worth a fault in this state.
    pub(super) fn is_hot(&self, granule: usize) -> bool {
        (HOT..LOOKED_AT).contains(&self.0[granule])
    }

    /// Returns the number of hot granules.
    pub(super) fn count_hot(&self) -> usize {
        (0..self.0.len()).filter(|&granule| self.is_hot(granule)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granule_that_always_changes_is_let_be_and_looked_at_again() {
        let mut heat = Heat::unknown(3);
        let mut hot = Vec::new();
        for _ in 0..16 {
            heat = heat.after(std::iter::once(1..2));
            hot.push(heat.is_hot(1));
            assert!(!heat.is_hot(0) && !heat.is_hot(2));
        }
        let once = [true, true, true, true, true, true, false];
        let expected = [false].into_iter().chain(once).chain(once);
        assert!(hot.into_iter().take(15).eq(expected));
    }

    #[test]
    fn granule_that_rests_once_is_watched_again() {
        let heat = Heat::unknown(2).after(std::iter::once(0..2)).after(std::iter::once(0..2));
        assert_eq!(heat.count_hot(), 2);
        let heat = heat.after(std::iter::once(1..2));
        assert_eq!((heat.is_hot(0), heat.is_hot(1)), (false, true));
        assert_eq!(heat.after(std::iter::empty()).count_hot(), 0);
    }
}
