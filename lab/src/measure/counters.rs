//! Events that the kernel and the CPU count while a case runs.
//!
//! Counters are read around each turn of a case in a round: what it does outside of its clock, such as
//! giving pages back, is counted too. The sampler knows cases by their index only and an
//! experiment decides afterwards what to call them, so the samples themselves tell which case a count
//! belongs to.
//!
//! Faults and context switches come from `getrusage(2)`, which always answers. Migrations and what the
//! CPU counts come from `perf_event_open(2)`, where the machine has them and permits it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use crate::record::{AVAILABLE, Case, Counters};
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware, Software};
use perf_event::{Builder, Counter};

use crate::measure::machine::usage::{Usage, Who};
use crate::measure::observer::{Interrupted, Observer};

/// Names and events of what the CPU counts, if it does.
fn hardware() -> Vec<(&'static str, CounterEvent)> {
    let cache = |which, operation, result| CounterEvent::Cache(Cache { which, operation, result });
    let (access, miss) = (CacheResult::ACCESS, CacheResult::MISS);
    vec![
        ("cycles", CounterEvent::Hardware(Hardware::CPU_CYCLES)),
        ("instructions", CounterEvent::Hardware(Hardware::INSTRUCTIONS)),
        ("branches", CounterEvent::Hardware(Hardware::BRANCH_INSTRUCTIONS)),
        ("branch-misses", CounterEvent::Hardware(Hardware::BRANCH_MISSES)),
        ("L1-dcache-loads", cache(CacheId::L1D, CacheOp::READ, access)),
        ("L1-dcache-load-misses", cache(CacheId::L1D, CacheOp::READ, miss)),
        ("L1-dcache-prefetches", cache(CacheId::L1D, CacheOp::PREFETCH, access)),
        ("LLC-loads", cache(CacheId::LL, CacheOp::READ, access)),
        ("LLC-load-misses", cache(CacheId::LL, CacheOp::READ, miss)),
        ("LLC-stores", cache(CacheId::LL, CacheOp::WRITE, access)),
        ("dTLB-loads", cache(CacheId::DTLB, CacheOp::READ, access)),
        ("dTLB-load-misses", cache(CacheId::DTLB, CacheOp::READ, miss)),
    ]
}

/// An event that a CPU counts.
enum CounterEvent {
    Hardware(Hardware),
    Cache(Cache),
}

/// A counter that runs, in this thread and those it starts from now on. The kernel's share is counted
/// where that is permitted.
fn open<E: Event + Clone>(event: E) -> io::Result<Counter> {
    let build = |kernel: bool| {
        let mut counter = Builder::new(event.clone())
            .inherit(true)
            .exclude_kernel(!kernel)
            .exclude_hv(true)
            .build()?;
        counter.enable()?;
        Ok(counter)
    };
    build(true).or_else(|_| build(false))
}

/// Events of a name, and the seconds for which the counter was wanted and those for which it ran; neither
/// for what the kernel counts all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    count: f64,
    wanted: f64,
    ran: f64,
}

impl Reading {
    /// With the counters that share the CPU's few registers by turns, scaled to all of the time.
    fn scaled(self) -> Option<f64> {
        match self {
            Self { wanted: 0.0, count, .. } => Some(count),
            Self { ran: 0.0, .. } => None,
            Self { count, wanted, ran } => Some(count * wanted / ran),
        }
    }

    fn plus(self, other: Self, sign: f64) -> Self {
        Self {
            count: self.count + sign * other.count,
            wanted: self.wanted + sign * other.wanted,
            ran: self.ran + sign * other.ran,
        }
    }
}

type Readings = BTreeMap<&'static str, Reading>;

