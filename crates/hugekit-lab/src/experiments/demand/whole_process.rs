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
use crate::machine::usage::{Usage, Who};
use crate::machine::{clearing_kernel, cpus, here};
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

/// A process on the CPU where it starts, from its start to its end: in GiB/s, and its page faults.
fn sample(pages: Pages, bytes: usize, twice: bool) -> Result<(f64, f64), LabError> {
    let faults = || Usage::of(Who::EndedChildren).minor_faults;
    let (before, start) = (faults(), Instant::now());
    process(Size(bytes), || {
        let pinned = cpus::run_on(&cpus::only(sched_getcpu()));
        let Ok(mut memory) = pinned.and_then(|()| Anonymous::new(pages, bytes)) else {
            return false;
        };
        touch(memory.bytes(), pages.size(), twice);
        true
    })?
    .wait()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((bytes as f64 / GIB as f64 / seconds, (faults() - before) as f64))
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
    let (mut part, faults) =
        rounds.measure_with("demand", Unit::GibPerSecond, &names, |index| {
            sample(pages, bytes, index == 1)
        })?;
    for ((name, _), faults) in TOUCHES.into_iter().zip(faults) {
        part.add_case(&faults_name(name, size, memory), Unit::Faults, faults);
    }
    put_beside(&mut part, size, memory);
    let moved = "a second fault for each page, which clears nothing";
    let id = format!("process-once-vs-twice-{size}/{memory}");
    part.ratio(&id, (&names[0], &names[1]), Some(moved));
    Ok(part)
}

fn faults_name(touches: &str, size: Size, memory: Size) -> String {
    format!("process-{touches}-{size}-faults/{memory}")
}

fn put_beside(part: &mut Part, size: Size, memory: Size) {
    for (name, faults) in TOUCHES {
        let ours = here(Conditions {
            ran: format!("demand faults of huge pages, {faults}, the whole process"),
            kernel: clearing_kernel(),
            memory: Some(memory.to_string()),
            pages: Some(size.to_string()),
            threads: Some(1),
            ..Conditions::default()
        });
        let page = size.to_string();
        let rate = format!("demand/process-{name}-{size}/{memory}");
        part.put_beside(&rate, &ours, published::demand(&page));
        let faults = format!("demand/{}", faults_name(name, size, memory));
        part.put_beside(&faults, &ours, published::demand_faults(&page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let base = rustix::param::page_size();
        let pages = 64 * MIB / base;
        for (twice, each) in [(false, 1), (true, 2)] {
            let (rate, faults) = sample(Pages::Base, 64 * MIB, twice).unwrap();
            // Its start has some, too, and other tests have children.
            assert!(rate > 0.0 && faults >= (each * pages) as f64, "{twice}: {faults} of {pages}");
        }
        let error = sample(Pages::Hugetlb1G, 1 << 45, false).unwrap_err();
        assert!(matches!(error, LabError::Fork { .. }), "{error}");
    }

    /// Of the kernels that were published, this one does as one of both.
    #[test]
    fn the_published_workload_differs_by_memory_and_one_kernel() {
        let (size, memory) = (Size(2 * MIB), Size(GIB));
        let mut part = Part::new("demand");
        for (name, _) in TOUCHES {
            part.add_case(
                &format!("process-{name}-{size}/{memory}"),
                Unit::GibPerSecond,
                vec![1.0],
            );
            part.add_case(&faults_name(name, size, memory), Unit::Faults, vec![1.0]);
        }
        put_beside(&mut part, size, memory);
        assert!(part.cases.iter().all(|case| case.published.is_empty()));
        let with = |beside: &str, aspects: &[&str]| {
            let of = part.elsewhere.iter().filter(|one| one.beside.ends_with(beside));
            let settings = ["node", "turbo", "governor"];
            let differs = of.map(|one| {
                let all = one.differs.iter().map(|one| one.aspect.as_str());
                all.filter(|aspect| !settings.contains(aspect)).collect::<Vec<_>>()
            });
            differs.filter(|differs| differs == aspects).count()
        };
        assert_eq!(with("twice-2MiB/1GiB", &["memory"]), 2);
        assert_eq!(with("twice-2MiB/1GiB", &["kernel", "memory"]), 2);
        assert_eq!(with("once-2MiB/1GiB", &["ran", "memory"]), 2);
        assert_eq!(with("twice-2MiB-faults/1GiB", &["memory"]), 1);
    }
}
