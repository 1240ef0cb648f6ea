//! The plan of a pass: ranges to collapse, and their order.

use std::collections::HashMap;

use hugekit::HUGE_PAGE_BYTES;

use crate::options::TendOptions;
use crate::pages::Look;

/// For each range, by its start: the number of times that it was found split after a collapse.
#[derive(Debug, Default)]
pub(crate) struct History(HashMap<u64, u32>);

impl History {
    /// Records that the range was collapsed: the next time that it is found split counts.
    pub(crate) fn note(&mut self, start: u64) {
        *self.0.entry(start).or_insert(0) += 1;
    }

    /// Removes ranges that do not exist any more.
    pub(crate) fn keep(&mut self, looks: &[Look]) {
        let is_there = |start: &u64| looks.binary_search_by_key(start, |look| look.start).is_ok();
        self.0.retain(|start, _| is_there(start));
    }

    fn times(&self, start: u64) -> u32 {
        self.0.get(&start).copied().unwrap_or(0)
    }
}

/// The ranges to collapse, and the ranges that were left out because of their holes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) ranges: Vec<Look>,
    /// Bytes of ranges with too many holes.
    pub(crate) sparse: u64,
    /// Bytes of holes in the ranges.
    pub(crate) filled: u64,
}

/// The limits for the filling of holes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoleFilling {
    /// The share of a range that must be populated.
    density: f64,
    /// The limit for all holes together, in bytes.
    budget: u64,
}

impl HoleFilling {
    /// Makes the limits. `all` is the process's memory. `filled` are the bytes of holes of it that
    /// were filled earlier.
    pub(crate) fn of(options: &TendOptions, all: u64, filled: u64) -> Self {
        let own = all.saturating_sub(filled) as f64;
        let budget = (own * options.growth.clamp(0.0, 1.0)) as u64;
        Self { density: options.density.clamp(0.0, 1.0), budget: budget.saturating_sub(filled) }
    }

    /// No hole may be filled.
    pub(crate) const NOTHING: Self = Self { density: 1.0, budget: 0 };
}

/// Plans a pass. Ranges with the fewest holes are chosen until the budget is used. Of the chosen
/// ranges, those that are split most often come first, because parent and child write there. Then
/// come those with the fewest holes.
pub(crate) fn plan(mut looks: Vec<Look>, filling: HoleFilling, history: &History) -> Plan {
    let least = (filling.density * HUGE_PAGE_BYTES as f64) as u64;
    let mut plan = Plan::default();
    looks.retain(|look| look.is_huge != Some(true));
    looks.sort_by_key(|look| std::cmp::Reverse(look.present));
    for look in looks {
        let holes = (HUGE_PAGE_BYTES as u64).saturating_sub(look.present);
        if look.present >= least && plan.filled + holes <= filling.budget {
            plan.filled += holes;
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

    fn look(start: u64, present: u64, is_huge: Option<bool>) -> Look {
        Look { start: start * HUGE, present, is_huge }
    }

    fn starts(plan: &Plan) -> Vec<u64> {
        plan.ranges.iter().map(|look| look.start / HUGE).collect()
    }

    #[test]
    fn plan_has_what_is_dense_and_small_and_begins_where_splits_are() {
        let mut history = History::default();
        history.note(3 * HUGE);
        let looks = vec![
            look(1, HUGE, Some(true)),
            look(2, HUGE, Some(false)),
            look(3, HUGE - 4096, Some(false)),
            look(4, HUGE / 2 - 4096, Some(false)),
            look(5, HUGE * 95 / 100, None),
        ];
        let filling = HoleFilling { density: 0.5, budget: HUGE };
        let plan = plan(looks, filling, &history);
        assert_eq!(starts(&plan), [3, 2, 5]);
        assert_eq!(plan.sparse, HUGE / 2 - 4096);
        assert_eq!(plan.filled, 4096 + HUGE - HUGE * 95 / 100);
    }

    #[test]
    fn ranges_with_the_fewest_holes_are_filled_until_the_budget_is_used() {
        let presents = [HUGE - 8192, HUGE - 16384, HUGE, HUGE - 4096];
        let looks = |()| (0..4).map(|n| look(n, presents[n as usize], Some(false))).collect();
        let of = |budget| {
            let filling = HoleFilling { density: 0.5, budget };
            starts(&plan(looks(()), filling, &History::default()))
        };
        assert_eq!(of(12288), [2, 3, 0]);
        assert_eq!(of(12287), [2, 3]);
        assert_eq!(starts(&plan(looks(()), HoleFilling::NOTHING, &History::default())), [2]);
    }

    #[test]
    fn holes_that_were_filled_earlier_count() {
        let options = TendOptions { growth: 0.2, ..TendOptions::default() };
        let of = |all, filled| HoleFilling::of(&options, all, filled).budget;
        assert_eq!([of(1000, 0), of(1100, 100), of(1200, 200), of(100, 200)], [200, 100, 0, 0]);
    }

    #[test]
    fn history_keeps_what_is_there() {
        let look = |start: u64| look(start, HUGE, None);
        let mut history = History::default();
        [1, 2, 2, 5].into_iter().for_each(|start| history.note(start * HUGE));
        history.keep(&[look(2), look(3), look(5)]);
        let times = [1, 2, 3, 5].map(|start| history.times(start * HUGE));
        assert_eq!(times, [0, 2, 0, 1]);
    }
}
