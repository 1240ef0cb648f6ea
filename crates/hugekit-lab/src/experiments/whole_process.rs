//! Idea 1's workload as it was published (2023): a process on one CPU maps all the huge pages that there are,
//! touches each of them, and ends; all of that is timed. Here all that are free, up to the memory of the run.
//!
//! By its own counts the published program touched each page *twice*: 65,636 faults for 32,768 pages of 2 MiB,
//! and 227 for 64 of 1 GiB. A read has the kernel clear the page and map it for reading, a write then has it
//! made writable: two faults. *process-twice* does that, *process-once* only writes, as `demand` does elsewhere.

use std::ptr;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::part::{Part, found};
use crate::LabError;
use crate::anonymous::{Anonymous, Pages};
use crate::bench::Bench;
use crate::conditions::Conditions;
use crate::forking::process;
use crate::machine::clearing_kernel;
use crate::published::{self, Beside};
use crate::record::{Case, Ratio, Unit};
use crate::sampler::try_alternate;
use crate::size::{GIB, Size};

/// As the published program's figures are described.
const RAN: &str = "demand faults of huge pages, two for each page, the whole process";
const RAN_ONCE: &str = "demand faults of huge pages, one for each page, the whole process";

/// How often each page is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touches {
    /// Written.
    Once,
    /// Read, and then written.
    Twice,
}

impl Touches {
    const ALL: [Self; 2] = [Self::Once, Self::Twice];

    const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Twice => "twice",
        }
    }

    #[allow(unsafe_code)]
    fn touch(self, bytes: &mut [u8], page: usize) {
        for page in bytes.chunks_mut(page) {
            let first = page.as_mut_ptr();
            // SAFETY: the first byte of a page of ours; volatile, so that a fault happens where it stands here.
            unsafe {
                if self == Self::Twice {
                    ptr::read_volatile(first);
                }
                ptr::write_volatile(first, 1);
            }
        }
    }
}

/// Pages of one size: all that are free, as far as the run may use so much memory.
#[derive(Clone, Copy, Debug)]
struct Memory {
    pages: Pages,
    bytes: usize,
}

impl Memory {
    /// Each is a process, from its start to its end, in GiB/s.
    fn sample(self, touches: Touches) -> Result<f64, LabError> {
        let start = Instant::now();
        process(Size(self.bytes), || {
            let Ok(mut memory) = pinned().and_then(|()| Anonymous::new(self.pages, self.bytes))
            else {
                return false;
            };
            touches.touch(memory.bytes(), self.pages.size());
            true
        })?
        .wait()?;
        Ok(self.bytes as f64 / GIB as f64 / start.elapsed().as_secs_f64())
    }

    fn case(self, touches: Touches, samples: Vec<f64>) -> Case {
        let (page, bytes) = (Size(self.pages.size()), Size(self.bytes));
        let id = format!("demand/process-{}-{page}/{bytes}", touches.name());
        Case { id, unit: Unit::GibPerSecond, samples, published: Vec::new() }
    }

    fn conditions(self, touches: Touches) -> Conditions {
        let ran = if touches == Touches::Twice { RAN } else { RAN_ONCE };
        Conditions {
            ran: ran.to_owned(),
            kernel: clearing_kernel(),
            memory: Some(Size(self.bytes).to_string()),
            pages: Some(Size(self.pages.size()).to_string()),
            threads: Some(1),
        }
    }
}

/// Keeps this process on the CPU that it is on, whose node gives its pages as long as it has any.
fn pinned() -> Result<(), LabError> {
    let mut only = CpuSet::new();
    only.set(sched_getcpu());
    sched_setaffinity(None, &only).map_err(|errno| LabError::Thread(errno.into()))
}

