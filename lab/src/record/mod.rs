//! The record of a run: every raw sample, the ratios, the disturbances, and the influences that were not controlled. It
//! is read, kept and compared here; nothing is measured.

pub mod archive;
pub mod compare;
mod noise;
mod part;
pub mod published;
mod reading;
pub mod stats;

use std::error::Error;

use hugekit::error_chain;
use hugekit_machine::plain;
use jiff::Timestamp;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use stats::{Summary, median};

pub use noise::{AVAILABLE, Counters, Noise};
pub use published::{Difference, Elsewhere, Published};
pub use reading::{ContentError, ReadError};

/// The record's kind, which its version follows.
pub const KIND: &str = "hugekit-lab/";

/// The version of records that this lab writes and reads. It grows when a reader of the version before would refuse or
/// misunderstand a record; fields that a reader may ignore do not count.
pub const VERSION: u32 = 1;

/// The record of one run of the lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `hugekit-lab/` and the [`VERSION`] that it was written as.
    pub schema: String,
    /// When the run ended.
    pub made: Timestamp,
    /// The command line, as the user could repeat it.
    pub command: String,
    /// The machine of the run.
    pub machine: Machine,
    /// Influences on every figure that were neither controlled nor seen.
    pub uncontrolled: Vec<String>,
    /// The experiments, in order.
    pub experiments: Vec<Experiment>,
}

impl Record {
    /// Failed cases and parts of all experiments.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.experiments.iter().flat_map(|experiment| &experiment.failures)
    }
}

/// The machine a record was made on, as far as it bears on the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's marketing name.
    pub cpu: String,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// Release of the running kernel.
    pub kernel: String,
    /// The hypervisor underneath, if there is one.
    pub hypervisor: Option<String>,
    /// L1 data, L2 and last-level cache of one CPU in bytes; empty if the kernel does not say.
    pub cache_bytes: Vec<usize>,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Nodes of the memory, if the machine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// `on` if CPUs may exceed their nominal frequency, or `off`, if the machine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turbo: Option<String>,
    /// The policy that chooses a frequency, if the machine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Hardware counters: `available`, or `not available` and why.
    pub hardware_counters: String,
}

/// The record of one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: String,
    /// The reason why it did not run, if it did not.
    pub skipped: Option<Skipped>,
    /// The memory it ran on.
    pub memory: Option<String>,
    /// Facts that a reader must know to judge the figures.
    pub notices: Vec<String>,
    /// The measurements.
    pub cases: Vec<Case>,
    /// The comparisons.
    pub ratios: Vec<Ratio>,
    /// Published figures of other workloads than these, and what differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
    /// The distribution of single events, for cases whose samples sum up many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<Distribution>,
    /// The course of some cases within their last round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<Timeline>,
    /// The course of some operations from the first call of a process to later ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<Sequence>,
    /// Cases and parts that failed; the rest was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// The disturbances; none if the experiment was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
}

impl Experiment {
    /// An experiment without results.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// On memory that is described.
    pub fn on(name: &str, memory: String) -> Self {
        Self { memory: Some(memory), ..Self::new(name) }
    }

    /// An experiment that cannot run here.
    pub fn skipped(name: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (reason, remedy) = (reason.into(), remedy.into());
        Self { skipped: Some(Skipped { reason, remedy }), ..Self::new(name) }
    }
}

/// A writer's stores step by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// `experiment/method/timeline`.
    pub id: String,
    /// The time that one step sums up, in microseconds.
    pub step: f64,
    /// When the save began, in microseconds.
    pub began: f64,
    /// Stores in each step.
    pub stores: Vec<u64>,
    /// The longest of them, in microseconds.
    pub longest: Vec<f64>,
}

/// The same operation, call by call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// `experiment/workload`.
    pub id: String,
    /// The values' unit.
    pub unit: Unit,
    /// The first call, the second, and so on: of each the median over rounds.
    pub calls: Vec<f64>,
    /// Names and medians of the cases with which the calls are compared.
    pub levels: Vec<(String, f64)>,
}

/// A bucket of a distribution ends so many times as far as the one before it.
pub const BUCKET: f64 = 1.25;

/// The distribution of the single events behind a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Id of the case.
    pub id: String,
    /// The values' unit.
    pub unit: Unit,
    /// Events recorded.
    pub count: u64,
    /// Percentiles, ascending: of so many per cent of the events, none was above this value.
    pub percentiles: Vec<(f64, f64)>,
    /// The number of events up to each value and above the value before it, without empty buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(f64, u64)>,
}

