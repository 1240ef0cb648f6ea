//! The measurement of one class: it finds the fastest candidate.
//!
//! A class consists of similar operations: one method, in or out of the cache, of about one length.
//! Every word of a measurement is a hint. Threads and signal handlers may change it at the same
//! time, and it still names a candidate. Each candidate produces the same bytes. So all accesses
//! are relaxed.

use std::sync::atomic::{AtomicU32, Ordering};

use super::samples::{Samples, TimePerByte};

/// The most candidates of a method. `candidates.rs` asserts that each table of routines fits.
pub(super) const MAX_CANDIDATES: usize = 12;

/// Rounds of all candidates before a measurement is settled: the number of samples.
const ROUNDS: u32 = 3;

/// The longest interval between trials if a routine that streams is in charge of bytes that a cache
/// may hold, as a logarithm. The stores of this routine keep the bytes out of the cache, so only
/// trials of other candidates can show that the cache would hold them.
const WARY: u32 = 5;

/// A candidate that costs a quarter more than the best candidate is hopeless: the best candidate
/// gets three of four of its later turns.
const HOPELESS: (u64, u64) = (1, 4);

/// The rules by which the candidates of a class are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComparisonRules {
    /// Until the class is settled, one of this many units is a trial. Logarithm.
    pub(super) patience: u32,
    /// True if a cache may hold the bytes. Then each candidate has two trials in a row, and the
    /// second trial counts, because it finds in the cache the bytes that the first trial left
    /// there. A candidate that stores through the cache counts by its best sample, because code
    /// that evicts the bytes between the two trials makes the candidate seem slower.
    pub(super) may_be_held: bool,
    /// After the class is settled, one of this many units is a trial: the first number at first,
    /// the second number after rounds that changed nothing. Logarithms.
    pub(super) intervals: (u32, u32),
    /// The margin by which another candidate must win to take charge. The prior needs no margin.
    /// Otherwise noise in the first samples would exclude the prior although it is as fast.
    pub(super) inertia: (u64, u64),
    /// The margin by which a routine that streams must win, as a fraction: its reader finds nothing
    /// in the cache.
    pub(super) readers_share: (u64, u64),
}

/// The candidates that a class compares, and the rules of the comparison. The value is small,
/// because a signal handler has it on its stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    rules: &'static ComparisonRules,
    /// The candidate in charge until there is a verdict.
    prior: usize,
    /// Bits, one per candidate, set if the candidate is compared.
    among: u16,
    /// Bits, one per candidate, set if the candidate streams.
    streaming: u16,
}

const _: () = assert!(MAX_CANDIDATES <= u16::BITS as usize, "each candidate has a bit");

impl Comparison {
    /// Makes a comparison of two or more candidates, by their indices.
    pub(super) fn new(
        rules: &'static ComparisonRules,
        prior: usize,
        among: impl Iterator<Item = usize>,
        streams: impl Fn(&usize) -> bool,
    ) -> Self {
        let mut this = Self { rules, prior, among: 0, streaming: 0 };
        for index in among {
            debug_assert!(index < MAX_CANDIDATES, "there are samples of each candidate");
            this.among |= 1 << index;
            this.streaming |= u16::from(streams(&index)) << index;
        }
        this
    }

    pub(super) fn among(&self) -> impl Iterator<Item = usize> {
        (0..MAX_CANDIDATES).filter(|index| self.among >> index & 1 != 0)
    }

    fn len(&self) -> usize {
        self.among.count_ones() as usize
    }

    fn trials_per_round(&self) -> u32 {
        self.among.count_ones() * if self.rules.may_be_held { 2 } else { 1 }
    }

    fn streams(&self, candidate: usize) -> bool {
        self.streaming >> candidate & 1 != 0
    }

    /// Returns the cost of a candidate by its samples.
    fn cost(&self, candidate: usize, samples: &Samples) -> Option<TimePerByte> {
        if self.rules.may_be_held && !self.streams(candidate) {
            samples.best()
        } else {
            samples.usual()
        }
    }