/// Counters of this process.
struct Sources(Vec<(&'static str, Counter)>);

impl Sources {
    /// Opens all available counters, and returns the words about those of the CPU.
    fn open() -> (Self, String) {
        let migrations = open(Software::CPU_MIGRATIONS).ok().map(|counter| ("migrations", counter));
        let mut refused = None;
        let mut counters: Vec<(&'static str, Counter)> = Vec::new();
        for (name, source) in hardware() {
            let counter = match source {
                CounterEvent::Hardware(event) => open(event),
                CounterEvent::Cache(event) => open(event),
            };
            match counter {
                Ok(counter) => counters.push((name, counter)),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let said = match refused {
            Some(error) if counters.is_empty() => format!("not available: {}", reason(&error)),
            _ => AVAILABLE.to_owned(),
        };
        counters.extend(migrations);
        (Self(counters), said)
    }

    fn read(&mut self) -> Readings {
        let mut readings = usage();
        for (name, counter) in &mut self.0 {
            // A counter that cannot be read is as good as one that never ran.
            let Ok(data) = counter.read_full() else { continue };
            let seconds = |time: Option<std::time::Duration>| time.map_or(0.0, |t| t.as_secs_f64());
            let (wanted, ran) = (seconds(data.time_enabled()), seconds(data.time_running()));
            readings.insert(name, Reading { count: data.count() as f64, wanted, ran });
        }
        readings
    }
}

/// The reason why the kernel gave no counter, with a remedy.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            "this machine has none, as most virtual machines".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "not permitted; `sysctl kernel.perf_event_paranoid=2` or less permits them".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The counts of `getrusage(2)`, of all threads and of children that have ended: some cases are processes.
fn usage() -> Readings {
    let both = [Who::ThisProcess, Who::EndedChildren].map(Usage::of);
    let sum = |of: fn(&Usage) -> u64| {
        let count = both.iter().map(of).sum::<u64>() as f64;
        Reading { count, ..Reading::default() }
    };
    Readings::from([
        ("minor-faults", sum(|usage| usage.minor_faults)),
        ("major-faults", sum(|usage| usage.major_faults)),
        ("voluntary-switches", sum(|usage| usage.voluntary_switches)),
        ("involuntary-switches", sum(|usage| usage.involuntary_switches)),
    ])
}

/// The counts for one case of a group, and for how many turns.
#[derive(Clone, Default)]
struct Tally {
    turns: usize,
    readings: Readings,
}

impl Tally {
    fn add(&mut self, before: &Readings, after: &Readings) {
        self.turns += 1;
        for (name, after) in after {
            let Some(before) = before.get(name) else { continue };
            let sum = self.readings.entry(*name).or_default();
            *sum = sum.plus(*after, 1.0).plus(*before, -1.0);
        }
    }

    fn per_round(&self) -> BTreeMap<String, f64> {
        let readings = self.readings.iter();
        let means = readings.filter_map(|(name, sum)| {
            Some(((*name).to_owned(), sum.scaled()? / self.turns as f64))
        });
        with_instructions_per_cycle(means.collect())
    }
}

/// The ratio that the published work of 2018 is about, where both sides of it were counted.
fn with_instructions_per_cycle(mut counts: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let both = counts.get("instructions").zip(counts.get("cycles"));
    if let Some((instructions, cycles)) = both.filter(|(_, cycles)| **cycles > 0.0) {
        counts.insert("instructions-per-cycle".to_owned(), instructions / cycles);
    }
    counts
}

/// An observer that counts, in front of the one that the user has.
pub struct Counting<'a> {
    inner: &'a dyn Observer,
    state: RefCell<CountingState>,
    hardware: String,
}

/// The counts of the groups that were measured so far.
struct CountingState {
    sources: Sources,
    before: Readings,
    /// The group that is being measured, by index.
    tallies: BTreeMap<usize, Tally>,
    /// Groups that are done: the samples of a case, and its counts.
    done: Vec<(Vec<f64>, Tally)>,
}

impl<'a> Counting<'a> {
    pub fn new(inner: &'a dyn Observer) -> Self {
        let (sources, hardware) = Sources::open();
        let (before, tallies, done) = (Readings::new(), BTreeMap::new(), Vec::new());
        let state = RefCell::new(CountingState { sources, before, tallies, done });
        Self { inner, state, hardware }
    }

    /// `available`, or the reason why the CPU's counters are not.
    pub fn hardware(&self) -> &str {
        &self.hardware
    }

    /// The counts for these cases since the last call.
    pub fn take(&self, cases: &[Case]) -> Vec<Counters> {
        let done = std::mem::take(&mut self.state.borrow_mut().done);
        let of = |case: &Case| {
            let (_, tally) = done.iter().find(|(samples, _)| *samples == case.samples)?;
            Some(Counters { id: case.id.clone(), per_round: tally.per_round() })
        };
        cases.iter().filter_map(of).collect()
    }
}

impl Observer for Counting<'_> {
    fn check(&self) -> Result<(), Interrupted> {
        self.inner.check()
    }

    fn begin(&self, stage: &str) {
        self.inner.begin(stage);
    }

    fn progress(&self, fraction: f64) {
        self.inner.progress(fraction);
    }

    fn turn_begins(&self) {
        let state = &mut *self.state.borrow_mut();
        state.before = state.sources.read();
    }

    fn turn_ends(&self, case: usize) {
        let state = &mut *self.state.borrow_mut();
        let after = state.sources.read();
        state.tallies.entry(case).or_default().add(&state.before, &after);
    }

    fn group_ends(&self, samples: &[Vec<f64>]) {
        let state = &mut *self.state.borrow_mut();
        let tallies = std::mem::take(&mut state.tallies);
        let of_case = |(case, tally): (usize, Tally)| Some((samples.get(case)?.clone(), tally));
        state.done.extend(tallies.into_iter().filter_map(of_case));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Quiet;
    use crate::measure::sampler::{Plan, try_alternate};
    use crate::measure::workloads::forking::process;
    use crate::record::Unit;
    use hugekit_machine::size::Size;

    fn case(id: &str, samples: &[f64]) -> Case {
        Case::new(id, Unit::Microseconds, samples.to_vec())
    }

    /// Touches this many fresh pages.
    fn fault(pages: usize) {
        let mut memory = crate::measure::workloads::anonymous::Anonymous::new(
            crate::measure::workloads::anonymous::Pages::Base,
            pages * 4096,
        )
        .unwrap();
        memory.bytes().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    }

    #[test]
    fn faults_are_counted_for_the_case_that_made_them() {
        let counting = Counting::new(&Quiet);
        let mut sample = 0.0;
        let rounds = try_alternate(Plan::exactly(4), 2, &counting, |case| {
            fault(if case == 0 { 1 } else { 2000 });
            sample += 1.0;
            Ok(sample)
        });
        let samples = rounds.unwrap().samples;
        let cases = [case("many", &samples[1]), case("few", &samples[0]), case("derived", &[0.5])];
        let counters = counting.take(&cases);
        assert_eq!(counters.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["many", "few"]);
        let faults = |index: usize| counters[index].per_round["minor-faults"];
        // Other tests of this process fault meanwhile.
        assert!(faults(0) >= 2000.0 && faults(0) > faults(1), "{counters:?}");
        assert!(counting.take(&cases).is_empty());
    }

    #[test]
    fn faults_of_a_child_that_has_ended_are_counted_for_its_case() {
        let counting = Counting::new(&Quiet);
        let mut sample = 0.0;
        let rounds = try_alternate(Plan::exactly(3), 1, &counting, |_| {
            let in_child = || {
                fault(5000);
                true
            };
            process(Size(5000 * 4096), in_child)?.wait()?;
            sample += 1.0;
            Ok(sample)
        });
        let cases = [case("child", &rounds.unwrap().samples[0])];
        let faults = counting.take(&cases)[0].per_round["minor-faults"];
        assert!(faults >= 5000.0, "{faults}");
    }

    #[test]
    fn counters_that_take_turns_are_scaled_and_those_that_never_ran_are_none() {
        let half = Reading { count: 10.0, wanted: 2.0, ran: 1.0 };
        assert_eq!(half.scaled(), Some(20.0));
        assert_eq!(Reading { ran: 0.0, ..half }.scaled(), None);
        assert_eq!(Reading { ran: 0.0, wanted: 0.0, ..half }.scaled(), Some(10.0));
    }

    #[test]
    fn instructions_per_cycle_are_there_where_both_were_counted() {
        let counts = |counts: &[(&str, f64)]| {
            let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count));
            with_instructions_per_cycle(counts.collect()).remove("instructions-per-cycle")
        };
        assert_eq!(counts(&[("instructions", 63.0), ("cycles", 100.0)]), Some(0.63));
        assert_eq!(counts(&[("instructions", 63.0)]), None);
        assert_eq!(counts(&[("instructions", 63.0), ("cycles", 0.0)]), None);
    }

    #[test]
    fn hardware_counters_are_there_or_there_is_a_reason() {
        let (sources, said) = Sources::open();
        let cycles = sources.0.iter().any(|(name, _)| *name == "cycles");
        assert_eq!(cycles, said == AVAILABLE, "{said}");
        assert!(cycles || said.starts_with("not available: "), "{said}");
    }
}
