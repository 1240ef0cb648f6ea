//! Memory that a broker has populated before a program asks for it, as programs see it that are not changed: how soon
//! they have it, what its refill takes of the machine, and of a program beside it.
//!
//! Everything is on reserved pages of 2 MiB, and the kernel clears every page on either side. What differs is when, and
//! in which process: a lease's pages were cleared by the broker's filler. The broker is `hugekit broker`, as users start
//! it, and populates its next unit while the last one is used.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

use hugekit_machine::Root;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::lease_qemu;
use super::memory_sources::{remedy, touch, unscrubbed};
use super::part::{Part, found};
use crate::anonymous::{Anonymous, Pages};
use crate::bench::{Bench, left_out};
use crate::broker_process::BrokerProcess;
use crate::record::{Case, Experiment, Ratio, Skipped, Unit};
use crate::sampler::{Plan, try_alternate};
use crate::size::{GIB, MIB, Size};
use crate::{LabError, Observer};

/// What a client asks for, where there is room for it twice.
const MOST_ASKED: usize = GIB;

/// Pages of a guest of QEMU, which is the largest unit, and of the one that is ready meanwhile.
const PAGES: usize = 2 * lease_qemu::MOST / (2 * MIB);

/// The same with `--quick`.
const QUICK_PAGES: usize = 2 * MOST_ASKED / (2 * MIB);

/// Below that, reserved pages say nothing of memory that programs wait for.
const LEAST_UNIT: usize = 128 * MIB;
const LEAST_PAGES: usize = 2 * LEAST_UNIT / (2 * MIB);

/// What is asked for at a time: at most that, and at most half of the pages, because a unit is in use and the next one
/// ready.
fn unit(pages: usize, most: usize) -> usize {
    let half = pages / 2 * Pages::Hugetlb2M.size();
    let halves = std::iter::successors(Some(most), |unit| Some(unit / 2));
    halves.take_while(|&unit| unit > LEAST_UNIT).find(|&unit| unit <= half).unwrap_or(LEAST_UNIT)
}

/// The work that comparisons of what a program waits for leave out.
pub(super) const POPULATED_EARLIER: &str = "the broker had these pages populated before they were asked for, in the \
     background; kernel-cpu-vs-refill-cpu counts that";

/// What a program beside a refill works on: three arrays of numbers, each of so much or of two last-level caches.
const LEAST_ARRAY: usize = 64 * MIB;

/// How long that program is watched at most, if the refill takes as long.
const WATCHED: Duration = Duration::from_millis(150);

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let Some(hugekit) = bench.options().hugekit.clone() else {
        return Ok(skipped(
            "the program that runs this is not `hugekit`",
            "run `hugekit lab lease`",
        ));
    };
    let (memory, observer) = bench.leave_memory()?;
    if memory < 2 * LEAST_UNIT {
        let needed = Size(2 * LEAST_UNIT);
        let reason = left_out("everything", 2 * LEAST_UNIT, memory);
        return Ok(skipped(&reason, &format!("`--memory {needed}`")));
    }
    let wanted = if bench.options().quick { QUICK_PAGES } else { PAGES };
    let pages = bench.reserve(Pages::Hugetlb2M, wanted)?;
    if pages < LEAST_PAGES {
        let missing = (LEAST_PAGES - pages) as u64;
        let remedy = remedy(&Root::default(), Pages::Hugetlb2M.size() as u64, missing);
        let reason = format!("{pages} of {LEAST_PAGES} pages of 2MiB are free");
        return Ok(skipped(&reason, &format!("`--setup` (root){remedy}")));
    }
    let memory = Some(format!("{pages} reserved pages of 2MiB, written once before"));
    let mut experiment = Experiment { name: "lease".into(), memory, ..Experiment::default() };
    let (asked, guest) = (unit(pages, MOST_ASKED), unit(pages, lease_qemu::MOST));
    let plan = bench.plan_of_long_rounds(0.4, 12);
    experiment.add("client", client(&hugekit, asked, plan, observer))?;
    // The larger the unit, the less it counts that a broker is started.
    let plan = bench.plan_of_long_rounds(0.3, 6);
    experiment.add("cpu", cpu(&hugekit, guest, plan, observer))?;
    let plan = bench.plan(1.0, 24);
    let array = LEAST_ARRAY.max(2 * bench.llc());
    experiment.add("throughput", throughput(&hugekit, asked, array, plan, observer))?;
    experiment.add("qemu", lease_qemu::measure(bench, &hugekit, guest))?;
    Ok(experiment)
}