    /// Weighs a cost while `incumbent` is in charge.
    fn weigh(&self, cost: TimePerByte, candidate: usize, incumbent: usize) -> TimePerByte {
        let (by, of) = if self.streams(candidate) { self.rules.readers_share } else { (0, 1) };
        let has_margin = candidate != incumbent && candidate != self.prior;
        let (more, than) = if has_margin { self.rules.inertia } else { (0, 1) };
        cost.raised(by, of).raised(more, than)
    }

    /// Returns the longest interval between trials while this candidate is in charge, as a
    /// logarithm.
    fn calmest(&self, candidate: usize) -> u32 {
        if self.rules.may_be_held && self.streams(candidate) {
            WARY
        } else {
            self.rules.intervals.1
        }
    }
}

/// The outcome of a measurement, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The candidate in charge; `None` before the end of the first round.
    pub(super) candidate: Option<usize>,
    /// The number of units for each trial, as a logarithm.
    pub(super) interval: u32,
    /// True if all candidates had their rounds.
    pub(super) is_settled: bool,
}

impl Verdict {
    fn from_word(word: u32) -> Self {
        let candidate = (word & 0xff).checked_sub(1).map(|index| index as usize);
        Self { candidate, interval: word >> 8 & 0x1f, is_settled: word >> 16 & 1 != 0 }
    }

    fn word(self) -> u32 {
        let candidate = self.candidate.map_or(0, |index| index as u32 + 1);
        candidate | self.interval << 8 | u32::from(self.is_settled) << 16
    }
}

/// The word lies on cache lines of its own, because every operation of its class reads it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Measurement {
    verdict: AtomicU32,
    /// The number of trials that were begun.
    trials: AtomicU32,
    samples: [Samples; MAX_CANDIDATES],
}

/// A timed piece of work of one candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) candidate: usize,
    /// True if the trial's time counts.
    pub(super) counts: bool,
    /// The number of trials that were begun, this trial included.
    number: u32,
}

impl Measurement {
    pub(super) const fn new() -> Self {
        Self {
            verdict: AtomicU32::new(0),
            trials: AtomicU32::new(0),
            samples: [const { Samples::none() }; MAX_CANDIDATES],
        }
    }

    #[inline]
    pub(super) fn verdict(&self) -> Verdict {
        Verdict::from_word(self.verdict.load(Ordering::Relaxed))
    }

    pub(super) fn trials(&self) -> u32 {
        self.trials.load(Ordering::Relaxed)
    }

    /// Returns true if a trial is due after this many units.
    #[inline]
    pub(super) fn is_due(&self, units: u32) -> bool {
        units >> self.verdict().interval != 0
    }

    /// Begins a trial. Candidates take turns. In three of four rounds, the best candidate gets the
    /// turns of hopeless candidates.
    pub(super) fn begin_trial(&self, comparison: &Comparison) -> Trial {
        let before = self.trials.fetch_add(1, Ordering::Relaxed);
        let in_pairs = comparison.rules.may_be_held;
        let turn = if in_pairs { before / 2 } else { before } as usize;
        let (round, place) = (turn / comparison.len(), turn % comparison.len());
        let wanted = comparison.among().nth(place).unwrap_or(comparison.prior);
        let candidate = match self.cheapest(comparison, |cost, _| cost) {
            Some((best, cost)) if round % 4 != 0 && self.is_hopeless(comparison, wanted, cost) => {
                best
            }
            _ => wanted,
        };
        Trial { candidate, counts: !in_pairs || before % 2 == 1, number: before.wrapping_add(1) }
    }

    fn is_hopeless(&self, comparison: &Comparison, candidate: usize, best: TimePerByte) -> bool {
        let (by, of) = HOPELESS;
        let cost = comparison.cost(candidate, &self.samples[candidate]);
        cost.is_some_and(|cost| cost > best.raised(by, of))
    }

