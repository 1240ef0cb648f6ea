//! Which ranges are collapsed, in which order.

use std::collections::HashMap;

use hugekit::HUGE_PAGE_BYTES;

use crate::pages::Look;

/// By the start of a range, how often it was found split after it had been collapsed.
#[derive(Debug, Default)]
pub(crate) struct History(HashMap<u64, u32>);

impl History {
    /// Has been collapsed: the next time that it is found split counts.
    pub(crate) fn note(&mut self, start: u64) {
        *self.0.entry(start).or_insert(0) += 1;
    }

    /// Forgets ranges that are gone.
    pub(crate) fn keep(&mut self, looks: &[Look]) {
        let is_there = |start: &u64| looks.binary_search_by_key(start, |look| look.start).is_ok();
        self.0.retain(|start, _| is_there(start));
    }

    fn times(&self, start: u64) -> u32 {
        self.0.get(&start).copied().unwrap_or(0)
    }
}

/// The ranges to collapse, and those that were left out for their holes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) ranges: Vec<Look>,
    /// Bytes of ranges that have too many holes.
    pub(crate) sparse: u64,
}

/// Plans a pass. Ranges that are split most often come first, because parent and child write there, and then those with
/// the fewest holes.
pub(crate) fn plan(looks: Vec<Look>, density: f64, history: &History) -> Plan {
    let least = (density.clamp(0.0, 1.0) * HUGE_PAGE_BYTES as f64) as u64;
    let mut plan = Plan::default();
    for look in looks {
        if look.is_huge == Some(true) {
            continue;
        }
        if look.present >= least {
            plan.ranges.push(look);
        } else {
            plan.sparse += look.present;
        }
    }
    let rank = |look: &Look| (history.times(look.start), look.present);
    plan.ranges.sort_by_key(|look| std::cmp::Reverse(rank(look)));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = HUGE_PAGE_BYTES as u64;

    #[test]
    fn plan_has_what_is_dense_and_small_and_begins_where_splits_are() {
        let look = |start: u64, present, is_huge| Look { start: start * HUGE, present, is_huge };
        let mut history = History::default();
        history.note(3 * HUGE);
        let looks = vec![
            look(1, HUGE, Some(true)),
            look(2, HUGE, Some(false)),
            look(3, HUGE - 4096, Some(false)),
            look(4, HUGE / 2, Some(false)),
            look(5, HUGE * 95 / 100, None),
        ];
        let plan = plan(looks, 0.9, &history);
        let starts: Vec<u64> = plan.ranges.iter().map(|look| look.start / HUGE).collect();
        assert_eq!(starts, [3, 2, 5]);
        assert_eq!(plan.sparse, HUGE / 2);
    }

    #[test]
    fn history_keeps_what_is_there() {
        let look = |start: u64| Look { start: start * HUGE, present: HUGE, is_huge: None };
        let mut history = History::default();
        [1, 2, 2, 5].into_iter().for_each(|start| history.note(start * HUGE));
        history.keep(&[look(2), look(3), look(5)]);
        let times = [1, 2, 3, 5].map(|start| history.times(start * HUGE));
        assert_eq!(times, [0, 2, 0, 1]);
    }
}