/// The reason why an experiment, or a part of it, could not run, and a remedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The reason.
    pub reason: String,
    /// The remedy.
    pub remedy: String,
}

/// A failure within an experiment: one case, or a part of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Id of the case, or name of the part: `experiment` alone stands for all of it.
    pub case: String,
    /// The reason, with every cause.
    pub reason: String,
}

impl Failure {
    /// The failure of a case, with the sources of its error.
    pub fn of(case: &str, error: &(dyn Error + 'static)) -> Self {
        Self { case: case.to_owned(), reason: plain(&error_chain(error).to_string()) }
    }
}

/// A sample's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Bandwidth in units of 2³⁰ bytes per second; more is faster.
    #[serde(rename = "GiB/s")]
    GibPerSecond,
    /// Time in microseconds; less is faster.
    #[serde(rename = "µs")]
    Microseconds,
    /// Page faults per second, of all threads together; more is faster.
    #[serde(rename = "faults/s")]
    FaultsPerSecond,
    /// Stores per second; more is faster.
    #[serde(rename = "stores/s")]
    StoresPerSecond,
    /// Memory in units of 2²⁰ bytes; less is better.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// Page faults of a process; less is better.
    #[serde(rename = "faults")]
    Faults,
    /// A share in percent; more is better.
    #[serde(rename = "%")]
    Percent,
    /// Executed instructions, of an emulator that counts them; fewer are better.
    #[serde(rename = "instructions")]
    Instructions,
}

impl Unit {
    /// The printed name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GibPerSecond => "GiB/s",
            Self::Microseconds => "µs",
            Self::FaultsPerSecond => "faults/s",
            Self::StoresPerSecond => "stores/s",
            Self::Mebibytes => "MiB",
            Self::Faults => "faults",
            Self::Percent => "%",
            Self::Instructions => "instructions",
        }
    }

    /// The number of times as fast as `baseline` that `subject` is.
    #[must_use]
    pub fn speed_up(self, baseline: f64, subject: f64) -> f64 {
        match self {
            Self::GibPerSecond | Self::FaultsPerSecond | Self::StoresPerSecond | Self::Percent => {
                subject / baseline
            }
            Self::Microseconds | Self::Mebibytes | Self::Faults | Self::Instructions => {
                baseline / subject
            }
        }
    }
}

/// A method measured on one workload, round by round. Its JSON also has the median, for readers that need no more.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Case {
    /// `experiment/method/workload`.
    pub id: String,
    /// A sample's unit.
    pub unit: Unit,
    /// The samples, one for each round.
    pub samples: Vec<f64>,
    /// Published figures for the same method and workload, elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

impl Case {
    /// A case of these samples.
    pub fn new(id: impl Into<String>, unit: Unit, samples: Vec<f64>) -> Self {
        Self { id: id.into(), unit, samples, published: Vec::new() }
    }

    /// The middle sample.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }
}

impl Serialize for Case {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut case = serializer.serialize_struct("Case", 5)?;
        case.serialize_field("id", &self.id)?;
        case.serialize_field("unit", &self.unit)?;
        case.serialize_field("median", &self.median())?;
        case.serialize_field("samples", &self.samples)?;
        if !self.published.is_empty() {
            case.serialize_field("published", &self.published)?;
        }
        case.end()
    }
}

/// Two cases compared within each round; above 1 means that the subject is faster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// `experiment/baseline-vs-subject/workload`.
    pub id: String,
    /// Id of the baseline's case; for "best" the one chosen.
    pub baseline: String,
    /// Id of the subject's case.
    pub subject: String,
    /// The middle of the pairs.
    pub median: f64,
    /// The smallest of the pairs.
    pub min: f64,
    /// The largest of the pairs.
    pub max: f64,
    /// The number of pairs.
    pub pairs: usize,
    /// False if part of the work moved elsewhere, or one side does more.
    pub like_for_like: bool,
    /// Which part, and where to, if not like for like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<String>,
    /// The same comparison as published, as a ratio, elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

