//! The processes that are timed: each gets memory, touches all of its pages, and ends. They differ in who clears a
//! page, and when.
//!
//! A pool clears only memory that had another owner. So each of its processes gets a file that the kernel has
//! populated before the clock starts, and declares all of it dirty, which moves no byte.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::machine::cpus;
use crate::measure::machine::usage::{Usage, Who};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::forking::process;
use hugekit::pool::{Backing, Clearing};
use hugekit::{PopulateOptions, Region, Threads, error_chain};
use hugekit_bulk::arch::{ClearRoutine, clear_routine};
use hugekit_lease::MemoryFile;
use hugekit_machine::size::{GIB, Size};
use rustix::thread::sched_getcpu;

use crate::experiments::memory_sources::{soil, unscrubbed};

/// The way in which a process gets clear pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeProcessMethod {
    /// The kernel clears a page at its only touch.
    Once,
    /// The kernel clears a page at the first of two touches, as in the published program.
    Twice,
    /// A pool clears a region when it allocates the region.
    OnAllocation,
    /// A pool clears a page at its touch.
    OnFault,
    /// The program clears each page past the cache right before it touches the page.
    Streamed,
}

/// A process from its start to its end. CPU times are in microseconds for each page.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessSample {
    pub(super) gib_per_second: f64,
    pub(super) faults: f64,
    pub(super) user: f64,
    pub(super) system: f64,
}

impl WholeProcessMethod {
    pub(super) const ALL: [Self; 5] =
        [Self::Once, Self::Twice, Self::OnAllocation, Self::OnFault, Self::Streamed];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Twice => "twice",
            Self::OnAllocation => "on-allocation",
            Self::OnFault => "on-fault",
            Self::Streamed => "streamed",
        }
    }

    pub(super) fn sample(self, pages: Pages, bytes: usize) -> Result<ProcessSample, LabError> {
        let file = match self {
            Self::Once | Self::Twice => None,
            Self::OnAllocation | Self::OnFault | Self::Streamed => Some(populated(pages, bytes)?),
        };
        let (before, start) = (Usage::of(Who::EndedChildren), Instant::now());
        process(Size(bytes), || self.run(pages, bytes, file).is_some())?.wait()?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), Usage::of(Who::EndedChildren));
        let per_page = |time: Duration| time.as_secs_f64() * 1e6 / (bytes / pages.size()) as f64;
        Ok(ProcessSample {
            gib_per_second: bytes as f64 / GIB as f64 / seconds,
            faults: (after.minor_faults - before.minor_faults) as f64,
            user: per_page(after.user - before.user),
            system: per_page(after.system - before.system),
        })
    }

    /// All that the process does, on the CPU where it starts. Nothing if it gets no such memory.
    fn run(self, pages: Pages, bytes: usize, file: Option<MemoryFile>) -> Option<()> {
        cpus::run_on(&cpus::only(sched_getcpu())).ok()?;
        match file {
            None => {
                let mut memory = Anonymous::new(pages, bytes).ok()?;
                touch(memory.bytes(), pages.size(), self == Self::Twice);
            }
            Some(file) if self == Self::Streamed => {
                stream_and_touch(&mut self.region(file)?, pages.size(), streaming()?);
            }
            Some(file) => touch(&mut self.region(file)?, pages.size(), false),
        }
        Some(())
    }

    /// All of the file's memory, which this process declares dirty if a pool is to clear it.
    fn region(self, file: MemoryFile) -> Option<Region> {
        let bytes = file.bytes();
        // SAFETY: the kernel has cleared all pages of this new file. The parent, whose mapping of it is gone, closes it
        // unused.
        let pool = unsafe { unscrubbed(bytes).adopt(file.into_file()) }.build().ok()?;
        if self != Self::Streamed {
            soil(&pool).ok()?;
        }
        let region = pool.region_builder(bytes).clearing(self.clearing()).threads(Threads::One);
        // On allocation instead of at the fault: another method.
        region.build().ok().filter(|region| region.fallback().is_none())
    }

    const fn clearing(self) -> Clearing {
        match self {
            Self::OnFault => Clearing::OnFault,
            _ => Clearing::OnAllocation,
        }
    }
}

const fn backing(pages: Pages) -> Backing {
    match pages {
        Pages::Hugetlb1G => Backing::Hugetlb1G,
        Pages::Hugetlb2M => Backing::Hugetlb2M,
        Pages::Thp => Backing::Thp,
        Pages::Base | Pages::Unsaid => Backing::Base,
    }
}

/// A new file of these pages, all of them there.
fn populated(pages: Pages, bytes: usize) -> Result<MemoryFile, LabError> {
    let file = MemoryFile::create("lab", bytes, backing(pages))?;
    file.populate(&PopulateOptions::new(), None)?;
    Ok(file)
}

