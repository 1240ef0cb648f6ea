//! The plan of a pass: ranges to collapse, and their order.

use std::time::Instant;

use hugekit::HUGE_PAGE_BYTES;

use crate::history::History;
use crate::options::TendOptions;
use crate::pages::Look;

/// The ranges to collapse, and those that were left out for their holes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) ranges: Vec<Look>,
    /// Bytes of ranges with too many holes.
    pub(crate) sparse: u64,
    /// Bytes of ranges whose collapse would be lost soon.
    pub(crate) waiting: u64,
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

/// Plans a pass. The ranges with the fewest holes are taken until the budget is used. Of these, ranges that were split most
/// rarely come first, and then those with the fewest holes. The next child may come before the pass ends: a range that is
/// seldom written stays on its huge page beside that child too, and one that is written often will be split again in any
/// case.
pub(crate) fn plan(
    mut looks: Vec<Look>,
    filling: HoleFilling,
    history: &History,
    now: Instant,
) -> Plan {
    let least = (filling.density * HUGE_PAGE_BYTES as f64) as u64;
    let mut plan = Plan::default();
    looks.retain(|look| look.is_huge != Some(true));
    looks.sort_by_key(|look| std::cmp::Reverse(look.present));
    for look in looks {
        let holes = (HUGE_PAGE_BYTES as u64).saturating_sub(look.present);
        if history.must_wait(look.start, now) {
            plan.waiting += look.present;
        } else if look.present >= least && plan.filled + holes <= filling.budget {
            plan.filled += holes;
            plan.ranges.push(look);
        } else {
            plan.sparse += look.present;
        }
    }
    let rank = |look: &Look| (history.splits(look.start), std::cmp::Reverse(look.present));
    plan.ranges.sort_by_key(rank);
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
    fn plan_has_what_is_dense_and_small_and_begins_where_splits_are_rare() {
        let (mut history, now) = (History::default(), Instant::now());
        let split = look(2, HUGE, Some(false));
        history.collapsed(split, now);
        history.look(&[split], &[], now);
        let looks = vec![
            look(1, HUGE, Some(true)),
            look(2, HUGE, Some(false)),
            look(3, HUGE - 4096, Some(false)),
            look(4, HUGE / 2 - 4096, Some(false)),
            look(5, HUGE * 95 / 100, None),
        ];
        let filling = HoleFilling { density: 0.5, budget: HUGE };
        let plan = plan(looks, filling, &history, now);
        assert_eq!(starts(&plan), [3, 5, 2]);
        assert_eq!(plan.sparse, HUGE / 2 - 4096);
        assert_eq!(plan.filled, 4096 + HUGE - HUGE * 95 / 100);
    }

    #[test]
    fn ranges_with_the_fewest_holes_are_filled_until_the_budget_is_used() {
        let presents = [HUGE - 8192, HUGE - 16384, HUGE, HUGE - 4096];
        let looks = |()| (0..4).map(|n| look(n, presents[n as usize], Some(false))).collect();
        let of = |budget| {
            let filling = HoleFilling { density: 0.5, budget };
            starts(&plan(looks(()), filling, &History::default(), Instant::now()))
        };
        assert_eq!(of(12288), [2, 3, 0]);
        assert_eq!(of(12287), [2, 3]);
        let nothing = HoleFilling::NOTHING;
        let plan = plan(looks(()), nothing, &History::default(), Instant::now());
        assert_eq!(starts(&plan), [2]);
    }

    #[test]
    fn holes_that_were_filled_earlier_count() {
        let options = TendOptions { growth: 0.2, ..TendOptions::default() };
        let of = |all, filled| HoleFilling::of(&options, all, filled).budget;
        assert_eq!([of(1000, 0), of(1100, 100), of(1200, 200), of(100, 200)], [200, 100, 0, 0]);
    }

    #[test]
    fn ranges_whose_collapse_would_be_lost_wait() {
        let (mut history, now) = (History::default(), Instant::now());
        let lost = look(1, HUGE - 4096, Some(false));
        for _ in 0..2 {
            history.collapsed(lost, now);
            history.look(&[lost], &[], now);
        }
        let looks = vec![lost, look(2, HUGE, Some(false))];
        let filling = HoleFilling { density: 0.5, budget: HUGE };
        let of = |now| plan(looks.clone(), filling, &history, now);
        assert_eq!((starts(&of(now)), of(now).waiting), (vec![2], HUGE - 4096));
        let later = now + std::time::Duration::from_secs(6);
        assert_eq!((starts(&of(later)), of(later).waiting), (vec![2, 1], 0));
    }
}