impl Ratio {
    fn new(id: String, baseline: &Case, subject: &Case, first: usize, step: usize) -> Self {
        let pairs: Vec<f64> = pairs(baseline, subject).skip(first).step_by(step).collect();
        let Summary { median, min, max } = Summary::of(&pairs);
        Self {
            id,
            baseline: baseline.id.clone(),
            subject: subject.id.clone(),
            median,
            min,
            max,
            pairs: pairs.len(),
            like_for_like: true,
            moved: None,
            published: Vec::new(),
        }
    }

    /// Compares two cases of one run, round by round.
    ///
    /// # Panics
    /// If either has no samples.
    #[must_use]
    pub fn between(id: String, baseline: &Case, subject: &Case) -> Self {
        Self::new(id, baseline, subject, 0, 1)
    }

    /// Marks a comparison in which work moved elsewhere.
    #[must_use]
    pub fn unlike(self, moved: &str) -> Self {
        Self { like_for_like: false, moved: Some(moved.to_owned()), ..self }
    }

    /// Compares the best of `candidates` with `subject`. The best is chosen in odd rounds and judged
    /// in even ones: chosen and judged in the same rounds, the luckiest would win. `None` without
    /// candidates or with fewer than two rounds.
    #[must_use]
    pub fn with_best(id: String, candidates: &[&Case], subject: &Case) -> Option<Self> {
        if subject.samples.len() < 2 {
            return None;
        }
        let odd =
            |case: &Case| median(&case.samples.iter().copied().step_by(2).collect::<Vec<_>>());
        let best = candidates.iter().copied().reduce(|best, case| {
            if subject.unit.speed_up(odd(best), odd(case)) > 1.0 { case } else { best }
        })?;
        Some(Self::new(id, best, subject, 1, 2))
    }
}

/// The number of times as fast that the subject was, round by round.
pub fn pairs<'a>(baseline: &'a Case, subject: &'a Case) -> impl Iterator<Item = f64> + 'a {
    let samples = baseline.samples.iter().zip(&subject.samples);
    samples.map(|(&baseline, &other)| subject.unit.speed_up(baseline, other))
}

/// Method and workload of an id: what is between its first two slashes, and after them.
#[must_use]
pub fn parts(id: &str) -> Option<(&str, &str)> {
    id.split_once('/')?.1.split_once('/')
}

#[cfg(test)]
impl Ratio {
    /// A ratio of two cases with one sample each.
    pub(crate) fn example(id: &str, speed_up: f64) -> Self {
        let case = |sample| Case::new("x", Unit::GibPerSecond, vec![sample]);
        Self::between(id.into(), &case(1.0), &case(speed_up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(id: &str, unit: Unit, samples: &[f64]) -> Case {
        Case::new(id, unit, samples.to_vec())
    }

    #[test]
    fn above_one_means_the_subject_is_faster_in_either_unit() {
        let rates = |id, samples| case(id, Unit::GibPerSecond, samples);
        let ratio = Ratio::between("r".into(), &rates("a", &[10.0]), &rates("b", &[20.0]));
        assert_eq!(ratio.median, 2.0);
        let times = |id, samples| case(id, Unit::Microseconds, samples);
        let ratio = Ratio::between("r".into(), &times("a", &[10.0]), &times("b", &[20.0]));
        assert_eq!(ratio.median, 0.5);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let a = case("a", Unit::GibPerSecond, &[1.0, 10.0, 100.0]);
        let b = case("b", Unit::GibPerSecond, &[2.0, 20.0, 200.0]);
        let ratio = Ratio::between("r".into(), &a, &b);
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.pairs), (2.0, 2.0, 2.0, 3));
    }

    #[test]
    fn the_best_is_chosen_in_odd_rounds_and_judged_in_even_ones() {
        let lucky = case("lucky", Unit::GibPerSecond, &[9.0, 1.0, 9.0, 1.0]);
        let steady = case("steady", Unit::GibPerSecond, &[5.0, 5.0, 5.0, 5.0]);
        let auto = case("auto", Unit::GibPerSecond, &[7.0, 2.0, 7.0, 2.0]);
        let ratio = Ratio::with_best("r".into(), &[&steady, &lucky], &auto).unwrap();
        assert_eq!((ratio.baseline.as_str(), ratio.median, ratio.pairs), ("lucky", 2.0, 2));
    }

    #[test]
    fn one_round_is_too_few_to_choose_and_judge() {
        let only = case("only", Unit::Microseconds, &[1.0]);
        assert_eq!(Ratio::with_best("r".into(), &[&only], &only), None);
    }
}
