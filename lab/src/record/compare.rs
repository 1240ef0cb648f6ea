//! Two records case by case: what changed, by how much, and how sure that is.
//!
//! A change counts if three things agree. The samples of the two runs are unlikely to be of one kind
//! (Mann-Whitney, which asks nothing about how they are distributed). The ratio of the medians,
//! bootstrapped, is beyond 5 % with all of its interval. And it exceeds how far the halves of
//! one run are apart, which no change has caused. All of that is within the two runs; what differs between any two
//! runs, such as where memory happens to lie, is in neither, and only more runs would show it.
//!
//! A cause that shifts all of a run shifts every case, and would pass as a change of each: two runs of the same
//! program on a machine that others used half of differed, often by 2, in a third of their cases. Where a record
//! says so, cases are not judged. Comparisons within rounds are: both of their sides were disturbed alike.

use serde::Serialize;

use crate::record::stats::{Summary, median};
use crate::record::{Case, Experiment, Machine, Ratio, Record, Unit, parts};

/// A change counts if samples of one kind would differ as much with less than this probability.
const SIGNIFICANT: f64 = 0.005;

/// The share of bootstrapped ratios within the interval.
const CONFIDENCE: f64 = 0.99;

const RESAMPLINGS: usize = 1000;

/// Enough for [`SIGNIFICANT`] to be some fifty of them.
const DEALS: usize = 10_000;

/// The same intervals in every run.
const SEED: u64 = 2023;

/// A smaller change than 5 % is what another placement of the same memory makes (docs/decisions/README.md).
const LEAST_CHANGE: f64 = 0.05;

/// Methods that are the same code in every version: libc's.
const CONTROLS: [&str; 2] = ["memset", "memcpy"];

/// The outcome of comparing two records.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The first record's name.
    pub before: String,
    /// The second's name.
    pub after: String,
    /// In what else they differ that bears on the result.
    pub warnings: Vec<String>,
    /// Cases that both have, in the order of the second, and then comparisons within rounds that both have.
    pub changes: Vec<CaseChange>,
    /// Ids of cases that only the first has.
    pub only_before: Vec<String>,
    /// Ids of cases that only the second has.
    pub only_after: Vec<String>,
}

/// The change of one case, or of one comparison of two cases, between two records.
#[derive(Clone, Debug, Serialize)]
pub struct CaseChange {
    /// The case or ratio.
    pub id: String,
    /// The medians' unit; a ratio's count how many times as fast the one case is as the other.
    pub unit: Option<Unit>,
    /// Median of the first record.
    pub before: f64,
    /// Median of the second.
    pub after: f64,
    /// Rounds of each.
    pub rounds: (usize, usize),
    /// The number of times as fast as the first that the second is. Above 1 is faster.
    pub speed_up: f64,
    /// Between these lies the speed-up, with 99 % confidence as far as the samples tell.
    pub interval: (f64, f64),
    /// Probability of such samples if nothing had changed.
    pub p: f64,
    /// Changes below this fraction count as noise.
    pub noise: f64,
    /// The verdict on that.
    pub verdict: ChangeVerdict,
}

/// The verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeVerdict {
    /// The second record's is faster.
    Faster,
    /// The second record's is slower.
    Slower,
    /// No more than chance and placement explain.
    WithinNoise,
    /// However far apart the samples were, they are too few to say.
    TooFewRounds,
    /// Apart, but others used the machine during one of the runs.
    Disturbed,
}

impl ChangeVerdict {
    /// The printed name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::WithinNoise => "within noise",
            Self::TooFewRounds => "too few rounds",
            Self::Disturbed => "disturbed",
        }
    }
}

