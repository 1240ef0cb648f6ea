//! The rule: a claim is reproduced if every ratio that repeats it has a median with the claimed direction, with 95 %
//! confidence. So a claim of no certain gain is not reproduced, and a single disturbed round decides nothing.

use crate::record::stats::{FEWEST_ROUNDS, median_interval};
use crate::record::{Case, Experiment, Machine, Ratio, Record, pairs, parts};
use hugekit_machine::size::Size;

use super::{ClaimVerdict, Direction, EventComparison, Measured, Ratios, Test, Workloads};

pub(super) fn verdict(test: &Test, record: &Record) -> ClaimVerdict {
    let (claims, measured) = match test {
        Test::None(why) => return ClaimVerdict::NotTestable((*why).to_owned()),
        Test::Ratios(ratios) => (ratios.claims, ratios.measured(record)),
        Test::Counts(counts) => (Direction::Faster, counts.measured(record)),
    };
    match measured {
        Err(why) => ClaimVerdict::NotTestable(why),
        Ok(measured) if claims.holds(measured.certain) => ClaimVerdict::Reproduced(measured),
        Ok(measured) => ClaimVerdict::NotReproduced(measured),
    }
}

/// The interval of the median, if there are enough rounds.
fn interval(experiment: &Experiment, ratio: &Ratio) -> Option<(f64, f64)> {
    let case = |id: &str| experiment.cases.iter().find(|case| case.id == id);
    let pairs = pairs(case(&ratio.baseline)?, case(&ratio.subject)?);
    median_interval(&pairs.collect::<Vec<_>>())
}

fn experiment_in<'a>(record: &'a Record, name: &str) -> Result<&'a Experiment, String> {
    let found = record.experiments.iter().find(|one| one.name == name);
    let experiment = found.ok_or_else(|| format!("`hugekit lab {name}` measures it"))?;
    match &experiment.skipped {
        Some(skipped) => Err(skipped.reason.clone()),
        None => Ok(experiment),
    }
}

impl Direction {
    fn holds(self, (low, high): (f64, f64)) -> bool {
        match self {
            Self::Faster => low > 1.0,
            Self::Slower => high < 1.0,
        }
    }
}

impl Ratios {
    fn measured(&self, record: &Record) -> Result<Measured, String> {
        let experiment = experiment_in(record, self.experiment)?;
        let all: Vec<&Ratio> =
            experiment.ratios.iter().filter(|one| self.has(one, &record.machine)).collect();
        let most = all.iter().map(|one| one.pairs).max();
        let most = most.ok_or_else(|| format!("it needs {}", self.needs))?;
        let certain =
            |one: &&'_ Ratio| Some((interval(experiment, one)?, one.median, one.min, one.max));
        let enough: Vec<_> = all.iter().filter_map(certain).collect();
        if enough.is_empty() {
            return Err(format!(
                "it needs the samples of {FEWEST_ROUNDS} rounds (`--rounds`), and here are at most {most}"
            ));
        }
        Ok(Measured {
            medians: extremes(enough.iter().map(|(_, median, ..)| *median)),
            certain: extremes(enough.iter().flat_map(|((low, high), ..)| [*low, *high])),
            rounds: extremes(enough.iter().flat_map(|(.., min, max)| [*min, *max])),
        })
    }

    fn has(&self, ratio: &Ratio, machine: &Machine) -> bool {
        parts(&ratio.id).is_some_and(|(methods, workload)| {
            ratio.like_for_like
                && self.methods.contains(&methods)
                && self.workloads.has(workload, machine.cache_bytes.last().copied())
        })
    }
}

impl EventComparison {
    fn measured(&self, record: &Record) -> Result<Measured, String> {
        let experiment = experiment_in(record, self.experiment)?;
        let cache = record.machine.cache_bytes.last().copied();
        let of_workload = |case: &Case| {
            let (method, workload) = parts(&case.id)?;
            let is_wanted = method == self.methods[0] && self.workloads.has(workload, cache);
            is_wanted.then(|| self.ratio(experiment, workload)).flatten()
        };
        let ratios: Vec<f64> = experiment.cases.iter().filter_map(of_workload).collect();
        if ratios.is_empty() {
            return Err("it needs hardware counters".to_owned());
        }
        let means = extremes(ratios);
        Ok(Measured { medians: means, certain: means, rounds: means })
    }