/// The published workload on free pages of both sizes, reserved for it where settings may be changed.
pub(super) fn measure(bench: &mut Bench<'_>, memory: usize, share: f64) -> Result<Part, LabError> {
    bench.reserve(Pages::Hugetlb2M, memory / Pages::Hugetlb2M.size())?;
    let mut part = Part::default();
    for pages in [Pages::Hugetlb2M, Pages::Hugetlb1G] {
        // No more than the run may use: what else is free is other programs'.
        let count = bench.free_huge_pages(pages)?.min(memory / pages.size());
        let bytes = count * pages.size();
        let size = Size(pages.size());
        if bytes == 0 {
            let reason = "no such page is free, or the run's memory has none";
            part.notices.push(format!("process-…-{size} left out: {reason}"));
            continue;
        }
        let of_size = measure_on(bench, Memory { pages, bytes }, share)?;
        part.cases.extend(of_size.cases);
        part.ratios.extend(of_size.ratios);
        part.elsewhere.extend(of_size.elsewhere);
        part.failures.extend(of_size.failures);
    }
    Ok(part)
}

fn measure_on(bench: &Bench<'_>, memory: Memory, share: f64) -> Result<Part, LabError> {
    let (plan, observer) = (bench.plan_of_long_rounds(share, 6), bench.observer());
    let size = Size(memory.pages.size());
    observer.begin(&format!("demand process {size}"));
    let rounds = try_alternate(plan, Touches::ALL.len(), observer, |index| {
        memory.sample(Touches::ALL[index])
    })?;
    let mut part = Part::default();
    let mut cases =
        part.cases_of(rounds, |index, samples| memory.case(Touches::ALL[index], samples));
    for (&touches, case) in Touches::ALL.iter().zip(&mut cases) {
        let Some(case) = case else { continue };
        let figures = published::demand(&size.to_string());
        let beside = Beside::of(&case.id, &memory.conditions(touches), figures);
        case.published = beside.same;
        part.elsewhere.extend(beside.elsewhere);
    }
    if let [Some(once), Some(twice)] = &cases[..] {
        let id = format!("demand/process-once-vs-twice-{size}/{}", Size(memory.bytes));
        let moved = "a second fault for each page, which clears nothing";
        part.ratios.push(Ratio::between(id, once, twice).unlike(moved));
    }
    part.cases = found(cases);
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::MIB;

    /// Faults of this thread so far.
    #[allow(unsafe_code)]
    fn faults() -> usize {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: fills what it is given, and zeroes are a valid `rusage`, should it fail.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        usage.ru_minflt as usize
    }

    #[test]
    fn a_page_read_and_then_written_is_two_faults_and_a_written_one_is_one() {
        let page = rustix::param::page_size();
        for (touches, each) in [(Touches::Once, 1), (Touches::Twice, 2)] {
            let mut memory = Anonymous::new(Pages::Base, 256 * page).unwrap();
            let before = faults();
            touches.touch(memory.bytes(), page);
            let faulted = faults() - before;
            assert!((256 * each..256 * each + 128).contains(&faulted), "{touches:?}: {faulted}");
            assert!(memory.bytes().iter().step_by(page).all(|&byte| byte == 1));
        }
    }

    #[test]
    fn a_whole_process_is_timed_and_one_that_gets_no_memory_is_an_error() {
        let memory = Memory { pages: Pages::Base, bytes: 4 * MIB };
        assert!(memory.sample(Touches::Twice).unwrap() > 0.0);
        let none = Memory { pages: Pages::Hugetlb1G, bytes: 1 << 45 };
        let error = none.sample(Touches::Once).unwrap_err();
        assert!(matches!(error, LabError::Fork { .. }), "{error}");
    }

    #[test]
    fn the_published_workload_differs_by_kernel_and_memory_only() {
        let memory = Memory { pages: Pages::Hugetlb2M, bytes: GIB };
        let aspects = |touches| {
            let figures = published::demand("2MiB");
            let beside = Beside::of("x", &memory.conditions(touches), figures);
            assert!(beside.same.is_empty() && beside.elsewhere.len() == 4);
            let differs = beside.elsewhere[0].differs.iter().map(|one| one.aspect.clone());
            differs.collect::<Vec<_>>()
        };
        assert_eq!(aspects(Touches::Twice), ["kernel", "memory"]);
        assert_eq!(aspects(Touches::Once), ["ran", "kernel", "memory"]);
    }
}
