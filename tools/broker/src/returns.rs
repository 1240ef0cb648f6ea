//! The return of the memory of ended leases. This file makes no system call.
//!
//! The kernel may hold a page of a file that is gone: in a pipe, for VFIO, for `io_uring`. No
//! counter identifies these pages. The broker sees one number: `elsewhere`, the used memory minus
//! the units and the live leases, each with its full size. Three rules derive from it the bytes of
//! ended leases that still count:
//!
//! 1. A lease that has ended counts until `elsewhere` is no more than before its end, or than the baseline.
//! 2. The baseline is `elsewhere` at a time when no ended lease was missing. Without the baseline,
//!    a lease that had holes would count for ever: `elsewhere` was lower before its end, because
//!    the broker counts the lease with its full size.
//! 3. A hole lowers `elsewhere` in the same way as a returned page. So an account that has a live
//!    lease with holes is not credited: as many bytes of its ended leases continue to count as its
//!    leases with holes have.
//!
//! The notice of a hole comes after the hole, and the broker may read memory in between. So ended
//! leases that have returned are remembered, uncounted, while their account has live leases, up to
//! the size of these: rule 3 then finds them. Leases that ended when the least memory was used are
//! kept first, because memory that holes had hidden appears first for them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::leased::CountedLease;

/// The time that `elsewhere` must be lower before the baseline is lowered. It is longer than the
/// delay of a notice of a hole.
const SETTLED: Duration = Duration::from_secs(2);

/// The bytes of the live leases of an account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    pub(crate) all: u64,
    /// Bytes of those leases that ever had holes.
    pub(crate) punched: u64,
}

/// A lease whose file is gone.
#[derive(Debug)]
struct Ended {
    lease: CountedLease,
    /// The value of `elsewhere` before its end.
    before: i128,
    is_back: bool,
    /// True if the lease counts against its account's quota.
    counts: bool,
}

/// Ended leases whose memory may not have returned.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    ended: Vec<Ended>,
    baseline: Option<i128>,
    /// The time since which `elsewhere` has been lower than the baseline.
    lower_since: Option<Instant>,
}

impl Returns {
    /// Records that a file is gone. Memory that the holes of a lease had hidden appears from now
    /// on, so the other ended leases of its account are checked again.
    pub(crate) fn record_end(&mut self, lease: CountedLease, was_punched: bool, before: i128) {
        if was_punched {
            let own = self.ended.iter_mut().filter(|ended| ended.lease.account == lease.account);
            own.for_each(|ended| (ended.is_back, ended.counts) = (false, true));
        }
        self.ended.push(Ended { lease, before, is_back: false, counts: true });
    }

    /// Finds the ended leases that have returned, with the live leases of the accounts.
    pub(crate) fn look(&mut self, elsewhere: i128, live: &BTreeMap<u32, Live>, now: Instant) {
        let baseline = self.baseline.unwrap_or(elsewhere);
        self.ended.sort_by_key(|ended| ended.before);
        let mut left = live.clone();
        self.ended.retain_mut(|ended| {
            let left = left.entry(ended.lease.account).or_default();
            let has_holes = live.get(&ended.lease.account).is_some_and(|live| live.punched > 0);
            let is_back = elsewhere <= ended.before.max(baseline);
            ended.is_back = is_back || (ended.is_back && !has_holes);
            ended.counts = !ended.is_back || left.punched > 0;
            let is_kept = !ended.is_back || left.all > 0;
            if ended.is_back {
                left.punched = left.punched.saturating_sub(ended.lease.bytes);
                left.all = left.all.saturating_sub(ended.lease.bytes);
            }
            is_kept
        });
        let has_holes = live.values().any(|live| live.punched > 0);
        self.settle(elsewhere.max(baseline), elsewhere, has_holes, now);
    }

    /// Raises the baseline to the higher number at once. Lowers it only if all leases have returned
    /// and no hole can be the reason.
    fn settle(&mut self, higher: i128, elsewhere: i128, has_holes: bool, now: Instant) {
        if !self.ended.iter().all(|ended| ended.is_back) {
            self.lower_since = None;
            return;
        }
        let since = self.lower_since.unwrap_or(now);
        self.lower_since = (elsewhere < higher && !has_holes).then_some(since);
        let is_settled = self.lower_since.is_some() && now - since >= SETTLED;
        self.baseline = Some(if is_settled { elsewhere } else { higher });
    }

    /// Returns the ended leases that count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &CountedLease> {
        self.ended.iter().filter(|ended| ended.counts).map(|ended| &ended.lease)
    }
}

#[cfg(test)]
mod tests {
    use hugekit_lease::protocol::Payer;
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::Ledger;
    use crate::options::Quotas;
    use crate::watch::Watched;

    /// Pages of a lease.
    const UNIT: u64 = 4;
    const USER: u32 = 1000;
    /// The memory of other programs.
    const OTHERS: u64 = 7;

    /// A lease's pages in its file: how many, and of these, how many the kernel holds.
    #[derive(Clone, Copy, Debug)]
    struct File {
        present: u64,
        held: u64,
    }

    /// A machine and one user who leases, holds pages, makes holes and ends leases.
    struct ModelMachine {
        ledger: Ledger,
        files: BTreeMap<i32, File>,
        next: i32,
        /// Pages that the kernel holds of ended leases, and of files that go on.
        kept: u64,
        kept_of_live: u64,
        /// Holes that are made, and not told yet.
        untold: Vec<i32>,
        seen: i128,
        now: Instant,
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Lease,
        Hold(usize),
        Punch(usize),
        Tell,
        End(usize),
        Release,
        Look,
    }

