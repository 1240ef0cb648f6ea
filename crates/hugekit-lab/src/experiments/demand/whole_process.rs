//! Idea 1's workload as it was published (2023): a process on one CPU maps all the huge pages that there are,
//! touches each of them, and ends; all of that is timed. Here all that are free, up to the memory of the run.
//!
//! By its own counts the published program touched each page *twice*: 65,636 faults for 32,768 pages of 2 MiB,
//! and 227 for 64 of 1 GiB. A read has the kernel clear the page and map it for reading, a write then has it
//! made writable: two faults. *process-twice* does that, *process-once* only writes, as `demand` does elsewhere.

use std::ptr;
use std::time::Instant;

use rustix::thread::sched_getcpu;

use crate::LabError;
use crate::experiments::Bench;
use crate::machine::{clearing_kernel, cpus};
use crate::measure::part::Part;
use crate::record::Unit;
use crate::record::published::{self, Conditions};
use crate::size::{GIB, Size};
use crate::workloads::anonymous::{Anonymous, Pages};
use crate::workloads::forking::process;

/// How often each page is touched, and what ran then in the words of the published description.
const TOUCHES: [(&str, &str); 2] = [("once", "one for each page"), ("twice", "two for each page")];

/// Writes a byte of each page, and reads it before if it is touched twice.
#[allow(unsafe_code)]
fn touch(bytes: &mut [u8], page: usize, twice: bool) {
    for page in bytes.chunks_mut(page) {
        let first = page.as_mut_ptr();
        // SAFETY: the first byte of a page of ours; volatile, so that a fault happens where it stands here.
        unsafe {
            if twice {
                ptr::read_volatile(first);
            }
            ptr::write_volatile(first, 1);
        }
    }
}

/// A process on the CPU where it starts, from its start to its end, in GiB/s.
fn sample(pages: Pages, bytes: usize, twice: bool) -> Result<f64, LabError> {
    let start = Instant::now();
    process(Size(bytes), || {
        let pinned = cpus::run_on(&cpus::only(sched_getcpu()));
        let Ok(mut memory) = pinned.and_then(|()| Anonymous::new(pages, bytes)) else {
            return false;
        };
        touch(memory.bytes(), pages.size(), twice);
        true
    })?
    .wait()?;
    Ok(bytes as f64 / GIB as f64 / start.elapsed().as_secs_f64())
}

/// The published workload on free pages of both sizes, reserved for it where settings may be changed.
pub(super) fn measure(bench: &mut Bench<'_>, memory: usize, share: f64) -> Result<Part, LabError> {
    bench.reserve(Pages::Hugetlb2M, memory / Pages::Hugetlb2M.size())?;
    let mut part = Part::new("demand");
    for pages in [Pages::Hugetlb2M, Pages::Hugetlb1G] {
        // No more than the run may use: what else is free is other programs'.
        let count = bench.free_huge_pages(pages)?.min(memory / pages.size());
        if count == 0 {
            let (size, reason) =
                (Size(pages.size()), "no such page is free, or the run's memory has none");
            part.notices.push(format!("process-…-{size} left out: {reason}"));
            continue;
        }
        part.absorb(measure_on(bench, pages, count * pages.size(), share)?);
    }
    Ok(part)
}

fn measure_on(bench: &Bench<'_>, pages: Pages, bytes: usize, share: f64) -> Result<Part, LabError> {
    let (rounds, size, memory) = (bench.long_rounds(share, 6), Size(pages.size()), Size(bytes));
    rounds.observer.begin(&format!("demand process {size}"));
    let names = TOUCHES.map(|(name, _)| format!("process-{name}-{size}/{memory}"));
    let mut part = rounds
        .measure("demand", Unit::GibPerSecond, &names, |index| sample(pages, bytes, index == 1))?;
    put_beside(&mut part, &names, size, memory);
    let moved = "a second fault for each page, which clears nothing";
    let id = format!("process-once-vs-twice-{size}/{memory}");
    part.ratio(&id, (&names[0], &names[1]), Some(moved));
    Ok(part)
}

fn put_beside(part: &mut Part, names: &[String; 2], size: Size, memory: Size) {
    for (name, (_, faults)) in names.iter().zip(TOUCHES) {
        let ours = Conditions {
            ran: format!("demand faults of huge pages, {faults}, the whole process"),
            kernel: clearing_kernel(),
            memory: Some(memory.to_string()),
            pages: Some(size.to_string()),
            threads: Some(1),
        };
        part.put_beside(&format!("demand/{name}"), &ours, published::demand(&size.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::usage::{Usage, Who};
    use crate::size::MIB;

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
        assert!(sample(Pages::Base, 4 * MIB, true).unwrap() > 0.0);
        let error = sample(Pages::Hugetlb1G, 1 << 45, false).unwrap_err();
        assert!(matches!(error, LabError::Fork { .. }), "{error}");
    }

    #[test]
    fn the_published_workload_differs_by_kernel_and_memory_only() {
        let (names, mut part) = (["once", "twice"].map(str::to_owned), Part::new("demand"));
        names.iter().for_each(|name| part.add_case(name, Unit::GibPerSecond, vec![1.0]));
        put_beside(&mut part, &names, Size(2 * MIB), Size(GIB));
        assert!(part.cases.iter().all(|case| case.published.is_empty()));
        let aspects = |name: &str| -> Vec<&str> {
            let of: Vec<_> =
                part.elsewhere.iter().filter(|one| one.beside.ends_with(name)).collect();
            assert_eq!(of.len(), 4);
            of[0].differs.iter().map(|one| one.aspect.as_str()).collect()
        };
        assert_eq!(aspects("/twice"), ["kernel", "memory"]);
        assert_eq!(aspects("/once"), ["ran", "kernel", "memory"]);
    }
}
