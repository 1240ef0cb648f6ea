//! What operations of one class taught: which of some candidates does them fastest.
//!
//! A class is operations that are alike: one method, in or out of the cache, of about one length. Of a lesson every
//! word is a hint: whatever threads and signal handlers make of it at once, it names a candidate, and each of them
//! does what was asked for. So all accesses are relaxed.

use std::sync::atomic::{AtomicU32, Ordering};

use super::samples::{Cost, Samples};

/// The most candidates of a lesson.
pub(super) const MOST: usize = 12;

/// Rounds of all candidates before a lesson is settled: as many as there are samples.
const ROUNDS: u32 = 3;

/// As long as one that streams is in charge of bytes that a cache may hold: its own stores keep it from showing that it
/// does.
const WARY: u32 = 5;

/// A candidate that costs a quarter more than the best is hopeless: of its later turns three of four are the best
/// one's.
const HOPELESS: (u64, u64) = (1, 4);

/// How a lesson is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Until it is settled, one of so many units is a look. Logarithm.
    pub(super) patience: u32,
    /// Whether a cache may hold the bytes. Then two looks in a row are at one candidate, and the second one counts: what
    /// the first one leaves in the cache is what the second one finds there. And what stores through the cache counts
    /// as it was at best: whatever else evicts the bytes between the two makes it look slower than it is.
    pub(super) may_be_held: bool,
    /// Once it is settled, one of so many units is a look: at first, and after rounds that changed nothing. Logarithms.
    pub(super) intervals: (u32, u32),
    /// What another candidate must win by to take the place of the one in charge.
    pub(super) inertia: (u64, u64),
    /// By which a routine that streams must win, in parts: its reader finds nothing in the cache.
    pub(super) readers_share: (u64, u64),
}

/// What a class compares: some candidates, by their indices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    terms: &'static Terms,
    /// In charge as long as there is no verdict.
    prior: usize,
    among: [u8; MOST],
    len: usize,
    /// Bit by bit, whether a candidate streams.
    streaming: u32,
}

impl Contest {
    /// Of two or more candidates.
    pub(super) fn new(
        terms: &'static Terms,
        prior: usize,
        among: impl Iterator<Item = usize>,
        streams: impl Fn(&usize) -> bool,
    ) -> Self {
        let mut this = Self { terms, prior, among: [0; MOST], len: 0, streaming: 0 };
        for (place, index) in this.among.iter_mut().zip(among) {
            *place = index as u8;
            this.len += 1;
            this.streaming |= u32::from(streams(&index)) << index;
        }
        this
    }

    fn among(&self) -> impl Iterator<Item = usize> {
        self.among[..self.len].iter().map(|&index| index.into())
    }

    fn looks_per_round(&self) -> u32 {
        self.len as u32 * if self.terms.may_be_held { 2 } else { 1 }
    }

    fn streams(&self, candidate: usize) -> bool {
        self.streaming >> candidate & 1 != 0
    }

    /// What a candidate costs, going by its samples.
    fn cost(&self, candidate: usize, samples: &Samples) -> Option<Cost> {
        if self.terms.may_be_held && !self.streams(candidate) {
            samples.best()
        } else {
            samples.usual()
        }
    }

    /// What a cost counts for where `incumbent` is in charge.
    fn weigh(&self, cost: Cost, candidate: usize, incumbent: usize) -> Cost {
        let (by, of) = if self.streams(candidate) { self.terms.readers_share } else { (0, 1) };
        let (more, than) = if candidate == incumbent { (0, 1) } else { self.terms.inertia };
        cost.raised(by, of).raised(more, than)
    }

    /// The longest interval between looks with this one in charge. Logarithm.
    fn calmest(&self, candidate: usize) -> u32 {
        if self.terms.may_be_held && self.streams(candidate) {
            WARY
        } else {
            self.terms.intervals.1
        }
    }
}