fn skipped(reason: &str, remedy: &str) -> Experiment {
    let skipped = Skipped { reason: reason.to_owned(), remedy: remedy.to_owned() };
    Experiment { name: "lease".into(), skipped: Some(skipped), ..Experiment::default() }
}

fn case(method: &str, workload: &str, unit: Unit, samples: Vec<f64>) -> Case {
    Case { id: format!("lease/{method}/{workload}"), unit, samples, published: Vec::new() }
}

/// From the moment a program asks for memory until it has touched every page of it, in microseconds: the kernel's, and
/// a lease as a pool.
fn client(
    hugekit: &Path,
    asked: usize,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    observer.begin(&format!("lease {}", Size(asked)));
    let mut broker = BrokerProcess::start(hugekit, asked)?;
    let page = Pages::Hugetlb2M.size();
    let rounds = try_alternate(plan, 2, observer, |index| {
        broker.until_ready()?;
        let start = Instant::now();
        if index == 0 {
            let mut memory = Anonymous::new(Pages::Hugetlb2M, asked)?;
            touch(memory.bytes(), page);
            Ok(start.elapsed().as_secs_f64() * 1e6)
        } else {
            let pool = unscrubbed(asked).lease(broker.lease()?).build()?;
            let mut region = pool.region(asked)?;
            // In one call, instead of by a fault for each page.
            region.populate(0..asked)?;
            touch(&mut region, page);
            Ok(start.elapsed().as_secs_f64() * 1e6)
        }
    })?;
    let size = Size(asked).to_string();
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| {
        case(["kernel", "lease"][index], &size, Unit::Microseconds, samples)
    });
    if let [Some(kernel), Some(lease)] = &cases[..] {
        let ratio = Ratio::between(format!("lease/kernel-vs-lease/{size}"), kernel, lease);
        part.ratios.push(ratio.unlike(POPULATED_EARLIER));
    }
    part.cases = found(cases);
    Ok(part)
}

/// The CPU time of a gigabyte: of memory that one thread touches and gives back, and of a unit that is populated by a
/// broker that is started for it and ended, both programs counted.
fn cpu(
    hugekit: &Path,
    bytes: usize,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    observer.begin("lease CPU time");
    let per_gib = bytes as f64 / GIB as f64;
    let rounds = try_alternate(plan, 2, observer, |index| {
        if index == 0 {
            let since = clock_gettime(ClockId::ThreadCPUTime);
            touch(Anonymous::new(Pages::Hugetlb2M, bytes)?.bytes(), Pages::Hugetlb2M.size());
            let spent = clock_gettime(ClockId::ThreadCPUTime) - since;
            Ok((spent.tv_sec as f64 * 1e6 + spent.tv_nsec as f64 / 1e3) / per_gib)
        } else {
            let before = cpu_of_ended_children();
            BrokerProcess::start(hugekit, bytes)?.until_ready()?;
            Ok((cpu_of_ended_children() - before).as_secs_f64() * 1e6 / per_gib)
        }
    })?;
    let size = Size(GIB).to_string();
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| {
        case(["kernel-cpu", "refill-cpu"][index], &size, Unit::Microseconds, samples)
    });
    if let [Some(kernel), Some(refill)] = &cases[..] {
        let id = format!("lease/kernel-cpu-vs-refill-cpu/{size}");
        part.ratios.push(Ratio::between(id, kernel, refill));
        part.notices.push(format!(
            "a refill takes {:.0} ms of CPU time for each GiB, the broker's own included; the kernel's clearing in the \
             program that asks takes {:.0} ms",
            refill.median() / 1e3,
            kernel.median() / 1e3
        ));
    }
    part.cases = found(cases);
    Ok(part)
}