    impl ModelMachine {
        fn new() -> Self {
            let mut machine = Self {
                ledger: Ledger::new(Quotas::default()),
                files: BTreeMap::new(),
                next: 0,
                kept: 0,
                kept_of_live: 0,
                untold: Vec::new(),
                seen: 0,
                now: Instant::now(),
            };
            machine.look();
            machine
        }

        fn elsewhere(&self) -> i128 {
            let present: u64 = self.files.values().map(|file| file.present).sum();
            let taken = OTHERS + present + self.kept + self.kept_of_live;
            i128::from(taken) - i128::from(self.ledger.leased())
        }

        fn look(&mut self) {
            let is_told = self.untold.is_empty();
            self.now += if is_told { SETTLED } else { Duration::from_millis(1) };
            self.seen = self.elsewhere();
            self.ledger.reconcile(Some(self.seen), self.now);
        }

        fn nth(&self, nth: usize) -> Option<i32> {
            let keys: Vec<_> = self.files.keys().copied().collect();
            (!keys.is_empty()).then(|| keys[nth % keys.len()])
        }

        fn lease(&mut self) -> i32 {
            let claim = self.ledger.claim(USER, UNIT).unwrap();
            self.ledger.record_lease(claim, (USER, 1), Watched::of(self.next), Payer::Broker);
            self.files.insert(self.next, File { present: UNIT, held: 0 });
            self.next += 1;
            self.next - 1
        }

        fn hold(&mut self, lease: i32) {
            let file = self.files.get_mut(&lease).unwrap();
            file.held = (file.held + 1).min(file.present);
        }

        fn punch(&mut self, lease: i32) {
            let file = self.files.get_mut(&lease).unwrap();
            self.kept_of_live += file.held;
            *file = File { present: 0, held: 0 };
            self.untold.push(lease);
        }

        fn tell(&mut self) {
            for lease in std::mem::take(&mut self.untold) {
                self.ledger.punched(Watched::of(lease));
            }
        }

        fn end(&mut self, lease: i32) {
            // The notice of a hole is there before that of the end.
            self.tell();
            self.kept += self.files.remove(&lease).unwrap().held;
            self.ledger.record_end(Watched::of(lease), Some(self.seen));
        }

        fn act(&mut self, act: Act) {
            let lease = match act {
                Act::Hold(nth) | Act::Punch(nth) | Act::End(nth) => self.nth(nth),
                _ => None,
            };
            match (act, lease) {
                (Act::Lease, _) => drop(self.lease()),
                (Act::Hold(_), Some(lease)) => self.hold(lease),
                (Act::Punch(_), Some(lease)) => self.punch(lease),
                (Act::Tell, _) => self.tell(),
                (Act::End(_), Some(lease)) => self.end(lease),
                (Act::Release, _) => (self.kept, self.kept_of_live) = (0, 0),
                (Act::Look, _) => self.look(),
                _ => {}
            }
        }
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            Just(Act::Lease),
            (0..4_usize).prop_map(Act::Hold),
            (0..4_usize).prop_map(Act::Punch),
            Just(Act::Tell),
            (0..4_usize).prop_map(Act::End),
            Just(Act::Release),
            Just(Act::Look),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// In whatever order, and whenever the broker looks: what the kernel holds of ended leases counts, and nothing
        /// counts when all is back.
        #[test]
        fn pages_that_are_held_count_and_those_that_are_back_do_not(
            acts in prop::collection::vec(act(), 0..40)
        ) {
            let mut machine = ModelMachine::new();
            for act in acts {
                machine.act(act);
                if machine.untold.is_empty() {
                    machine.look();
                    prop_assert!(machine.ledger.unreturned() >= machine.kept, "{act:?}");
                }
            }
            while let Some(lease) = machine.nth(0) {
                machine.end(lease);
            }
            machine.act(Act::Release);
            machine.look();
            machine.look();
            prop_assert_eq!(machine.ledger.unreturned(), 0);
        }
    }

    /// The attack: the pages of an ended lease are held, and holes in another one make as many free.
    #[test]
    fn holes_are_no_credit_for_pages_that_are_held() {
        let mut machine = ModelMachine::new();
        let (held, hollow) = (machine.lease(), machine.lease());
        (0..UNIT).for_each(|_| machine.hold(held));
        machine.look();
        machine.punch(hollow);
        // Before the notice of the hole, and after it.
        for _ in 0..2 {
            machine.look();
            machine.tell();
        }
        machine.end(held);
        machine.look();
        assert_eq!(machine.ledger.used(USER), 2 * UNIT);
        // Whose pages are held cannot be told now: both count.
        machine.end(hollow);
        machine.look();
        assert_eq!(machine.ledger.used(USER), 2 * UNIT);
        machine.act(Act::Release);
        machine.look();
        assert_eq!(machine.ledger.used(USER), 0);
    }

    #[test]
    fn hole_that_is_made_after_the_end_is_no_credit_even_if_its_notice_comes_late() {
        let mut machine = ModelMachine::new();
        let (held, hollow) = (machine.lease(), machine.lease());
        machine.hold(held);
        machine.look();
        machine.end(held);
        machine.look();
        assert_eq!(machine.ledger.used(USER), 2 * UNIT);
        machine.punch(hollow);
        machine.look();
        machine.tell();
        machine.look();
        assert_eq!(machine.ledger.used(USER), 2 * UNIT);
    }

    /// A program that makes holes, as a pool does, gets its quota back.
    #[test]
    fn lease_with_holes_that_is_back_counts_no_more() {
        let mut machine = ModelMachine::new();
        let (hollow, other) = (machine.lease(), machine.lease());
        machine.punch(hollow);
        machine.tell();
        machine.look();
        machine.end(hollow);
        machine.look();
        assert_eq!(machine.ledger.used(USER), UNIT);
        machine.end(other);
        machine.look();
        assert_eq!(machine.ledger.used(USER), 0);
    }
}