    /// Records the cost of a trial, and updates the verdict.
    pub(super) fn end_trial(&self, trial: Trial, cost: TimePerByte, comparison: &Comparison) {
        if trial.counts {
            self.samples[trial.candidate].push(cost);
        }
        let now = self.verdict();
        if trial.number < comparison.trials_per_round() {
            return self.decide(Verdict { interval: comparison.rules.patience, ..now });
        }
        let known = now.candidate.filter(|&index| comparison.among().any(|other| other == index));
        let incumbent = known.unwrap_or(comparison.prior);
        let weigh = |cost, index| comparison.weigh(cost, index, incumbent);
        let best = self.cheapest(comparison, weigh).map_or(incumbent, |(best, _)| best);
        let is_settled = trial.number >= ROUNDS * comparison.trials_per_round();
        let interval = match (is_settled, now.is_settled && best == incumbent) {
            (false, _) => comparison.rules.patience,
            (true, false) => comparison.rules.intervals.0.min(comparison.calmest(best)),
            (true, true) => {
                let ends_round = trial.number.checked_rem(comparison.trials_per_round()) == Some(0);
                (now.interval + u32::from(ends_round)).min(comparison.calmest(best))
            }
        };
        self.decide(Verdict { candidate: Some(best), interval, is_settled });
    }

    fn decide(&self, verdict: Verdict) {
        self.verdict.store(verdict.word(), Ordering::Relaxed);
    }

    /// Returns the number of trials until the measurement is settled.
    pub(super) fn trials_left(&self, comparison: &Comparison) -> u32 {
        (ROUNDS * comparison.trials_per_round()).saturating_sub(self.trials())
    }

    /// Returns the candidate with samples that has the least cost after `weigh`.
    fn cheapest(
        &self,
        comparison: &Comparison,
        weigh: impl Fn(TimePerByte, usize) -> TimePerByte,
    ) -> Option<(usize, TimePerByte)> {
        let mut cheapest: Option<(usize, TimePerByte)> = None;
        for index in comparison.among() {
            let Some(cost) = comparison.cost(index, &self.samples[index]) else { continue };
            let cost = weigh(cost, index);
            if cheapest.is_none_or(|(_, least)| cost < least) {
                cheapest = Some((index, cost));
            }
        }
        cheapest
    }