/// The reason why no pool clears such a page at its touch here, if none does.
pub(super) fn no_clearing_on_fault(pages: Pages) -> Result<Option<String>, LabError> {
    let pool = unscrubbed(pages.size()).backing(backing(pages)).strict(true).build()?;
    soil(&pool)?;
    let region = pool.region_builder(pages.size()).clearing(Clearing::OnFault).build()?;
    Ok(region.fallback().map(|error| error_chain(error).to_string()))
}

/// The published stores past the cache, if this CPU has them.
pub(super) fn streaming() -> Option<&'static ClearRoutine> {
    clear_routine("movnti").filter(|routine| routine.is_available())
}

fn stream_and_touch(bytes: &mut [u8], page: usize, routine: &ClearRoutine) {
    for bytes in bytes.chunks_mut(page) {
        // SAFETY: the slice is borrowed mutably, and `streaming` gives available routines only.
        unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
        touch(bytes, page, false);
    }
}

/// Writes a byte of each page, and reads it before if it is touched twice.
pub(super) fn touch(bytes: &mut [u8], page: usize, twice: bool) {
    for page in black_box(bytes).chunks_mut(page) {
        let first = page.as_mut_ptr();
        // SAFETY: the first byte of a page of this slice; volatile, so that the fault happens here.
        unsafe {
            if twice {
                ptr::read_volatile(first);
            }
            ptr::write_volatile(first, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    fn may_clear_on_fault() -> bool {
        no_clearing_on_fault(Pages::Base).unwrap().is_none()
    }

    #[test]
    fn a_page_read_and_then_written_is_two_faults_and_a_written_one_is_one() {
        let page = rustix::param::page_size();
        let faults = || Usage::of(Who::ThisThread).minor_faults;
        for (twice, each) in [(false, 1), (true, 2)] {
            let mut memory = Anonymous::new(Pages::Base, 256 * page).unwrap();
            let before = faults();
            touch(memory.bytes(), page, twice);
            let faulted = faults() - before;
            assert!((256 * each..256 * each + 128).contains(&faulted), "{twice}: {faulted}");
            assert!(memory.bytes().iter().step_by(page).all(|&byte| byte == 1));
        }
    }

    #[test]
    fn a_whole_process_is_timed_and_one_that_gets_no_memory_is_an_error() {
        let base = rustix::param::page_size();
        let pages = 64 * MIB / base;
        let on_fault = may_clear_on_fault().then_some((WholeProcessMethod::OnFault, 1));
        let streamed = streaming().map(|_| (WholeProcessMethod::Streamed, 1));
        let others = [
            (WholeProcessMethod::Once, 1),
            (WholeProcessMethod::Twice, 2),
            (WholeProcessMethod::OnAllocation, 1),
        ];
        for (method, each) in others.into_iter().chain(on_fault).chain(streamed) {
            let sample = method.sample(Pages::Base, 64 * MIB).unwrap();
            // Its start has some, too, and other tests have children.
            assert!(sample.gib_per_second > 0.0, "{sample:?}");
            assert!(sample.faults >= (each * pages) as f64, "{method:?}: {sample:?} of {pages}");
            assert!(sample.user + sample.system > 0.0, "{sample:?}");
        }
        let error = WholeProcessMethod::Once.sample(Pages::Hugetlb1G, 1 << 45).unwrap_err();
        assert!(matches!(error, LabError::Fork { .. }), "{error}");
        let error = WholeProcessMethod::OnAllocation.sample(Pages::Hugetlb1G, 1 << 45).unwrap_err();
        assert!(matches!(error, LabError::Lease(_)), "{error}");
    }

    #[test]
    fn a_program_that_streams_clears_each_page_and_then_writes_a_byte_of_it() {
        let Some(routine) = streaming() else { return };
        let mut bytes = vec![7; 3 * 4096 + 100];
        stream_and_touch(&mut bytes, 4096, routine);
        let expected = |at: usize| u8::from(at.is_multiple_of(4096));
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
        let region =
            WholeProcessMethod::Streamed.region(populated(Pages::Base, 4 * MIB).unwrap()).unwrap();
        assert_eq!(region.pool().stats().unwrap().scrubbed_at_allocation, 0);
    }

    #[test]
    fn a_region_is_cleared_when_its_method_says() {
        for method in [WholeProcessMethod::OnAllocation, WholeProcessMethod::OnFault] {
            let file = populated(Pages::Base, 4 * MIB).unwrap();
            let Some(mut region) = method.region(file) else {
                assert!(method == WholeProcessMethod::OnFault && !may_clear_on_fault());
                continue;
            };
            let cleared = |region: &Region| {
                let stats = region.pool().stats().unwrap();
                (stats.scrubbed_at_allocation, stats.scrubbed_at_fault)
            };
            let all = 4 * MIB as u64;
            let at_allocation = if method == WholeProcessMethod::OnAllocation { all } else { 0 };
            assert_eq!(cleared(&region), (at_allocation, 0), "{method:?}");
            touch(&mut region, rustix::param::page_size(), false);
            assert_eq!(cleared(&region), (at_allocation, all - at_allocation), "{method:?}");
        }
    }
}