impl Comparison {
    /// Compares the cases that two records have in common; each record with what to call it.
    #[must_use]
    pub fn between(before: (&str, &Record), after: (&str, &Record)) -> Self {
        let (old, new) = (cases(before.1), cases(after.1));
        let disturbed = disturbed(before.1, after.1);
        let is_disturbed =
            |id: &str| disturbed.iter().any(|(name, _)| id.split('/').next() == Some(name));
        let case = |case: &&Case| {
            let change = CaseChange::between(find(&old, case)?, case);
            let change = change.beyond(control(&old, &new, case));
            Some(if is_disturbed(&case.id) { change.disturbed() } else { change })
        };
        let mut changes: Vec<CaseChange> = new.iter().filter_map(case).collect();
        let ratios = after.1.experiments.iter().flat_map(|experiment| &experiment.ratios);
        let sides = (old.as_slice(), new.as_slice());
        changes.extend(ratios.filter_map(|ratio| CaseChange::of_ratio(ratio, before.1, sides)));
        let disturbed = disturbed.into_iter().map(|(name, who)| {
            format!("{name}: {who}, so only comparisons within rounds are judged")
        });
        let only = |these: &[&Case], those: &[&Case]| -> Vec<String> {
            let missing = these.iter().filter(|case| find(those, case).is_none());
            missing.map(|case| case.id.clone()).collect()
        };
        Self {
            before: before.0.to_owned(),
            after: after.0.to_owned(),
            warnings: warnings(before.1, after.1).into_iter().chain(disturbed).collect(),
            changes,
            only_before: only(&old, &new),
            only_after: only(&new, &old),
        }
    }

    /// The cases that are slower by more than this fraction of their speed.
    pub fn slower_beyond(&self, fraction: f64) -> impl Iterator<Item = &CaseChange> {
        let is_beyond = move |change: &&CaseChange| {
            change.verdict == ChangeVerdict::Slower && change.speed_up < 1.0 - fraction
        };
        self.changes.iter().filter(is_beyond)
    }
}

fn find<'a>(cases: &[&'a Case], wanted: &Case) -> Option<&'a Case> {
    cases.iter().find(|case| case.id == wanted.id && case.unit == wanted.unit).copied()
}

/// The number of times as fast that libc's routine is on the workload of a case, in the same rounds. No change of
/// hugekit affects that routine, so the number is the effect of the machine.
fn control(old: &[&Case], new: &[&Case], case: &Case) -> f64 {
    let is_control = |other: &&&Case| {
        let (mine, theirs) = (parts(&case.id), parts(&other.id));
        let same_place = mine.zip(theirs).is_some_and(|((_, workload), (method, at))| {
            workload == at && CONTROLS.contains(&method)
        });
        let experiment = |case: &Case| case.id.split('/').next().map(str::to_owned);
        same_place && other.unit == case.unit && experiment(case) == experiment(other)
    };
    let pair = new.iter().find(is_control).and_then(|after| Some((find(old, after)?, after)));
    pair.map_or(1.0, |(before, after)| after.unit.speed_up(before.median(), after.median()))
}

fn cases(record: &Record) -> Vec<&Case> {
    record.experiments.iter().flat_map(|experiment| &experiment.cases).collect()
}

impl CaseChange {
    fn between(before: &Case, after: &Case) -> Self {
        let change = Self::of(&after.id, after.unit, &before.samples, &after.samples);
        Self { unit: Some(after.unit), ..change }
    }

    /// The change of a comparison that both records make of the same two cases.
    fn of_ratio(ratio: &Ratio, before: &Record, (old, new): (&[&Case], &[&Case])) -> Option<Self> {
        let mut others = before.experiments.iter().flat_map(|experiment| &experiment.ratios);
        let same = |other: &&Ratio| {
            (&other.id, &other.baseline, &other.subject)
                == (&ratio.id, &ratio.baseline, &ratio.subject)
        };
        others.find(same)?;
        let pairs = |cases: &[&Case]| -> Option<Vec<f64>> {
            let case = |id: &str| cases.iter().find(|case| case.id == id);
            let (baseline, subject) = (case(&ratio.baseline)?, case(&ratio.subject)?);
            let rounds = baseline.samples.iter().zip(&subject.samples);
            Some(rounds.map(|(&one, &other)| subject.unit.speed_up(one, other)).collect())
        };
        // More times as fast is faster, as more bandwidth is.
        let change = Self::of(&ratio.id, Unit::GibPerSecond, &pairs(old)?, &pairs(new)?);
        Some(Self { unit: None, ..change })
    }