/// CPU time of children that have ended, and of theirs that these have waited for.
fn cpu_of_ended_children() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one value of this type, of integers alone, and cannot refuse: zeroes are one, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// A program that memory keeps busy, alone and while the broker populates on another CPU, in GiB/s.
fn throughput(
    hugekit: &Path,
    bytes: usize,
    array: usize,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    observer.begin("lease throughput");
    let left_out = |why: &str| {
        let notice = format!("throughput beside a refill left out: {why}");
        Ok(Part { notices: vec![notice], ..Part::default() })
    };
    let Some(split) = Split::new()? else {
        return left_out("this process has one CPU only");
    };
    if bytes < MOST_ASKED {
        return left_out("too few pages are free for a refill that lasts");
    }
    let mut broker = split.elsewhere(|| BrokerProcess::start(hugekit, bytes))?;
    let mut program = Program::new(array);
    let rounds = try_alternate(plan, 2, observer, |index| {
        broker.until_ready()?;
        if index == 1 {
            drop(broker.lease()?);
            broker.until_filling()?;
        }
        split.here(|| program.watched(&broker, index == 1))
    })?;
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| {
        case(["alone", "refilling"][index], "throughput", Unit::GibPerSecond, samples)
    });
    if let [Some(alone), Some(refilling)] = &cases[..] {
        let id = "lease/alone-vs-refilling/throughput".to_owned();
        let differs = "the other CPU is idle on one side, and populates on the other";
        part.ratios.push(Ratio::between(id, alone, refilling).unlike(differs));
    }
    part.cases = found(cases);
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
        let all = sched_getaffinity(None).map_err(|errno| LabError::Cpus(errno.into()))?;
        let (mut one, mut others) = (CpuSet::new(), all);
        let Some(first) = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)) else {
            return Ok(None);
        };
        one.set(first);
        others.unset(first);
        Ok((others.count() > 0).then_some(Self { all, one, others }))
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
        let set = |cpus| sched_setaffinity(None, cpus).map_err(|e| LabError::Cpus(e.into()));
        set(cpus)?;
        let done = work();
        set(&self.all)?;
        done
    }
}

/// The triad of the STREAM benchmark: a = b + 3 c, two arrays read and one written.
#[derive(Debug)]
struct Program {
    arrays: [Vec<f64>; 3],
}

impl Program {
    /// Of arrays of so many bytes.
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
    fn units_take_half_of_the_pages_at_most() {
        let gib = GIB / (2 * MIB);
        let most = 4 * GIB;
        let units = [2 * gib - 1, 2 * gib, 8 * gib - 1, 8 * gib, 100 * gib].map(|n| unit(n, most));
        assert_eq!(units, [GIB / 2, GIB, 2 * GIB, most, most]);
        assert_eq!(unit(PAGES, lease_qemu::MOST), lease_qemu::MOST);
        assert_eq!(unit(QUICK_PAGES, MOST_ASKED), MOST_ASKED);
        assert_eq!(unit(LEAST_PAGES, most), LEAST_UNIT);
    }

    #[test]
    fn triad_reads_two_arrays_and_writes_the_third() {
        let mut program = Program::new(1 << 16);
        program.pass();
        assert!(program.arrays[0].iter().all(|&sum| sum == 2.0 + 3.0 * 3.0));
    }

    #[test]
    fn program_and_broker_share_no_cpu_and_all_are_given_back() {
        let Some(split) = Split::new().unwrap() else { return };
        let cpus = || Ok(sched_getaffinity(None).unwrap());
        let (here, elsewhere) = (split.here(cpus).unwrap(), split.elsewhere(cpus).unwrap());
        assert!((0..CpuSet::MAX_CPU).all(|cpu| !(here.is_set(cpu) && elsewhere.is_set(cpu))));
        assert_eq!(here.count(), 1);
        assert_eq!(sched_getaffinity(None).unwrap(), split.all);
    }

    #[test]
    fn without_the_program_the_experiment_is_skipped_with_a_remedy() {
        let options = crate::Options::default();
        let mut bench = Bench::new(&options, &crate::Quiet).unwrap();
        let skipped = run(&mut bench).unwrap().skipped.unwrap();
        assert!(skipped.remedy.contains("hugekit lab lease"));
    }

    #[test]
    fn children_that_have_ended_have_taken_time() {
        let before = cpu_of_ended_children();
        let status = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"])
            .status();
        assert!(status.unwrap().success());
        assert!(cpu_of_ended_children() > before);
    }
}