    pub(super) fn forget(&self) {
        self.verdict.store(0, Ordering::Relaxed);
        self.trials.store(0, Ordering::Relaxed);
        self.samples.iter().for_each(Samples::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICED: ComparisonRules = ComparisonRules {
        patience: 0,
        may_be_held: false,
        intervals: (4, 7),
        inertia: (1, 32),
        readers_share: (0, 1),
    };
    const WHOLE: ComparisonRules =
        ComparisonRules { patience: 3, may_be_held: true, readers_share: (1, 2), ..SLICED };
    const LIBC: usize = 0;

    /// Simulates a class whose candidate `n` costs `costs[n]`; all candidates except libc stream.
    /// Processes this many units, and returns the cost and the candidate of each unit.
    fn work(
        measurement: &Measurement,
        rules: &'static ComparisonRules,
        units: usize,
        mut cost: impl FnMut(usize) -> u64,
        candidates: usize,
    ) -> Vec<usize> {
        let comparison = Comparison::new(rules, LIBC, 0..candidates, |&index| index != LIBC);
        let mut since = 0;
        let unit = |_| {
            since += 1;
            if !measurement.is_due(since) {
                return measurement.verdict().candidate.unwrap_or(LIBC);
            }
            let trial = measurement.begin_trial(&comparison);
            let cost = TimePerByte(cost(trial.candidate));
            measurement.end_trial(trial, cost, &comparison);
            since = if trial.counts { 0 } else { 1 << measurement.verdict().interval };
            trial.candidate
        };
        (0..units).map(unit).collect()
    }

    const COSTS: [u64; 8] = [1000, 700, 640, 690, 600, 2500, 605, 900];

    fn by_table(candidate: usize) -> u64 {
        COSTS[candidate]
    }

    #[test]
    fn measurement_of_three_rounds_is_settled_on_the_fastest() {
        let measurement = Measurement::new();
        let did = work(&measurement, &SLICED, 3 * COSTS.len(), by_table, COSTS.len());
        assert_eq!(did[..8], [0, 1, 2, 3, 4, 5, 6, 7], "each has its turn first");
        let verdict = measurement.verdict();
        assert_eq!((verdict.candidate, verdict.is_settled), (Some(4), true));
        let hopeless = did.iter().filter(|&&candidate| candidate == 5).count();
        assert_eq!(hopeless, 1, "a hopeless one has no second turn: {did:?}");
    }

    /// Checks the bound that `README.md` states: three units for each candidate, then one of
    /// sixteen.
    #[test]
    fn regret_is_three_rounds_and_then_a_sixteenth_at_most_and_falls() {
        let measurement = Measurement::new();
        let did = work(&measurement, &SLICED, 100_000, by_table, COSTS.len());
        let wrong = |part: &[usize]| part.iter().filter(|&&candidate| candidate != 4).count();
        assert!(wrong(&did[..24]) <= 24);
        assert!(wrong(&did[24..24 + 1600]) <= 100);
        assert!(wrong(&did[50_000..]) <= 50_000 / 128 + 1, "{}", wrong(&did[50_000..]));
        assert!(did[50_000..].contains(&5), "even a hopeless one has a trial now and then");
    }

    #[test]
    fn measurement_with_a_sample_that_is_far_off_still_finds_the_fastest() {
        for odd in 0..24 {
            for factor in [0.05, 50.0] {
                let (measurement, mut trials) = (Measurement::new(), 0);
                let cost = |candidate| {
                    trials += 1;
                    let factor = if trials == odd { factor } else { 1.0 };
                    (by_table(candidate) as f64 * factor) as u64
                };
                work(&measurement, &SLICED, 2000, cost, COSTS.len());
                let chosen = measurement.verdict().candidate.unwrap();
                assert!(COSTS[chosen] <= 620, "trial {odd} off by {factor}: {chosen}");
            }
        }
    }

    #[test]
    fn measurement_after_a_change_of_the_machine_is_learned_anew() {
        let measurement = Measurement::new();
        work(&measurement, &SLICED, 10_000, by_table, COSTS.len());
        let slower =
            |candidate| if candidate == 4 || candidate == 6 { 3000 } else { by_table(candidate) };
        let did = work(&measurement, &SLICED, 10_000, slower, COSTS.len());
        let last = did.iter().rposition(|&candidate| candidate == 4).unwrap();
        assert_eq!(measurement.verdict().candidate, Some(2));
        let after = did.iter().position(|&candidate| candidate == 2).unwrap();
        let wrong = did[..5000].iter().filter(|&&candidate| candidate == 4).count();
        assert!(wrong < 4000, "{wrong} units by the old one; {after}, {last}");
    }

    #[test]
    fn candidates_that_differ_by_less_than_noise_do_not_displace_the_prior() {
        let measurement = Measurement::new();
        work(&measurement, &SLICED, 1000, |candidate| 1000 - candidate as u64 * 5, 4);
        assert_eq!(measurement.verdict().candidate, Some(LIBC));
    }

    /// Checks that the margin keeps routines from taking turns, and does not keep a routine that is
    /// slower than the prior.
    #[test]
    fn prior_that_seemed_slower_at_first_is_in_charge_again() {
        let measurement = Measurement::new();
        let cost = |candidate| if candidate == LIBC { 1300 } else { 1030 };
        work(&measurement, &SLICED, 12, cost, 4);
        assert_ne!(measurement.verdict().candidate, Some(LIBC));
        let cost = |candidate| if candidate == LIBC { 1000 } else { 1030 };
        work(&measurement, &SLICED, 1000, cost, 4);
        assert_eq!(measurement.verdict().candidate, Some(LIBC));
    }

    #[test]
    fn measurement_in_pairs_counts_the_second_of_two_and_has_both_in_a_row() {
        let (measurement, mut last, mut in_a_row) = (Measurement::new(), usize::MAX, 0);
        // The first of a row finds what the other one left in the cache.
        let cost = |candidate| {
            in_a_row = if candidate == last { in_a_row + 1 } else { 0 };
            last = candidate;
            match (candidate, in_a_row) {
                (LIBC, 0) => 3000,
                (LIBC, _) => 1000,
                _ => 1200,
            }
        };
        work(&measurement, &WHOLE, 1000, cost, 2);
        assert_eq!(measurement.verdict().candidate, Some(LIBC));
    }

    /// Other code evicts the bytes between every other operation.
    #[test]
    fn bytes_that_are_evicted_now_and_then_are_still_taken_for_held() {
        let (measurement, mut trials) = (Measurement::new(), 0);
        let cost = |candidate| {
            trials += 1;
            if candidate == LIBC && trials % 3 != 0 { 4000 } else { 1000 }
        };
        work(&measurement, &WHOLE, 5000, cost, 2);
        assert_eq!(measurement.verdict().candidate, Some(LIBC));
    }

    #[test]
    fn streaming_in_charge_of_bytes_that_may_be_held_has_more_trials_beside_it() {
        let measurement = Measurement::new();
        work(
            &measurement,
            &WHOLE,
            20_000,
            |candidate| if candidate == LIBC { 1000 } else { 400 },
            2,
        );
        assert_eq!(
            (measurement.verdict().candidate, measurement.verdict().interval),
            (Some(1), WARY)
        );
    }

    #[test]
    fn streaming_of_warm_bytes_must_win_by_its_readers_share() {
        for (streaming, chosen) in [(600, 1), (700, LIBC)] {
            let measurement = Measurement::new();
            let cost = |candidate| if candidate == LIBC { 1000 } else { streaming };
            work(&measurement, &WHOLE, 1000, cost, 2);
            assert_eq!(measurement.verdict().candidate, Some(chosen), "{streaming}");
        }
    }

    #[test]
    fn comparison_of_the_most_candidates_has_each() {
        let comparison = Comparison::new(&SLICED, LIBC, 0..MAX_CANDIDATES, |_| true);
        assert!(comparison.among().eq(0..MAX_CANDIDATES));
        assert!((0..MAX_CANDIDATES).all(|candidate| comparison.streams(candidate)));
    }

    #[test]
    #[should_panic = "there are samples of each candidate"]
    #[cfg(debug_assertions)]
    fn comparison_of_too_many_candidates_is_noticed() {
        let _ = Comparison::new(&SLICED, LIBC, 0..=MAX_CANDIDATES, |_| true);
    }

    #[test]
    fn verdict_is_the_same_after_its_word() {
        for candidate in (0..MAX_CANDIDATES).map(Some).chain([None]) {
            for interval in 0..32 {
                for is_settled in [false, true] {
                    let verdict = Verdict { candidate, interval, is_settled };
                    assert_eq!(Verdict::from_word(verdict.word()), verdict);
                }
            }
        }
    }

    #[test]
    fn forget_leaves_a_measurement_as_new() {
        let measurement = Measurement::new();
        work(&measurement, &SLICED, 100, by_table, COSTS.len());
        measurement.forget();
        assert_eq!(
            (measurement.verdict(), measurement.trials()),
            (Measurement::new().verdict(), 0)
        );
        assert!(measurement.samples.iter().all(|samples| samples.usual().is_none()));
    }
}