    fn of(id: &str, unit: Unit, old: &[f64], new: &[f64]) -> Self {
        let (before, after) = (median(old), median(new));
        let speed_up = unit.speed_up(before, after);
        let interval = bootstrap(unit, old, new);
        let p = probability(old, new);
        let noise = LEAST_CHANGE.max(drift(old)).max(drift(new));
        let nearest = if speed_up > 1.0 { interval.0 } else { 1.0 / interval.1 };
        let is_chance = p > SIGNIFICANT || nearest < 1.0 + LEAST_CHANGE;
        let verdict = if least_probability(old.len(), new.len()) > SIGNIFICANT {
            ChangeVerdict::TooFewRounds
        } else if is_chance || speed_up.ln().abs() < noise.ln_1p() {
            ChangeVerdict::WithinNoise
        } else if speed_up > 1.0 {
            ChangeVerdict::Faster
        } else {
            ChangeVerdict::Slower
        };
        let (id, rounds) = (id.to_owned(), (old.len(), new.len()));
        Self { id, unit: None, before, after, rounds, speed_up, interval, p, noise, verdict }
    }

    /// With noise of what the machine itself became faster or slower by.
    fn beyond(self, machine: f64) -> Self {
        let noise = self.noise.max(machine.max(1.0 / machine) - 1.0);
        let is_noise = self.speed_up.ln().abs() <= noise.ln_1p() + f64::EPSILON;
        match self.verdict {
            ChangeVerdict::Faster | ChangeVerdict::Slower if is_noise => {
                Self { verdict: ChangeVerdict::WithinNoise, noise, ..self }
            }
            _ => Self { noise, ..self },
        }
    }

    fn disturbed(self) -> Self {
        match self.verdict {
            ChangeVerdict::Faster | ChangeVerdict::Slower => {
                Self { verdict: ChangeVerdict::Disturbed, ..self }
            }
            _ => self,
        }
    }

    /// The medians' unit, as printed.
    #[must_use]
    pub fn unit_name(&self) -> &'static str {
        self.unit.map_or("×", Unit::name)
    }
}

/// Experiments of both records during which other processes used the machine in one of them, and by how much.
fn disturbed(before: &Record, after: &Record) -> Vec<(String, String)> {
    let who = |record: &Record, name: &str| {
        let experiment = record.experiments.iter().find(|experiment| experiment.name == name)?;
        experiment.noise.as_ref()?.disturbance()
    };
    let names = after.experiments.iter().map(|experiment| &experiment.name);
    let shared = names.filter(|&name| before.experiments.iter().any(|old| old.name == *name));
    shared
        .filter_map(|name| Some((name.clone(), who(before, name).or_else(|| who(after, name))?)))
        .collect()
}

/// The probability that samples of one kind differ as much as these, by Mann and Whitney's test: how often
/// the ranks of one side add up to as unlikely a sum if sides are dealt out anew.
fn probability(old: &[f64], new: &[f64]) -> f64 {
    let mut ranks = ranks(old, new);
    let all = ranks.len();
    let expected = old.len() as f64 * (all + 1) as f64 / 2.0;
    let off = |ranks: &[f64]| (ranks[..old.len()].iter().sum::<f64>() - expected).abs();
    // Sums of halves are exact, so nothing is lost by comparing them.
    let observed = off(&ranks);
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut deals_as_far = || {
        (0..old.len()).for_each(|at| ranks.swap(at, random.usize(at..all)));
        off(&ranks) >= observed
    };
    let as_far = (0..DEALS).filter(|_| deals_as_far()).count();
    (as_far + 1) as f64 / (DEALS + 1) as f64
}

/// The rank of each sample among all, those of `old` first; equal ones share theirs.
fn ranks(old: &[f64], new: &[f64]) -> Vec<f64> {
    let all: Vec<f64> = old.iter().chain(new).copied().collect();
    let mut sorted = all.clone();
    sorted.sort_by(f64::total_cmp);
    let rank = |sample: &f64| {
        let below = sorted.partition_point(|other| other < sample);
        let up_to = sorted.partition_point(|other| other <= sample);
        (below + up_to + 1) as f64 / 2.0
    };
    all.iter().map(rank).collect()
}

