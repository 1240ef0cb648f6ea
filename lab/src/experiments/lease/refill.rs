//! What a refill takes: CPU time, and bandwidth of a program beside it.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::machine::cpus;
use crate::measure::machine::usage::{Usage, Who};
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::broker_process::BrokerProcess;
use crate::record::Unit;
use hugekit_machine::size::{GIB, MIB, Size};
use hugekit_sys::thread::cpu_time;
use rustix::thread::CpuSet;

use crate::experiments::memory_sources::touch;

/// A program beside a refill has three arrays, each of this size or of two last-level caches, whichever is larger.
const LEAST_ARRAY: usize = 64 * MIB;

/// The most time for which that program is watched, if the refill takes as long.
const WATCHED: Duration = Duration::from_millis(150);

/// The CPU time of a gigabyte: of memory that one thread touches and gives back, and of a unit that is populated by a
/// broker that is started for it and ended, both programs counted.
pub(super) fn cpu(hugekit: &Path, bytes: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("lease CPU time");
    let per_gib = |time: Duration| time.as_secs_f64() * 1e6 / (bytes as f64 / GIB as f64);
    let size = Size(GIB).to_string();
    let names = ["kernel-cpu", "refill-cpu"].map(|method| format!("{method}/{size}"));
    let mut part = rounds.measure("lease", Unit::Microseconds, &names, |index| {
        if index == 0 {
            let since = cpu_time();
            touch(Anonymous::new(Pages::Hugetlb2M, bytes)?.bytes(), Pages::Hugetlb2M.size());
            Ok(per_gib(cpu_time() - since))
        } else {
            let before = Usage::of(Who::EndedChildren).cpu();
            BrokerProcess::start(hugekit, bytes)?.until_ready()?;
            Ok(per_gib(Usage::of(Who::EndedChildren).cpu() - before))
        }
    })?;
    part.compare(("kernel-cpu", "refill-cpu"), &size, None);
    if let [kernel, refill] = &part.cases[..] {
        part.notices.push(format!(
            "a refill takes {:.0} ms of CPU time for each GiB, the broker's own included; the kernel's clearing in the \
             program that asks takes {:.0} ms",
            refill.median() / 1e3,
            kernel.median() / 1e3
        ));
    }
    Ok(part)
}

/// The reason why a program beside a refill is not measured.
pub(super) fn left_out(why: &str) -> Part {
    Part::notice(format!("throughput beside a refill left out: {why}"))
}

/// A program that memory keeps busy, alone and while the broker populates on another CPU, in GiB/s.
pub(super) fn throughput(
    hugekit: &Path,
    bytes: usize,
    llc: usize,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    rounds.observer.begin("lease throughput");
    let Some(split) = Split::new()? else {
        return Ok(left_out("this process has one CPU only"));
    };
    let mut broker = split.elsewhere(|| BrokerProcess::start(hugekit, bytes))?;
    let mut program = Program::new(LEAST_ARRAY.max(2 * llc));
    let names = ["alone", "refilling"].map(|method| format!("{method}/throughput"));
    let mut part = rounds.measure("lease", Unit::GibPerSecond, &names, |index| {
        broker.until_ready()?;
        if index == 1 {
            drop(broker.lease()?);
            broker.until_filling()?;
        }
        split.here(|| program.watched(&broker, index == 1))
    })?;
    let differs = "the other CPU is idle on one side, and populates on the other";
    part.compare(("alone", "refilling"), "throughput", Some(differs));
    Ok(part)
}

/// The CPUs of this process: one for the program, the others for the broker.
#[derive(Debug)]
struct Split {
    all: CpuSet,
    one: CpuSet,
    others: CpuSet,
}

impl Split {
    /// `None` where there is one CPU only.
    fn new() -> Result<Option<Self>, LabError> {
        let all = cpus::allowed()?;
        let Some(first) = cpus::numbers(&all).next() else { return Ok(None) };
        let mut others = all;
        others.unset(first);
        Ok((others.count() > 0).then_some(Self { all, one: cpus::only(first), others }))
    }

    /// Does something on the program's CPU.
    fn here<T>(&self, work: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
        self.on(&self.one, work)
    }

    /// Does something on the others: processes that it starts stay there.
    fn elsewhere<T>(&self, work: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
        self.on(&self.others, work)
    }

    fn on<T>(
        &self,
        cpus: &CpuSet,
        work: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        cpus::run_on(cpus)?;
        let done = work();
        cpus::run_on(&self.all)?;
        done
    }
}

/// The triad of the STREAM benchmark: a = b + 3 c, two arrays read and one written.
#[derive(Debug)]
struct Program {
    arrays: [Vec<f64>; 3],
}

impl Program {
    /// A program with arrays of this many bytes.
    fn new(bytes: usize) -> Self {
        Self { arrays: [1.0, 2.0, 3.0].map(|value| vec![value; bytes / size_of::<f64>()]) }
    }

    /// GiB/s of as many rounds as end within the time, and before the refill does.
    fn watched(&mut self, broker: &BrokerProcess, refilling: bool) -> Result<f64, LabError> {
        let start = Instant::now();
        let mut best = None;
        let mut passes = 0;
        while start.elapsed() < WATCHED {
            self.pass();
            passes += 1;
            let elapsed = start.elapsed();
            // Asked on either side, so that it costs both the same.
            let is_filling = broker.status()?.filling > 0;
            if is_filling != refilling {
                break;
            }
            best = Some((passes, elapsed));
        }
        let (passes, elapsed) = best.ok_or_else(|| {
            LabError::Broker(std::io::Error::other("the refill ended before it could be watched"))
        })?;
        let bytes = passes * self.arrays.iter().map(|array| size_of_val(&array[..])).sum::<usize>();
        Ok(bytes as f64 / GIB as f64 / elapsed.as_secs_f64())
    }

    fn pass(&mut self) {
        let [a, b, c] = &mut self.arrays;
        for ((a, b), c) in a.iter_mut().zip(&*b).zip(&*c) {
            *a = *b + 3.0 * *c;
        }
        std::hint::black_box(a);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triad_reads_two_arrays_and_writes_the_third() {
        let mut program = Program::new(1 << 16);
        program.pass();
        assert!(program.arrays[0].iter().all(|&sum| sum == 2.0 + 3.0 * 3.0));
    }

    #[test]
    fn program_and_broker_share_no_cpu_and_all_are_given_back() {
        let Some(split) = Split::new().unwrap() else { return };
        let (here, elsewhere) =
            (split.here(cpus::allowed).unwrap(), split.elsewhere(cpus::allowed).unwrap());
        assert!(cpus::numbers(&here).all(|cpu| !elsewhere.is_set(cpu)));
        assert_eq!(here.count(), 1);
        assert_eq!(cpus::allowed().unwrap(), split.all);
    }
}