    /// The number of times fewer events that the second method had.
    fn ratio(&self, experiment: &Experiment, workload: &str) -> Option<f64> {
        let counters = &experiment.noise.as_ref()?.counters;
        let [one, other] = self.methods.map(|method| {
            let id = format!("{}/{method}/{workload}", self.experiment);
            counters.iter().find(|one| one.id == id)?.per_round.get(self.event).copied()
        });
        // None at all is as good as one.
        Some(one? / other?.max(1.0))
    }
}

impl Workloads {
    fn has(&self, workload: &str, cache: Option<usize>) -> bool {
        let against_cache = |is_right: fn(usize, usize) -> bool| {
            let bytes = workload.parse::<Size>().ok().map(|size| size.0);
            bytes.zip(cache).is_some_and(|(bytes, cache)| is_right(bytes, cache))
        };
        match self {
            Self::Only(all) => all.contains(&workload),
            Self::EndingWith(end) => workload.ends_with(end),
            Self::OverCache => against_cache(|bytes, cache| bytes > cache),
            Self::WithinCache => against_cache(|bytes, cache| bytes <= cache / 2),
        }
    }
}

/// The smallest and the largest of some numbers.
pub(super) fn extremes(numbers: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    numbers.into_iter().fold(start, |(low, high), one| (low.min(one), high.max(one)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::record::{Counters, Noise, Skipped, Unit};
    use hugekit_machine::size::{GIB, MIB};

    const TEST: Test = Test::Ratios(RATIOS);

    const RATIOS: Ratios = Ratios {
        experiment: "e",
        methods: &["a-vs-b"],
        workloads: Workloads::Only(&["1", "2"]),
        claims: Direction::Faster,
        needs: "patience",
    };

    /// An experiment with these ratios of `a` to `b`, round by round, on each workload.
    fn experiment(rounds: &[(&str, &[f64])]) -> Experiment {
        let mut experiment = Experiment::new("e");
        for (workload, samples) in rounds {
            let ones = vec![1.0; samples.len()];
            experiment.add_case(&format!("a/{workload}"), Unit::GibPerSecond, ones);
            experiment.add_case(&format!("b/{workload}"), Unit::GibPerSecond, samples.to_vec());
            experiment.compare(("a", "b"), workload, None);
        }
        experiment
    }

    fn record(experiment: Experiment) -> Record {
        let mut record = Record::parse(include_str!("../../../tests/data/record.json")).unwrap();
        record.experiments = vec![experiment];
        record
    }

    fn verdict_of(rounds: &[(&str, &[f64])]) -> ClaimVerdict {
        verdict(&TEST, &record(experiment(rounds)))
    }

    fn why(verdict: ClaimVerdict) -> String {
        match verdict {
            ClaimVerdict::NotTestable(why) => why,
            verdict => panic!("{verdict:?}"),
        }
    }

    const GOOD: [f64; 6] = [1.01, 1.2, 1.4, 1.6, 1.8, 2.0];

    #[test]
    fn a_claim_is_reproduced_if_every_median_agrees_for_certain() {
        let measured = |certain, rounds| Measured { medians: (1.5, 3.0), certain, rounds };
        let all = verdict_of(&[("1", &GOOD), ("2", &[3.0; 7])]);
        assert_eq!(all, ClaimVerdict::Reproduced(measured((1.01, 3.0), (1.01, 3.0))));
        let doubtful = [1.0, 3.0, 3.0, 3.0, 3.0, 3.0];
        let one = verdict_of(&[("1", &GOOD), ("2", &doubtful)]);
        assert_eq!(one, ClaimVerdict::NotReproduced(measured((1.0, 3.0), (1.0, 3.0))));
        let disturbed = [0.1, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0];
        let one = verdict_of(&[("1", &GOOD), ("2", &disturbed)]);
        assert_eq!(one, ClaimVerdict::Reproduced(measured((1.01, 3.0), (0.1, 3.0))));
    }

    #[test]
    fn a_claimed_loss_is_reproduced_if_every_median_is_one_for_certain() {
        let slower = Test::Ratios(Ratios { claims: Direction::Slower, ..RATIOS });
        let of = |rounds: [f64; 6]| verdict(&slower, &record(experiment(&[("1", &rounds)])));
        assert!(matches!(of([0.7, 0.8, 0.8, 0.8, 0.9, 0.9]), ClaimVerdict::Reproduced(_)));
        assert!(matches!(of([0.7, 0.8, 0.8, 0.8, 0.9, 1.1]), ClaimVerdict::NotReproduced(_)));
    }

    #[test]
    fn other_ratios_decide_nothing() {
        let mut all = experiment(&[("1", &GOOD), ("3", &[0.5; 9]), ("2", &[0.5; 9])]);
        all.ratios[2] = all.ratios[2].clone().unlike("moved");
        let decided = verdict(&TEST, &record(all));
        assert!(matches!(decided, ClaimVerdict::Reproduced(_)), "{decided:?}");
        let few = verdict_of(&[("1", &GOOD), ("2", &[0.5; 5])]);
        assert!(matches!(few, ClaimVerdict::Reproduced(_)), "{few:?}");
    }

    #[test]
    fn without_such_ratios_there_is_a_reason() {
        assert_eq!(why(verdict_of(&[])), "it needs patience");
        let few = "it needs the samples of 6 rounds (`--rounds`), and here are at most 5";
        assert_eq!(why(verdict_of(&[("1", &[2.0; 4]), ("2", &[2.0; 5])])), few);
        let mut without_samples = experiment(&[("1", &GOOD)]);
        without_samples.cases.clear();
        assert!(why(verdict(&TEST, &record(without_samples))).contains("needs the samples"));
        let mut skipped = record(experiment(&[]));
        let reason = "one CPU".to_owned();
        skipped.experiments[0].skipped = Some(Skipped { reason, remedy: String::new() });
        assert_eq!(why(verdict(&TEST, &skipped)), "one CPU");
        skipped.experiments.clear();
        assert_eq!(why(verdict(&TEST, &skipped)), "`hugekit lab e` measures it");
        assert_eq!(why(verdict(&Test::None("two kernels"), &skipped)), "two kernels");
    }

    #[test]
    fn events_are_compared_where_the_cpu_counted_them() {
        let workloads = Workloads::Only(&["1"]);
        let counts =
            EventComparison { experiment: "e", methods: ["a", "b"], workloads, event: "loads" };
        let test = Test::Counts(counts);
        let mut record = record(experiment(&[]));
        assert_eq!(why(verdict(&test, &record)), "it needs hardware counters");
        let case = |id: &str| Case::new(id, Unit::Microseconds, vec![1.0]);
        record.experiments[0].cases = ["e/a/1", "e/b/1", "e/a/2"].map(case).to_vec();
        assert_eq!(why(verdict(&test, &record)), "it needs hardware counters");
        let mut of = |b: f64| {
            let counted = [("e/a/1", 12.0), ("e/b/1", b), ("e/a/2", 1.0)];
            let counters = counted.map(|(id, count)| {
                let per_round = BTreeMap::from([("loads".to_owned(), count)]);
                Counters { id: id.to_owned(), per_round }
            });
            let noise = Noise { counters: counters.to_vec(), ..Noise::default() };
            record.experiments[0].noise = Some(noise);
            verdict(&test, &record)
        };
        let measured = |ratio| {
            let only = (ratio, ratio);
            Measured { medians: only, certain: only, rounds: only }
        };
        assert_eq!(of(4.0), ClaimVerdict::Reproduced(measured(3.0)));
        assert_eq!(of(24.0), ClaimVerdict::NotReproduced(measured(0.5)));
        assert_eq!(of(0.0), ClaimVerdict::Reproduced(measured(12.0)));
    }

    #[test]
    fn sizes_are_compared_with_the_last_level() {
        let has = |workloads: &Workloads, workload: &str| workloads.has(workload, Some(32 * MIB));
        let (over, within) = (Workloads::OverCache, Workloads::WithinCache);
        assert_eq!(["16MiB", "32MiB", "128MiB"].map(|size| has(&over, size)), [false, false, true]);
        assert_eq!(["16MiB", "32MiB"].map(|size| has(&within, size)), [true, false]);
        assert!(!has(&over, "128MiB+read") && !has(&within, "1MiB+read"));
        assert!(!over.has(&Size(GIB).to_string(), None));
        assert!(has(&Workloads::EndingWith("-scarce"), "2-first-scarce"));
    }
}