/// The least probability that so many samples can have: that of all on one side of all others.
fn least_probability(old: usize, new: usize) -> f64 {
    let orders = (1..=old).map(|k| (new + k) as f64 / k as f64).product::<f64>();
    2.0 / orders
}

/// The range of the ratio of medians if both sides are drawn anew from their own samples.
fn bootstrap(unit: Unit, old: &[f64], new: &[f64]) -> (f64, f64) {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut draw = |samples: &[f64]| {
        let drawn: Vec<f64> =
            samples.iter().map(|_| samples[random.usize(..samples.len())]).collect();
        median(&drawn)
    };
    let mut ratios: Vec<f64> =
        (0..RESAMPLINGS).map(|_| unit.speed_up(draw(old), draw(new))).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((RESAMPLINGS - 1) as f64 * share).round() as usize];
    (at((1.0 - CONFIDENCE) / 2.0), at(f64::midpoint(1.0, CONFIDENCE)))
}

/// The distance of the medians of the two halves of one run, as a fraction. No change lies in
/// between, so a change of that size means nothing.
fn drift(samples: &[f64]) -> f64 {
    if samples.len() < 4 {
        return 0.0;
    }
    let (first, second) = samples.split_at(samples.len() / 2);
    let (first, second) = (median(first), median(second));
    let Summary { min: least, max: most, .. } = Summary::of(&[first, second]);
    if least > 0.0 { most / least - 1.0 } else { 0.0 }
}

/// Other differences between the records.
fn warnings(before: &Record, after: &Record) -> Vec<String> {
    let machines = different_machines(&before.machine, &after.machine);
    let machines = (!machines.is_empty()).then(|| {
        format!(
            "the records are of different machines ({}): what changed may be the machine",
            machines.join("; ")
        )
    });
    let memory = after.experiments.iter().filter_map(|new| {
        let same = |old: &&Experiment| old.name == new.name;
        let old = before.experiments.iter().find(same)?;
        (old.memory != new.memory).then(|| {
            let said = |memory: &Option<String>| memory.clone().unwrap_or_else(|| "none".into());
            format!("{}: {} / {}", new.name, said(&old.memory), said(&new.memory))
        })
    });
    machines.into_iter().chain(memory).collect()
}

