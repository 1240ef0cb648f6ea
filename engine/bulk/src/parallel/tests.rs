//! Tests of whole jobs: on this machine with real threads, and on invented machines. Most helpers
//! of invented machines cannot be pinned here, and work without pinning.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use proptest::prelude::*;

use super::placement::tests::machine;
use super::*;
use hugekit_machine::{CpuSet, Root};
use hugekit_sys::HUGE_PAGE_BYTES;

/// The number of times that each byte of a job was passed to a chunk function.
struct VisitCounts(Vec<AtomicUsize>);

impl VisitCounts {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicUsize::new(0)).collect())
    }

    fn add(&self, bytes: Range<usize>) -> Result<(), Infallible> {
        for byte in &self.0[bytes] {
            byte.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn all(&self, expected: usize) -> bool {
        self.0.iter().all(|count| count.load(Ordering::Relaxed) == expected)
    }

    /// Checks that the bytes that a job reports as done were counted, once each.
    fn are(&self, done: &Done) -> bool {
        let mut told = vec![0; self.0.len()];
        done.ranges().iter().cloned().flatten().for_each(|at| told[at] += 1);
        told.iter().zip(&self.0).all(|(told, count)| *told == count.load(Ordering::Relaxed))
    }

    fn sum(&self) -> usize {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Returns a machine with this many nodes, with two CPUs each.
fn nodes(count: u32) -> Placement {
    let lists: Vec<_> = (0..count).map(|n| (n, format!("{}-{}", 2 * n, 2 * n + 1))).collect();
    let nodes: Vec<_> = lists.iter().map(|(id, list)| (*id, list.as_str())).collect();
    Placement::read(&Root::at(machine(&nodes, "0-4095").path())).unwrap()
}

/// Returns a map of `len` bytes in stripes, which belong to `count` nodes in turn.
fn striped(len: usize, count: u32, stripe: usize) -> NodeMap {
    let parts = (0..len).step_by(stripe).zip((0..count).cycle());
    NodeMap::new(parts.map(|(start, node)| (start..(start + stripe).min(len), node))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn job_of_any_length_hands_out_every_byte_once(
        len in 0_usize..20_000,
        min_chunk in 0_usize..3000,
        address in 0_usize..10_000,
        threads in 1_usize..20,
        node_count in prop::sample::select(&[1_u32, 2, 4, 8][..]),
        stripe in proptest::option::of(1_usize..5000),
        low in any::<bool>(),
    ) {
        let (counts, placement) = (VisitCounts::new(len), nodes(node_count));
        let map = stripe.filter(|_| len > 0).map(|stripe| striped(len, node_count, stripe));
        let job = Job::new(len)
            .min_chunk(min_chunk)
            .address(address)
            .threads(Threads::Exactly(threads))
            .placement(&placement)
            .low_priority(low);
        let report = map.iter().fold(job, Job::nodes).run(|bytes| counts.add(bytes)).unwrap();
        prop_assert!(counts.all(1));
        prop_assert_eq!(report.bytes, len);
        prop_assert!((1..=threads.min(2 * node_count as usize)).contains(&report.threads));
        prop_assert!(report.took_part <= report.threads);
    }
}

/// Chunks of a shared job end at addresses that are multiples of the minimum, whatever the start.
#[test]
fn chunks_within_a_job_are_multiples_of_the_minimum() {
    let (address, len, min) = (3 * 4096 + 17, 100_001, 4096);
    let placement = nodes(2);
    let job = Job::new(len).min_chunk(min).address(address).placement(&placement);
    let seams = Mutex::new(BTreeSet::new());
    job.threads(Threads::Exactly(3))
        .run(|bytes| {
            seams.lock().unwrap().extend([address + bytes.start, address + bytes.end]);
            Ok::<(), Infallible>(())
        })
        .unwrap();
    let seams = seams.into_inner().unwrap();
    let inner: Vec<_> = seams.range(address + 1..address + len).collect();
    assert!(inner.len() > 5);
    assert!(inner.iter().all(|seam| seam.is_multiple_of(min)), "{inner:?}");
}

#[test]
fn thread_alone_and_unwatched_takes_everything() {
    let chunks = Mutex::new(Vec::new());
    let record = |bytes: Range<usize>| {
        chunks.lock().unwrap().push(bytes);
        Ok::<(), Infallible>(())
    };
    let report = Job::new(10_007).threads(Threads::One).run(record).unwrap();
    assert_eq!(report, Report::alone(10_007));
    let whole = 0..10_007;
    assert_eq!(*chunks.lock().unwrap(), [whole]);
}

#[test]
fn thread_that_is_watched_takes_chunks_and_tells_of_each() {
    let told = Mutex::new(Vec::new());
    let progress = |done, total| told.lock().unwrap().push((done, total));
    let job = Job::new(1000).min_chunk(100).threads(Threads::One);
    job.progress(&progress).run(|_| Ok::<(), Infallible>(())).unwrap();
    let told = told.into_inner().unwrap();
    assert!(told.len() > 1);
    assert!(told.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(told.last(), Some(&(1000, 1000)));
}

/// A meeting point inside a chunk for the threads of a job, which proves that the threads work at
/// the same time. Product code must not do this, because helpers may be busy elsewhere. In these
/// tests, one test at a time needs helpers.
struct Rendezvous {
    arrived: AtomicUsize,
    _turn: MutexGuard<'static, ()>,
}

impl Rendezvous {
    fn alone() -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Self { arrived: AtomicUsize::new(0), _turn: turn }
    }

    fn meet(&self, expected: usize) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        while self.arrived.load(Ordering::SeqCst) < expected {
            thread::yield_now();
        }
    }
}

#[test]
fn progress_of_helpers_at_work_ascends() {
    let (placement, rendezvous) = (nodes(4), Rendezvous::alone());
    let (workers, told) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
    let progress = |done, _| told.lock().unwrap().push(done);
    let report = Job::new(64)
        .placement(&placement)
        .threads(Threads::Exactly(4))
        .progress(&progress)
        .run(|_| {
            workers.lock().unwrap().insert(format!("{:?}", thread::current().id()));
            rendezvous.meet(4);
            Ok::<(), Infallible>(())
        })
        .unwrap();
    assert_eq!((report.threads, report.took_part, report.capped), (4, 4, None));
    assert_eq!(workers.into_inner().unwrap().len(), 4);
    assert!(told.into_inner().unwrap().is_sorted_by(|a, b| a < b));
}

#[test]
fn helper_that_cannot_be_pinned_carries_on_and_is_reported_once() {
    // CPUs that no machine has: the kernel refuses each of them.
    let far = machine(&[(0, "900000-900001"), (1, "900002-900003")], "900000-900003");
    let (placement, rendezvous) =
        (Placement::read(&Root::at(far.path())).unwrap(), Rendezvous::alone());
    let map = striped(64, 2, 1);
    let job = Job::new(64).nodes(&map).placement(&placement).threads(Threads::Exactly(3));
    let report = job
        .run(|_| {
            rendezvous.meet(3);
            Ok::<(), Infallible>(())
        })
        .unwrap();
    assert_eq!((report.took_part, report.unpinned), (3, 2));
}

#[test]
fn helpers_run_on_allowed_cpus_only() {
    let mask = hugekit_sys::thread::affinity().unwrap();
    let elsewhere = Mutex::new(Vec::new());
    for _ in 0..20 {
        let report = Job::new(1000).threads(Threads::Exactly(mask.len())).run(|_| {
            let cpu = hugekit_sys::thread::current_cpu();
            if !mask.contains(cpu) {
                elsewhere.lock().unwrap().push(cpu);
            }
            Ok::<(), Infallible>(())
        });
        assert_eq!(report.unwrap().unpinned, 0);
    }
    assert_eq!(elsewhere.into_inner().unwrap(), []);
}

/// The first chunk of a thread: the node of its bytes, and the CPU that the thread ran on.
type Begun = Vec<(Option<u32>, u32)>;

/// Runs a job of these bytes, and returns the first chunk of each thread, the caller first. Checks
/// that helpers ran each chunk on a CPU of the node that holds the chunk.
fn begun_by(job: &Job<'_>, threads: usize, map: &NodeMap, machine: &Placement) -> Begun {
    let (rendezvous, caller) = (Rendezvous::alone(), thread::current().id());
    let begun = Mutex::new(Vec::new());
    let node_of = |at| map.cover(usize::MAX).into_iter().find(|(part, _)| part.contains(&at))?.1;
    let report = job.run(|bytes| {
        let (me, cpu) = (thread::current().id(), hugekit_sys::thread::current_cpu());
        let node = node_of(bytes.start);
        assert!(me == caller || machine.cpus_of(node.unwrap()).contains(cpu), "{bytes:?} {cpu}");
        let is_first = |begun: &[(ThreadId, _)]| begun.iter().all(|(thread, _)| *thread != me);
        let mut all = begun.lock().unwrap();
        if is_first(&all) {
            all.push((me, (node, cpu)));
            drop(all);
            rendezvous.meet(threads);
        }
        Ok::<(), Infallible>(())
    });
    let report = report.unwrap();
    assert_eq!((report.threads, report.took_part, report.unpinned), (threads, threads, 0));
    let mut begun = begun.into_inner().unwrap();
    begun.sort_by_key(|(thread, (node, _))| (*thread != caller, *node));
    begun.into_iter().map(|(_, begun)| begun).collect()
}

/// Checks the invented machines against a real machine: the threads begin where the plan for a
/// description of this machine says. The fleet's guests have several nodes.
#[test]
fn plan_for_a_description_of_this_machine_is_what_happens_on_it() {
    let here = Placement::here();
    let lists: Vec<_> = here.nodes().iter().map(|node| (node.id, node.cpus.to_string())).collect();
    let nodes: Vec<_> = lists.iter().map(|(id, cpus)| (*id, cpus.as_str())).collect();
    let files = machine(&nodes, &here.all_cpus().to_string());
    let description = Placement::read(&Root::at(files.path())).unwrap();
    assert_eq!(description.nodes(), here.nodes());
    let staffed: Vec<u32> =
        here.nodes().iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect();
    for (&busy, threads) in staffed.iter().flat_map(|id| (1..=here.threads()).map(move |n| (id, n)))
    {
        // A quarter on all nodes and the rest on one: as many chunks on each as it has CPUs, or more.
        let share = 1024 * threads;
        let shared = staffed.iter().zip((0..).step_by(share)).map(|(&id, at)| (at..at + share, id));
        let rest = staffed.len() * share..4 * staffed.len() * share;
        let map = NodeMap::new(shared.chain([(rest.clone(), busy)])).unwrap();
        let progress = |_, _| {}; // So that a thread alone takes chunks, too.
        let job = Job::new(rest.end).nodes(&map).threads(Threads::Exactly(threads));
        let job = job.progress(&progress);
        loop {
            let cpu = hugekit_sys::thread::current_cpu();
            let begun = begun_by(&job, threads, &map, &description);
            if begun[0].1 != cpu {
                continue; // The scheduler has moved the calling thread, and another plan was made.
            }
            let mut planned = job.home_nodes(&description, threads, cpu);
            planned[1..].sort_unstable();
            let happened: Vec<_> = begun.into_iter().map(|(node, _)| node).collect();
            assert_eq!(
                happened, planned,
                "{threads} threads, most on node {busy}, caller on {cpu}"
            );
            break;
        }
    }
}

#[test]
fn threads_of_a_thousand_cpus_are_capped_by_chunks_and_cap() {
    let lists: Vec<String> = (0..8).map(|n| format!("{}-{}", n * 125, n * 125 + 124)).collect();
    let ids: Vec<_> = (0..8).map(|n| (n, lists[n as usize].as_str())).collect();
    let placement = Placement::read(&Root::at(machine(&ids, "0-999").path())).unwrap();
    let job = Job::new(3000).min_chunk(1000).placement(&placement);
    let run = |job: Job<'_>| job.run(|_| Ok::<(), Infallible>(())).unwrap();
    let report = run(job.clone().threads(Threads::Exactly(500)));
    assert_eq!((report.threads, report.capped), (3, Some(Limit::Chunks(3))));
    assert_eq!(run(job.clone().cap(2)).threads, 2);
    assert_eq!(run(job.clone().cap(2)).capped, None);
    assert_eq!(run(job.cap(0)).threads, 1);
}

#[test]
fn threads_beyond_the_cpus_are_capped_and_reported() {
    let placement = nodes(1);
    let job = Job::new(1 << 20).placement(&placement).threads(Threads::Exactly(64));
    let report = job.run(|_| Ok::<(), Infallible>(())).unwrap();
    assert_eq!((report.threads, report.capped), (2, Some(Limit::AllowedCpus(2))));
}

#[test]
fn threads_under_a_quota_are_limited() {
    let files = machine(&[(0, "0-7")], "0-7");
    files.file("/proc/self/cgroup", "0::/a");
    let mount = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
    files.file("/proc/self/mountinfo", mount);
    files.file("/sys/fs/cgroup/a/cpu.max", "250000 100000");
    let placement = Placement::read(&Root::at(files.path())).unwrap();
    let job = Job::new(1 << 20).placement(&placement);
    let run = |job: Job<'_>| job.run(|_| Ok::<(), Infallible>(())).unwrap();
    assert_eq!(run(job.clone()).threads, 3);
    let report = run(job.threads(Threads::Exactly(5)));
    assert_eq!((report.threads, report.capped), (3, Some(Limit::CpuQuota(3))));
}

#[test]
fn job_on_nonsense_terms_does_nothing() {
    let never = |_| -> Result<(), Infallible> { unreachable!("nothing is to be done") };
    let none = Job::new(100).threads(Threads::Exactly(0)).run(never);
    assert_eq!(none, Err(JobError::NoThreads));
    for files in [machine(&[], ""), machine(&[(0, "4")], "0-3")] {
        let empty = Placement::read(&Root::at(files.path())).unwrap().within(&CpuSet::default());
        for threads in [Threads::One, Threads::Auto, Threads::Exactly(2)] {
            let job = Job::new(100).placement(&empty).threads(threads);
            assert_eq!(job.run(never), Err(JobError::NoCpus));
        }
    }
}

#[test]
fn job_on_nodes_without_cpus_is_served_by_the_others() {
    let files = machine(&[(3, "0-1"), (64, "")], "0-1");
    let placement = Placement::read(&Root::at(files.path())).unwrap();
    let map = NodeMap::new([(0..500, 64), (500..600, 3), (700..900, 12)]).unwrap();
    let counts = VisitCounts::new(1000);
    let job = Job::new(1000).nodes(&map).placement(&placement).threads(Threads::Exactly(2));
    job.run(|bytes| counts.add(bytes)).unwrap();
    assert!(counts.all(1));
}

#[test]
fn job_with_an_error_stops_and_says_what_was_done() {
    let (placement, counts, map) = (nodes(2), VisitCounts::new(1000), striped(1000, 2, 70));
    let job = Job::new(1000).min_chunk(10).placement(&placement).nodes(&map);
    let job = job.threads(Threads::Exactly(3));
    let failed = job.run(|bytes| {
        // Several may fail before each has heard of the first.
        if bytes.end > 500 {
            return Err("broken");
        }
        counts.add(bytes).map_err(|never| match never {})
    });
    let Err(JobError::Chunk { range, done, error }) = failed else { panic!("{failed:?}") };
    assert!(
        range.end > 500
            && done.left().any(|left| left.start <= range.start && range.end <= left.end)
    );
    assert_eq!(error, "broken");
    assert!(counts.are(&done) && counts.sum() <= 500);
}

#[test]
fn job_that_is_cancelled_says_what_was_done() {
    for threads in 1..4 {
        let (placement, counts, cancel) = (nodes(2), VisitCounts::new(1000), Cancel::new());
        let map = striped(1000, 2, 70);
        let job = Job::new(1000).min_chunk(10).placement(&placement).nodes(&map).cancel(&cancel);
        let cancelled = job.threads(Threads::Exactly(threads)).run(|bytes| {
            if counts.sum() > 300 {
                cancel.cancel();
            }
            counts.add(bytes)
        });
        let Err(JobError::Cancelled { done }) = cancelled else { panic!("{cancelled:?}") };
        assert!(counts.are(&done));
        assert_eq!(done.asked(), &(0..1000));
        assert!((1..1000).contains(&counts.sum()));
    }
}

/// A caller that stops a job of 64 GiB waits for at most 32 MiB per thread.
#[test]
fn cancel_of_a_job_lets_each_thread_finish_one_short_chunk() {
    let (placement, len) = (nodes(2), 64 << 30);
    for threads in 1..5 {
        let (cancel, after) = (Cancel::new(), AtomicUsize::new(0));
        let job = Job::new(len).min_chunk(HUGE_PAGE_BYTES).placement(&placement).cancel(&cancel);
        let cancelled = job.threads(Threads::Exactly(threads)).run(|bytes| {
            after.fetch_add(bytes.len(), Ordering::Relaxed);
            cancel.cancel();
            Ok::<(), Infallible>(())
        });
        let Err(JobError::Cancelled { done }) = cancelled else { panic!("{cancelled:?}") };
        assert_eq!(done.bytes(), after.into_inner());
        let done = done.bytes();
        assert!(done <= threads * (32 << 20), "{done} bytes by {threads} threads");
    }
}

#[test]
fn cancel_that_comes_too_late_changes_nothing() {
    let cancel = Cancel::new();
    let job = Job::new(10).min_chunk(10).cancel(&cancel);
    let report = job.run(|_| {
        cancel.cancel();
        Ok::<(), Infallible>(())
    });
    assert_eq!(report.unwrap().bytes, 10);
    assert_eq!(
        job_of_nothing(&cancel),
        Ok(Report { took_part: 0, ..Report::alone(0) }),
        "nothing to do is done, cancelled or not"
    );
}

fn job_of_nothing(cancel: &Cancel) -> Result<Report, JobError<Infallible>> {
    Job::new(0).cancel(cancel).run(|_| Ok(()))
}

fn panics_with(what: &str, run: impl FnOnce()) {
    let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(payload.downcast_ref::<String>().unwrap(), what);
}

#[test]
fn job_that_panics_in_any_thread_does_so_in_the_caller_and_the_workers_live_on() {
    let (placement, caller) = (nodes(2), thread::current().id());
    let job = Job::new(64).placement(&placement).threads(Threads::Exactly(3));
    let panic_in = |suits: fn(ThreadId, ThreadId) -> bool| {
        let rendezvous = Rendezvous::alone();
        panics_with("chunk", || {
            let _ = job.run(|_| {
                rendezvous.meet(3);
                assert!(!suits(thread::current().id(), caller), "{}", "chunk");
                Ok::<(), Infallible>(())
            });
        });
    };
    panic_in(|me, caller| me == caller);
    panic_in(|me, caller| me != caller);
    let rendezvous = Rendezvous::alone();
    let report = job.run(|_| {
        rendezvous.meet(3);
        Ok::<(), Infallible>(())
    });
    assert_eq!(report.unwrap().took_part, 3);
}

#[test]
fn job_whose_progress_panics_does_so_in_the_caller() {
    let placement = nodes(2);
    let progress = |done: usize, _: usize| assert!(done < 500, "{}", "progress");
    let job = Job::new(1000).min_chunk(10).placement(&placement).progress(&progress);
    panics_with("progress", || {
        let _ = job.run(|_| Ok::<(), Infallible>(()));
    });
}

#[test]
fn jobs_from_many_threads_at_once_do_not_mix() {
    let placement = nodes(4);
    thread::scope(|scope| {
        for len in (1..9).map(|n| n * 777) {
            let placement = &placement;
            scope.spawn(move || {
                for _ in 0..50 {
                    let counts = VisitCounts::new(len);
                    let job = Job::new(len).placement(placement).threads(Threads::Exactly(4));
                    job.run(|bytes| counts.add(bytes)).unwrap();
                    assert!(counts.all(1));
                }
            });
        }
    });
}

#[test]
fn job_within_a_chunk_within_a_chunk_ends() {
    fn nested(placement: &Placement, depth: usize, leaves: &AtomicUsize) {
        let job = Job::new(16).placement(placement).threads(Threads::Exactly(4));
        job.run(|bytes| {
            match depth {
                0 => drop(leaves.fetch_add(bytes.len(), Ordering::Relaxed)),
                _ => bytes.for_each(|_| nested(placement, depth - 1, leaves)),
            }
            Ok::<(), Infallible>(())
        })
        .unwrap();
    }
    let leaves = AtomicUsize::new(0);
    nested(&nodes(2), 2, &leaves);
    assert_eq!(leaves.into_inner(), 16 * 16 * 16);
}