/// What a lesson has come to, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The candidate in charge; `None` before the first round is over.
    pub(super) candidate: Option<usize>,
    /// One of so many units is a look. Logarithm.
    pub(super) interval: u32,
    /// All candidates had their rounds.
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

/// On lines of its own: every operation of its class reads it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Lesson {
    verdict: AtomicU32,
    /// Looks that were begun.
    looks: AtomicU32,
    samples: [Samples; MOST],
}

/// A look that is due: which candidate does it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) candidate: usize,
    /// Whether its time counts.
    pub(super) counts: bool,
    /// Looks that were begun, this one included.
    number: u32,
}

impl Lesson {
    pub(super) const fn new() -> Self {
        Self {
            verdict: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            samples: [const { Samples::none() }; MOST],
        }
    }

    #[inline]
    pub(super) fn verdict(&self) -> Verdict {
        Verdict::from_word(self.verdict.load(Ordering::Relaxed))
    }

    pub(super) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Whether a look is due after so many units.
    #[inline]
    pub(super) fn is_due(&self, units: u32) -> bool {
        units >> self.verdict().interval != 0
    }

    /// Begins a look. Candidates take turns; in three of four rounds those of hopeless ones go to the best.
    pub(super) fn begin(&self, contest: &Contest) -> Look {
        let before = self.looks.fetch_add(1, Ordering::Relaxed);
        let (in_pairs, len) = (contest.terms.may_be_held, contest.len);
        let turn = if in_pairs { before / 2 } else { before } as usize;
        let (round, wanted) = (turn / len, usize::from(contest.among[turn % len]));
        let candidate = match self.cheapest(contest, |cost, _| cost) {
            Some((best, cost)) if round % 4 != 0 && self.is_hopeless(contest, wanted, cost) => best,
            _ => wanted,
        };
        Look { candidate, counts: !in_pairs || before % 2 == 1, number: before.wrapping_add(1) }
    }

    fn is_hopeless(&self, contest: &Contest, candidate: usize, best: Cost) -> bool {
        let (by, of) = HOPELESS;
        let cost = contest.cost(candidate, &self.samples[candidate]);
        cost.is_some_and(|cost| cost > best.raised(by, of))
    }

    /// Takes in what a look cost, and draws the conclusion.
    pub(super) fn end(&self, look: Look, cost: Cost, contest: &Contest) {
        if look.counts {
            self.samples[look.candidate].push(cost);
        }
        let now = self.verdict();
        if look.number < contest.looks_per_round() {
            return self.decide(Verdict { interval: contest.terms.patience, ..now });
        }
        let known = now.candidate.filter(|&index| contest.among().any(|other| other == index));
        let incumbent = known.unwrap_or(contest.prior);
        let weigh = |cost, index| contest.weigh(cost, index, incumbent);
        let best = self.cheapest(contest, weigh).map_or(incumbent, |(best, _)| best);
        let is_settled = look.number >= ROUNDS * contest.looks_per_round();
        let interval = match (is_settled, now.is_settled && best == incumbent) {
            (false, _) => contest.terms.patience,
            (true, false) => contest.terms.intervals.0.min(contest.calmest(best)),
            (true, true) => {
                let ends_round = look.number.checked_rem(contest.looks_per_round()) == Some(0);
                (now.interval + u32::from(ends_round)).min(contest.calmest(best))
            }
        };
        self.decide(Verdict { candidate: Some(best), interval, is_settled });
    }

    fn decide(&self, verdict: Verdict) {
        self.verdict.store(verdict.word(), Ordering::Relaxed);
    }

    /// Looks until it is settled.
    pub(super) fn looks_left(&self, contest: &Contest) -> u32 {
        (ROUNDS * contest.looks_per_round()).saturating_sub(self.looks())
    }

