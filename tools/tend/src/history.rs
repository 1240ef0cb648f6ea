//! The past of each range of 2 MiB that was collapsed: what became of it tells when another collapse is worth it.
//!
//! After a collapse all 512 pages of a range are there. So if pages are missing later, the owner gave them back, as
//! allocators do with free memory. If all are there, but on small pages, a write beside a forked child split them. The
//! owner may give pages back again and again, for example while it loads data. Then each collapse is lost soon, and the next
//! one waits: at first not at all, then twice as long each time.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;

use crate::pages::Look;

const HUGE: u64 = HUGE_PAGE_BYTES as u64;

/// A range that changed within this time after a collapse was not worth it.
const SOON: Duration = Duration::from_secs(5);

/// The first wait, ...
const WAIT: Duration = Duration::from_secs(5);

/// ... which is doubled so often at most: to five minutes.
const DOUBLED: u32 = 6;

/// By the start of a range.
#[derive(Debug, Default)]
pub(crate) struct History {
    ranges: HashMap<u64, Past>,
    /// Bytes of memory, at most, that are zeroes of filled holes.
    filled: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// When it was collapsed, until it was found on small pages.
    collapsed: Option<Instant>,
    /// Counts the times that writes beside a child have split it.
    splits: u32,
    /// Counts the times in a row that it has changed soon.
    losses: u32,
    /// No collapse before.
    wait_until: Option<Instant>,
    /// Bytes of it, at most, that are zeroes of filled holes.
    filled: u64,
}

impl History {
    /// The range was collapsed, and had these pages before.
    pub(crate) fn collapsed(&mut self, look: Look, now: Instant) {
        let past = self.ranges.entry(look.start).or_default();
        let holes = HUGE.saturating_sub(look.present);
        past.collapsed = Some(now);
        past.filled += holes;
        self.filled += holes;
    }

    /// Finds out what became of the ranges, by all looks of a pass in ascending order. Ranges in `huge` were not looked
    /// at, because they are all on huge pages. Others are gone, and forgotten.
    pub(crate) fn look(&mut self, looks: &[Look], huge: &[Range<u64>], now: Instant) {
        self.ranges.retain(|start, past| {
            let found = looks.binary_search_by_key(start, |look| look.start);
            match found.map(|at| looks[at]) {
                Ok(look) => past.look(look, now),
                Err(_) => return huge.iter().any(|range| range.contains(start)),
            }
            true
        });
        self.filled = self.ranges.values().map(|past| past.filled).sum();
    }

    /// Returns how often writes beside a child have split the range.
    pub(crate) fn splits(&self, start: u64) -> u32 {
        self.ranges.get(&start).map_or(0, |past| past.splits)
    }

    /// Returns whether a collapse now is likely to be lost soon.
    pub(crate) fn must_wait(&self, start: u64, now: Instant) -> bool {
        let until = self.ranges.get(&start).and_then(|past| past.wait_until);
        until.is_some_and(|until| now < until)
    }

    /// Bytes of memory, at most, that are zeroes of filled holes.
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }
}

impl Past {
    fn look(&mut self, look: Look, now: Instant) {
        // Pages that are not there are no zeroes.
        self.filled = self.filled.min(look.present);
        let has_holes = look.present < HUGE;
        // An older kernel does not tell huge pages; holes tell.
        let is_split = has_holes || look.is_huge == Some(false);
        let Some(collapsed) = self.collapsed.filter(|_| is_split) else { return };
        self.collapsed = None;
        if !has_holes {
            self.splits += 1;
        } else if now.saturating_duration_since(collapsed) < SOON {
            self.wait_until =
                (self.losses > 0).then(|| now + WAIT * (1 << (self.losses - 1).min(DOUBLED)));
            self.losses += 1;
        } else {
            (self.losses, self.wait_until) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(present: u64, is_huge: Option<bool>) -> Look {
        Look { start: HUGE, present, is_huge }
    }

    /// Seconds from each collapse to the look at the range, and the waits.
    type Row<'a> = (&'a [(u32, Look)], &'a [u64]);

    /// Looks at a range this many seconds after each collapse, and returns for how many it waits then.
    fn waits(found: &[(u32, Look)]) -> Vec<u64> {
        let (mut history, mut now) = (History::default(), Instant::now());
        let mut waits = Vec::new();
        for &(later, look) in found {
            history.collapsed(look, now);
            now += later * SECOND;
            history.look(&[look], &[], now);
            let mut wait = 0;
            while history.must_wait(HUGE, now) {
                (now, wait) = (now + SECOND, wait + 1);
            }
            waits.push(wait);
        }
        waits
    }

    #[test]
    fn range_that_loses_pages_soon_again_and_again_waits_longer_each_time() {
        let lost = look(HUGE - 8192, Some(false));
        let rows: [Row<'_>; 6] = [
            (&[(1, lost)], &[0]),
            (&[(1, lost), (1, lost), (1, lost), (4, lost)], &[0, 5, 10, 20]),
            (&[(1, lost), (1, lost), (6, lost), (1, lost)], &[0, 5, 0, 0]),
            (&[(1, look(HUGE, Some(true))), (1, lost), (1, lost)], &[0, 0, 5]),
            // A write beside a child splits, and says nothing of the next save.
            (&[(1, look(HUGE, Some(false))); 4], &[0; 4]),
            (&[(1, look(HUGE - 4096, None)); 3], &[0, 5, 10]),
        ];
        for (found, expected) in rows {
            assert_eq!(waits(found), expected, "{found:?}");
        }
        let most = *waits(&[(1, lost); 12]).last().unwrap();
        assert_eq!(most, 320, "the wait has a limit");
    }

    #[test]
    fn splits_are_counted_once_for_each_collapse() {
        let (mut history, now) = (History::default(), Instant::now());
        let split = look(HUGE, Some(false));
        for _ in 0..2 {
            history.collapsed(split, now);
            history.look(&[split], &[], now);
            history.look(&[split], &[], now);
        }
        assert_eq!((history.splits(HUGE), history.splits(0)), (2, 0));
    }

    #[test]
    fn zeroes_of_filled_holes_are_counted_until_their_range_loses_them() {
        let (mut history, now) = (History::default(), Instant::now());
        let at = |start: u64, present| Look { start: start * HUGE, present, is_huge: Some(false) };
        history.collapsed(at(1, HUGE - 8192), now);
        history.collapsed(at(1, HUGE - 4096), now);
        history.collapsed(at(2, HUGE / 2), now);
        history.collapsed(at(3, HUGE / 2), now);
        assert_eq!(history.filled(), 12288 + HUGE);
        // The third is gone, and of the second little is left.
        history.look(&[at(1, HUGE), at(2, 4096)], &[], now);
        assert_eq!(history.filled(), 12288 + 4096);
        let whole = HUGE..3 * HUGE;
        history.look(&[], std::slice::from_ref(&whole), now);
        assert_eq!(history.filled(), 12288 + 4096, "not looked at");
        history.look(&[], &[], now);
        assert_eq!(history.filled(), 0);
    }
}
