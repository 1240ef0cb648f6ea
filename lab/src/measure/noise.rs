//! Noise in an experiment's figures: what else happened on the machine meanwhile, which samples are odd,
//! and what the lab cannot control.
//!
//! The machine is looked at before and after an experiment, never in between. What it does
//! not show is left out and said once per record, instead of a zero that looks like a good one.

use std::fs;
use std::time::{Duration, Instant};

use crate::record::stats::{median, median_interval};
use crate::record::{AVAILABLE, Case, Counters, Experiment, Noise};
use procfs::{CpuPressure, CpuTime, Current, CurrentSI, KernelStats, LoadAverage};
use rustix::param::clock_ticks_per_second;

use crate::measure::machine::usage::{Usage, Who, process_time};

/// From here on, waiting for a CPU is worth a warning, in percent: the lab's own threads wait for each other a little, too.
const MUCH_WAITING: f64 = 10.0;
/// The same for a frequency that moves.
const MUCH_HERTZ: f64 = 10.0;

/// Medians known worse than this are named.
const UNCERTAIN: f64 = 0.1;

/// A sample is odd if it is so many times as far from the median as half of them are (about ten
/// standard deviations of a bell curve), and this fraction of the median.
const ODD_DEVIATIONS: f64 = 15.0;
const ODD_FRACTION: f64 = 0.2;

/// The machine's counters at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    at: Instant,
    /// Times of all CPUs together since the machine started, in ticks.
    cpus: Option<CpuTime>,
    own: Duration,
    /// The time for which a thread waited for a CPU since the machine started.
    waited: Option<Duration>,
    megahertz: Vec<f64>,
}

impl Moment {
    pub fn now() -> Self {
        let pressure = CpuPressure::current().ok();
        Self {
            at: Instant::now(),
            cpus: KernelStats::current().ok().map(|stat| stat.total),
            // Children that are gone included.
            own: process_time() + Usage::of(Who::EndedChildren).cpu(),
            waited: pressure.map(|pressure| Duration::from_micros(pressure.some.total)),
            megahertz: megahertz(),
        }
    }

    /// The noise of an experiment that began at this moment and ends now.
    pub fn noise(&self, experiment: &Experiment, counters: Vec<Counters>) -> Noise {
        let after = Moment::now();
        let elapsed = after.at - self.at;
        let frequencies = || self.megahertz.iter().chain(&after.megahertz).copied();
        let mut noise = Noise {
            seconds: elapsed.as_secs_f64(),
            load_average: LoadAverage::current().ok().map(|load| f64::from(load.one)),
            megahertz: frequencies().reduce(f64::min).zip(frequencies().reduce(f64::max)),
            counters,
            ..Noise::default()
        };
        if let (Some(from), Some(to)) = (&self.cpus, &after.cpus) {
            let ticks = |of: fn(&CpuTime) -> u64| of(to).saturating_sub(of(from));
            noise.steal_percent = Some(ticks(stolen) as f64 * 100.0 / ticks(all).max(1) as f64);
            let own = after.own.saturating_sub(self.own);
            noise.others_percent = Some(others(ticks(busy), own, elapsed));
        }
        let waited = self.waited.zip(after.waited);
        noise.waited_percent = waited.map(|(from, to)| {
            to.saturating_sub(from).as_secs_f64() * 100.0 / elapsed.as_secs_f64()
        });
        noise.warnings =
            of_the_machine(&noise).into_iter().chain(of_samples(&experiment.cases)).collect();
        noise
    }
}

/// Ticks that the CPUs were busy for this machine. Guests' time is part of the users'.
fn busy(time: &CpuTime) -> u64 {
    time.user + time.nice + time.system + time.irq.unwrap_or(0) + time.softirq.unwrap_or(0)
}

fn stolen(time: &CpuTime) -> u64 {
    time.steal.unwrap_or(0)
}