fn different_machines(before: &Machine, after: &Machine) -> Vec<String> {
    let host = |machine: &Machine| machine.hypervisor.clone().unwrap_or_else(|| "none".into());
    let facts = |machine: &Machine| {
        [
            ("CPU", machine.cpu.clone()),
            ("CPUs", machine.cpus.to_string()),
            ("caches", format!("{:?}", machine.cache_bytes)),
            ("Linux", machine.kernel.clone()),
            ("hypervisor", host(machine)),
        ]
    };
    let pairs = facts(before).into_iter().zip(facts(after));
    let differ = pairs.filter(|((_, old), (_, new))| old != new);
    differ.map(|((name, old), (_, new))| format!("{name}: {old} / {new}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples around a middle, with a spread, the same for the same seed.
    fn samples(seed: u64, count: usize, middle: f64, spread: f64) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(seed);
        // The sum of four is near enough to a bell.
        let deviation =
            |random: &mut fastrand::Rng| (0..4).map(|_| random.f64() - 0.5).sum::<f64>();
        (0..count).map(|_| middle * (1.0 + spread * deviation(&mut random))).collect()
    }

    fn case(unit: Unit, samples: Vec<f64>) -> Case {
        Case::new("e/m/w", unit, samples)
    }

    fn change(unit: Unit, old: Vec<f64>, new: Vec<f64>) -> CaseChange {
        CaseChange::between(&case(unit, old), &case(unit, new))
    }

    fn record(cases: Vec<Case>) -> Record {
        let experiment = Experiment { name: "e".into(), cases, ..Experiment::default() };
        Record {
            schema: "hugekit-lab/1".into(),
            made: jiff::Timestamp::UNIX_EPOCH,
            command: "hugekit lab".into(),
            machine: Machine::default(),
            uncontrolled: Vec::new(),
            experiments: vec![experiment],
        }
    }

    #[test]
    fn a_real_change_is_found_in_either_unit_and_direction() {
        for seed in 0..20 {
            let old = samples(seed, 20, 10.0, 0.05);
            let more = samples(seed + 100, 20, 12.0, 0.05);
            let faster = change(Unit::GibPerSecond, old.clone(), more.clone());
            assert_eq!(faster.verdict, ChangeVerdict::Faster, "{faster:?}");
            assert!((faster.speed_up - 1.2).abs() < 0.06, "{faster:?}");
            assert!(faster.interval.0 > 1.0 && faster.interval.1 < 1.35, "{faster:?}");
            assert_eq!(change(Unit::Microseconds, old, more).verdict, ChangeVerdict::Slower);
        }
    }

    #[test]
    fn probabilities_are_those_of_all_ways_to_deal() {
        let rounds = |from: u32, to: u32| (from..=to).map(f64::from).collect::<Vec<_>>();
        let near =
            |p: f64, exact: f64| assert!((p - exact).abs() < 0.001 + exact / 10.0, "{p} {exact}");
        // All of six below all of six: two of the 924 ways to deal.
        near(probability(&rounds(1, 6), &rounds(7, 12)), 2.0 / 924.0);
        near(probability(&rounds(7, 12), &rounds(1, 6)), 2.0 / 924.0);
        // Counted out: so are 60 of the 924.
        near(
            probability(&[1.0, 2.0, 3.0, 4.0, 6.0, 11.0], &[5.0, 7.0, 8.0, 9.0, 10.0, 12.0]),
            60.0 / 924.0,
        );
        assert_eq!(probability(&[2.0; 9], &[2.0; 9]), 1.0);
        assert_eq!(ranks(&[5.0, 1.0], &[5.0, 9.0]), [2.5, 1.0, 2.5, 4.0]);
    }

    #[test]
    fn noise_is_no_change() {
        let found = (0..600)
            .map(|seed| {
                let (old, new) =
                    (samples(seed, 12, 10.0, 0.3), samples(seed + 10_000, 12, 10.0, 0.3));
                change(Unit::GibPerSecond, old, new).verdict
            })
            .filter(|verdict| *verdict != ChangeVerdict::WithinNoise)
            .count();
        assert!(found <= 8, "{found} of 600");
    }

    #[test]
    fn a_change_that_placement_explains_is_noise_however_sure() {
        let (old, new) = (samples(1, 100, 10.0, 0.001), samples(2, 100, 10.3, 0.001));
        let change = change(Unit::GibPerSecond, old, new);
        assert!(change.p < 0.001 && change.verdict == ChangeVerdict::WithinNoise, "{change:?}");
    }

    #[test]
    fn a_run_that_drifts_hides_changes_of_that_size() {
        let mut old = samples(1, 10, 10.0, 0.01);
        old.extend(samples(2, 10, 13.0, 0.01));
        let change = change(Unit::GibPerSecond, old, samples(3, 20, 14.0, 0.01));
        assert!(change.noise > 0.25 && change.verdict == ChangeVerdict::WithinNoise, "{change:?}");
    }

    #[test]
    fn what_libc_changed_by_on_the_same_workload_is_the_machine() {
        let named = |id: &str, seed, middle| Case {
            id: id.into(),
            ..case(Unit::GibPerSecond, samples(seed, 20, middle, 0.02))
        };
        let run = |seed, memset, auto, other| {
            record(vec![
                named("stores/memset/4KiB", seed, memset),
                named("stores/auto/4KiB", seed + 1, auto),
                named("stores/auto/1MiB", seed + 2, other),
            ])
        };
        let before = run(1, 20.0, 30.0, 30.0);
        let verdicts = |after: &Record| -> Vec<ChangeVerdict> {
            let comparison = Comparison::between(("a", &before), ("b", after));
            comparison.changes.iter().map(|change| change.verdict).collect()
        };
        use ChangeVerdict::{Faster, Slower, WithinNoise};
        assert_eq!(verdicts(&run(9, 26.0, 38.0, 39.0)), [WithinNoise, WithinNoise, Faster]);
        assert_eq!(verdicts(&run(9, 20.4, 15.0, 30.0)), [WithinNoise, Slower, WithinNoise]);
    }

    #[test]
    fn few_rounds_prove_nothing() {
        let change = change(Unit::GibPerSecond, vec![1.0; 4], vec![9.0, 9.1, 9.2, 9.3]);
        assert_eq!(change.verdict, ChangeVerdict::TooFewRounds);
        assert!((least_probability(5, 5) - 2.0 / 252.0).abs() < 1e-12);
    }

    #[test]
    fn equal_samples_are_equal() {
        let change = change(Unit::Microseconds, vec![2.0; 9], vec![2.0; 9]);
        assert_eq!((change.verdict, change.speed_up), (ChangeVerdict::WithinNoise, 1.0));
    }

    #[test]
    fn cases_of_one_record_only_are_named() {
        let renamed = |id: &str| Case { id: id.into(), ..case(Unit::Microseconds, vec![1.0]) };
        let (old, new) = (record(vec![renamed("a"), renamed("b")]), record(vec![renamed("b")]));
        let comparison = Comparison::between(("old", &old), ("new", &new));
        assert_eq!(comparison.only_before, ["a"]);
        assert_eq!((comparison.changes.len(), comparison.only_after.len()), (1, 0));
        assert!(comparison.warnings.is_empty(), "{:?}", comparison.warnings);
    }

    #[test]
    fn another_machine_is_warned_of() {
        let (old, mut new) = (record(Vec::new()), record(Vec::new()));
        new.machine.cpu = "another".into();
        new.experiments[0].memory = Some("other pages".into());
        let warnings = Comparison::between(("old", &old), ("new", &new)).warnings;
        assert!(warnings[0].contains("different machines (CPU:  / another)"), "{warnings:?}");
        assert!(warnings[1].contains("e: none / other pages"), "{warnings:?}");
    }

    #[test]
    fn where_others_used_the_machine_only_comparisons_within_rounds_are_judged() {
        let cases = |speed: f64, gain: f64| {
            let disturbances = samples(9, 20, speed, 0.2);
            let subject = disturbances.iter().map(|sample| sample * gain).collect();
            let case =
                |id: &str, samples| Case { id: id.into(), ..case(Unit::GibPerSecond, samples) };
            vec![case("e/a/w", disturbances), case("e/b/w", subject)]
        };
        let recorded = |speed, gain| {
            let mut record = record(cases(speed, gain));
            let experiment = &mut record.experiments[0];
            let [a, b] = &experiment.cases[..] else { unreachable!() };
            experiment.ratios = vec![Ratio::between("e/a-vs-b/w".into(), a, b)];
            record
        };
        let (old, mut new) = (recorded(10.0, 2.0), recorded(5.0, 3.0));
        let verdicts = |old: &Record, new: &Record| -> Vec<ChangeVerdict> {
            let comparison = Comparison::between(("old", old), ("new", new));
            comparison.changes.iter().map(|change| change.verdict).collect()
        };
        assert_eq!(
            verdicts(&old, &new),
            [ChangeVerdict::Slower, ChangeVerdict::Slower, ChangeVerdict::Faster]
        );
        let others_percent = Some(150.0);
        new.experiments[0].noise =
            Some(crate::record::Noise { others_percent, ..Default::default() });
        assert_eq!(
            verdicts(&old, &new),
            [ChangeVerdict::Disturbed, ChangeVerdict::Disturbed, ChangeVerdict::Faster]
        );
        assert_eq!(verdicts(&new, &old)[2], ChangeVerdict::Slower);
        let warnings = Comparison::between(("old", &old), ("new", &new)).warnings;
        assert!(warnings[0].contains("e: other processes used 150 % of a CPU"), "{warnings:?}");
    }

    #[test]
    fn a_limit_counts_only_what_is_slower_for_sure() {
        let old = record(vec![case(Unit::GibPerSecond, samples(1, 20, 10.0, 0.02))]);
        let new = record(vec![case(Unit::GibPerSecond, samples(2, 20, 8.0, 0.02))]);
        let slower = Comparison::between(("old", &old), ("new", &new));
        assert_eq!(slower.slower_beyond(0.1).count(), 1);
        assert_eq!(slower.slower_beyond(0.3).count(), 0);
        let faster = Comparison::between(("new", &new), ("old", &old));
        assert_eq!(faster.slower_beyond(0.0).count(), 0);
    }
}