    /// Of those that there are samples of, the one that costs least by what `weigh` makes of them.
    fn cheapest(
        &self,
        contest: &Contest,
        weigh: impl Fn(Cost, usize) -> Cost,
    ) -> Option<(usize, Cost)> {
        let mut cheapest: Option<(usize, Cost)> = None;
        for index in contest.among() {
            let Some(cost) = contest.cost(index, &self.samples[index]) else { continue };
            let cost = weigh(cost, index);
            if cheapest.is_none_or(|(_, least)| cost < least) {
                cheapest = Some((index, cost));
            }
        }
        cheapest
    }

    pub(super) fn forget(&self) {
        self.verdict.store(0, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
        self.samples.iter().for_each(Samples::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICED: Terms = Terms {
        patience: 0,
        may_be_held: false,
        intervals: (4, 7),
        inertia: (1, 32),
        readers_share: (0, 1),
    };
    const WHOLE: Terms = Terms { patience: 3, may_be_held: true, readers_share: (1, 2), ..SLICED };
    const LIBC: usize = 0;

    /// A class whose candidate `n` costs `costs[n]`; all but libc stream. Works through so many units, and says what
    /// each of them cost, by which candidate.
    fn work(
        lesson: &Lesson,
        terms: &'static Terms,
        units: usize,
        mut cost: impl FnMut(usize) -> u64,
        candidates: usize,
    ) -> Vec<usize> {
        let contest = Contest::new(terms, LIBC, 0..candidates, |&index| index != LIBC);
        let mut since = 0;
        let unit = |_| {
            since += 1;
            if !lesson.is_due(since) {
                return lesson.verdict().candidate.unwrap_or(LIBC);
            }
            let look = lesson.begin(&contest);
            let cost = Cost(cost(look.candidate));
            lesson.end(look, cost, &contest);
            since = if look.counts { 0 } else { 1 << lesson.verdict().interval };
            look.candidate
        };
        (0..units).map(unit).collect()
    }

    const COSTS: [u64; 8] = [1000, 700, 640, 690, 600, 2500, 605, 900];

    fn by_table(candidate: usize) -> u64 {
        COSTS[candidate]
    }

    #[test]
    fn lesson_of_three_rounds_is_settled_on_the_fastest() {
        let lesson = Lesson::new();
        let did = work(&lesson, &SLICED, 3 * COSTS.len(), by_table, COSTS.len());
        assert_eq!(did[..8], [0, 1, 2, 3, 4, 5, 6, 7], "each has its turn first");
        let verdict = lesson.verdict();
        assert_eq!((verdict.candidate, verdict.is_settled), (Some(4), true));
        let hopeless = did.iter().filter(|&&candidate| candidate == 5).count();
        assert_eq!(hopeless, 1, "a hopeless one has no second turn: {did:?}");
    }

    /// The bound that `README.md` states: three units for each candidate, then one of sixteen.
    #[test]
    fn regret_is_three_rounds_and_then_a_sixteenth_at_most_and_falls() {
        let lesson = Lesson::new();
        let did = work(&lesson, &SLICED, 100_000, by_table, COSTS.len());
        let wrong = |part: &[usize]| part.iter().filter(|&&candidate| candidate != 4).count();
        assert!(wrong(&did[..24]) <= 24);
        assert!(wrong(&did[24..24 + 1600]) <= 100);
        assert!(wrong(&did[50_000..]) <= 50_000 / 128 + 1, "{}", wrong(&did[50_000..]));
        assert!(did[50_000..].contains(&5), "even a hopeless one is looked at now and then");
    }

    #[test]
    fn lesson_with_a_sample_that_is_far_off_still_finds_the_fastest() {
        for odd in 0..24 {
            for factor in [0.05, 50.0] {
                let (lesson, mut looks) = (Lesson::new(), 0);
                let cost = |candidate| {
                    looks += 1;
                    let factor = if looks == odd { factor } else { 1.0 };
                    (by_table(candidate) as f64 * factor) as u64
                };
                work(&lesson, &SLICED, 2000, cost, COSTS.len());
                let chosen = lesson.verdict().candidate.unwrap();
                assert!(COSTS[chosen] <= 620, "look {odd} off by {factor}: {chosen}");
            }
        }
    }

    #[test]
    fn lesson_after_a_change_of_the_machine_is_learned_anew() {
        let lesson = Lesson::new();
        work(&lesson, &SLICED, 10_000, by_table, COSTS.len());
        let slower =
            |candidate| if candidate == 4 || candidate == 6 { 3000 } else { by_table(candidate) };
        let did = work(&lesson, &SLICED, 10_000, slower, COSTS.len());
        let last = did.iter().rposition(|&candidate| candidate == 4).unwrap();
        assert_eq!(lesson.verdict().candidate, Some(2));
        let after = did.iter().position(|&candidate| candidate == 2).unwrap();
        let wrong = did[..5000].iter().filter(|&&candidate| candidate == 4).count();
        assert!(wrong < 4000, "{wrong} units by the old one; {after}, {last}");
    }

    #[test]
    fn candidates_that_differ_by_less_than_noise_do_not_displace_the_prior() {
        let lesson = Lesson::new();
        work(&lesson, &SLICED, 1000, |candidate| 1000 - candidate as u64 * 5, 4);
        assert_eq!(lesson.verdict().candidate, Some(LIBC));
    }

    #[test]
    fn lesson_in_pairs_counts_the_second_of_two_and_has_both_in_a_row() {
        let (lesson, mut last, mut in_a_row) = (Lesson::new(), usize::MAX, 0);
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
        work(&lesson, &WHOLE, 1000, cost, 2);
        assert_eq!(lesson.verdict().candidate, Some(LIBC));
    }

    /// Other code evicts the bytes between every other operation.
    #[test]
    fn bytes_that_are_evicted_now_and_then_are_still_taken_for_held() {
        let (lesson, mut looks) = (Lesson::new(), 0);
        let cost = |candidate| {
            looks += 1;
            if candidate == LIBC && looks % 3 != 0 { 4000 } else { 1000 }
        };
        work(&lesson, &WHOLE, 5000, cost, 2);
        assert_eq!(lesson.verdict().candidate, Some(LIBC));
    }

    #[test]
    fn streaming_in_charge_of_bytes_that_may_be_held_is_looked_at_more_often() {
        let lesson = Lesson::new();
        work(&lesson, &WHOLE, 20_000, |candidate| if candidate == LIBC { 1000 } else { 400 }, 2);
        assert_eq!((lesson.verdict().candidate, lesson.verdict().interval), (Some(1), WARY));
    }

    #[test]
    fn streaming_of_warm_bytes_must_win_by_its_readers_share() {
        for (streaming, chosen) in [(600, 1), (700, LIBC)] {
            let lesson = Lesson::new();
            let cost = |candidate| if candidate == LIBC { 1000 } else { streaming };
            work(&lesson, &WHOLE, 1000, cost, 2);
            assert_eq!(lesson.verdict().candidate, Some(chosen), "{streaming}");
        }
    }

    #[test]
    fn verdict_is_the_same_after_its_word() {
        for candidate in (0..MOST).map(Some).chain([None]) {
            for interval in 0..32 {
                for is_settled in [false, true] {
                    let verdict = Verdict { candidate, interval, is_settled };
                    assert_eq!(Verdict::from_word(verdict.word()), verdict);
                }
            }
        }
    }

    #[test]
    fn forget_leaves_a_lesson_as_new() {
        let lesson = Lesson::new();
        work(&lesson, &SLICED, 100, by_table, COSTS.len());
        lesson.forget();
        assert_eq!((lesson.verdict(), lesson.looks()), (Lesson::new().verdict(), 0));
        assert!(lesson.samples.iter().all(|samples| samples.usual().is_none()));
    }
}