fn all(time: &CpuTime) -> u64 {
    busy(time) + time.idle + time.iowait.unwrap_or(0) + stolen(time)
}

fn of_the_machine(noise: &Noise) -> Vec<String> {
    let disturbance = noise.disturbance().map(|who| {
        format!("{who}: repeat on a quieter machine; ratios within rounds suffer least")
    });
    let waited = noise.waited_percent.filter(|&percent| percent > MUCH_WAITING);
    let waited = waited
        .map(|percent| format!("a thread waited for a CPU during {percent:.0} % of the time"));
    let hertz = noise.megahertz.filter(|(low, high)| (high / low - 1.0) * 100.0 > MUCH_HERTZ);
    let hertz = hertz.map(|(low, high)| {
        format!(
            "the CPUs ran at {low:.0} to {high:.0} MHz: fix the frequency (`cpupower \
             frequency-set`) and repeat"
        )
    });
    [disturbance, waited, hertz].into_iter().flatten().collect()
}

/// Warnings that the samples themselves give.
fn of_samples(cases: &[Case]) -> Vec<String> {
    let uncertain: Vec<(&Case, f64)> = cases
        .iter()
        .filter_map(|case| Some((case, uncertainty(&case.samples)?)))
        .filter(|(_, uncertainty)| *uncertainty > UNCERTAIN)
        .collect();
    let worst = uncertain.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let uncertain = worst.map(|(case, worst)| {
        format!(
            "{} of {} medians are known to no better than ±{:.0} %, that of {} to ±{:.0} %: more `--rounds`, or a quieter machine",
            uncertain.len(), cases.len(), UNCERTAIN * 100.0, case.id, worst * 100.0
        )
    });
    let few = cases.iter().filter(|case| median_interval(&case.samples).is_none()).count();
    let few = (few > 0).then(|| {
        format!("{few} of {} medians are of too few rounds to say how certain they are: more `--rounds`", cases.len())
    });
    let odd: Vec<&Case> =
        cases.iter().filter(|case| odd_samples(&case.samples).count() > 0).collect();
    let samples: usize = odd.iter().map(|case| odd_samples(&case.samples).count()).sum();
    let outliers = odd.first().map(|first| {
        let also = if odd.len() > 1 {
            format!(" and {} more cases", odd.len() - 1)
        } else {
            String::new()
        };
        format!(
            "{samples} samples lie far from the others, in {}{also}; medians do not follow them",
            first.id
        )
    });
    let first = cases.iter().filter(|case| first_is_slow(case)).count();
    let first = (first * 4 > cases.len().max(4)).then(|| {
        format!(
            "the first round was much slower in {first} of {} cases: something was still being warmed, such as \
             memory that the hypervisor had not given before",
            cases.len()
        )
    });
    [uncertain, few, outliers, first].into_iter().flatten().collect()
}

/// Half of the range in which the median lies, as a fraction of it; `None` of too few samples.
fn uncertainty(samples: &[f64]) -> Option<f64> {
    let (low, high) = median_interval(samples)?;
    let middle = median(samples);
    (middle > 0.0).then(|| (high - low) / 2.0 / middle)
}

/// Indices of samples that are far out.
fn odd_samples(samples: &[f64]) -> impl Iterator<Item = usize> {
    let middle = median(samples);
    let distances: Vec<f64> = samples.iter().map(|sample| (sample - middle).abs()).collect();
    let limit = (median(&distances) * ODD_DEVIATIONS).max(middle * ODD_FRACTION);
    distances.into_iter().enumerate().filter(move |(_, far)| *far > limit).map(|(index, _)| index)
}

fn first_is_slow(case: &Case) -> bool {
    let is_odd = odd_samples(&case.samples).next() == Some(0);
    is_odd && case.unit.speed_up(case.median(), case.samples[0]) < 1.0
}

/// Influences on every figure of a record that were neither controlled nor seen.
pub fn uncontrolled(hypervisor: Option<&str>, counters: &str) -> Vec<String> {
    let host = hypervisor.map(|name| {
        format!("{name}, the host underneath: where it runs these CPUs, what else it runs, and which of its pages are behind this memory")
    });
    let frequency = if megahertz().is_empty() {
        "the CPUs' frequency, which this kernel does not show"
    } else {
        "the CPUs' frequency: it is looked at before and after, and not fixed"
    };
    let placement = "which physical pages were given, and so what meets in a cache; which CPU the scheduler chose";
    let counters = (counters != AVAILABLE).then(|| {
        format!("caches and translations seen only through time: hardware counters are {counters}")
    });
    host.into_iter().chain([frequency.to_owned(), placement.to_owned()]).chain(counters).collect()
}

/// Busy ticks of the machine that were not our own, in percent of one CPU.
fn others(busy_ticks: u64, own: Duration, elapsed: Duration) -> f64 {
    let busy = busy_ticks as f64 / clock_ticks_per_second() as f64;
    ((busy - own.as_secs_f64()) * 100.0 / elapsed.as_secs_f64()).max(0.0)
}

/// The frequency of each CPU that says so.
fn megahertz() -> Vec<f64> {
    let Ok(cpus) = fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
    let frequency = |entry: fs::DirEntry| {
        let kilohertz = fs::read_to_string(entry.path().join("cpufreq/scaling_cur_freq")).ok()?;
        Some(kilohertz.trim().parse::<f64>().ok()? / 1000.0)
    };
    cpus.flatten().filter_map(frequency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;

    fn case(samples: &[f64]) -> Case {
        Case::new("e/m/w", Unit::Microseconds, samples.to_vec())
    }

    #[test]
    fn a_run_says_what_it_could_see() {
        let before = Moment::now();
        let experiment = Experiment { cases: vec![case(&[1.0; 9])], ..Experiment::default() };
        let noise = before.noise(&experiment, Vec::new());
        assert!(noise.steal_percent.is_some_and(|percent| (0.0..=100.0).contains(&percent)));
        assert!(noise.others_percent.is_some() && noise.load_average.is_some());
        assert!(noise.seconds > 0.0);
    }

    #[test]
    fn other_load_is_warned_of_and_silence_is_not() {
        let busy = Noise {
            steal_percent: Some(3.0),
            others_percent: Some(50.0),
            megahertz: Some((1000.0, 3000.0)),
            ..Noise::default()
        };
        let warnings = of_the_machine(&busy).join("; ");
        for said in ["3.0 % of the CPUs' time", "used 50 % of a CPU", "1000 to 3000 MHz"] {
            assert!(warnings.contains(said), "{warnings}");
        }
        assert!(of_the_machine(&Noise::default()).is_empty());
        assert_eq!(others(0, Duration::from_secs(9), Duration::from_secs(1)), 0.0);
    }

    #[test]
    fn odd_samples_are_counted_and_the_first_is_told_apart() {
        let steady = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0, 10.1].repeat(3);
        assert!(of_samples(&[case(&steady)]).is_empty());
        let mut odd = steady.clone();
        odd[3] = 30.0;
        let warnings = of_samples(&[case(&odd), case(&steady)]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].starts_with("1 samples lie far from the others, in e/m/w;"),
            "{warnings:?}"
        );
        let mut cold = steady;
        cold[0] = 30.0;
        let warnings = of_samples(&[case(&cold), case(&cold)]).join("; ");
        assert!(warnings.contains("the first round was much slower in 2 of 2 cases"), "{warnings}");
    }

    #[test]
    fn medians_that_are_not_known_well_are_named() {
        let wide = [1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0];
        let warnings = of_samples(&[case(&wide), case(&[1.0, 1.0])]).join("; ");
        assert!(
            warnings.contains("1 of 2 medians are known to no better than ±10 %"),
            "{warnings}"
        );
        assert!(warnings.contains("1 of 2 medians are of too few rounds"), "{warnings}");
    }
}
