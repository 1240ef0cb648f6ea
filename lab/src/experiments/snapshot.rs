//! Beyond what was published: a point in time of a gigabyte is saved while a writer goes on at full speed, by
//! `fork(2)`, from a region, and from anonymous memory.
//!
//! The writer has one CPU and stores 64 bytes at a time, anywhere; the saver has another one. The state is *out*
//! when all of it lies in memory that other processes see: `fork(2)`'s child copies it there, hugekit's
//! snapshots are written there (`write_to`). All sides copy past the cache by the same routine, and the memory out
//! there is the same.

#![allow(unsafe_code)]

use std::io::{self, Write};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::latencies::{distribution, sum};
use crate::measure::machine::cpus;
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::forking::Shared;
use crate::measure::workloads::latency_writer::{
    self, LINE, Phase, STEP, WATCHED, Watched, WrittenLines,
};
use crate::measure::workloads::outside::Outside;
use crate::measure::workloads::threads::spawn;
use crate::record::{Experiment, Timeline, Unit};
use hdrhistogram::Histogram;
use hugekit::error_chain;
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::snapshot::{Builder, Granule, Reserve, SnapshotStats};
use hugekit::{CopyOptions, Reuse, SharedRegion, Snapshot, SnapshotError};
use hugekit_machine::size::{GIB, MIB, Size};

use super::memory_sources::unscrubbed;
use super::{Bench, Definition, snapshot_call};

pub(super) const DEFINITION: Definition = Definition {
    name: "snapshot",
    repeats: "beyond: a writer while its memory is saved: fork(2), region, anonymous",
    why: "Measures what a writer feels while a point in time of its memory is saved: stalls, latency and \
          throughput. A database forks for that today, and its clients see the stall.",
    headlines: &["fork2-thp-vs-anonymous-unreserved", "fork2-thp-vs-anonymous"],
    is_core: true,
    run,
};

/// The state that is saved.
const MOST_STATE: usize = GIB;

const HUGE: usize = 2 * MIB;

/// A state has at most the available memory divided by this number. There are several states, and copies of each.
const STATES: usize = 14;

/// The time for which the writer is watched before the save, and afterwards.
const AROUND: Duration = Duration::from_millis(20);

/// Pieces that a child of `fork(2)` copies, as a snapshot's are.
const PIECE: usize = 2 * MIB;

const BASE_PAGES: &str = "fork(2)'s memory is on base pages, and the kernel copies one at a write; the other side's \
     is on huge pages, of which a writer copies 2 MiB";

const POOLED: &str =
    "the region lies in a pool, which has reserved as much memory again for what writers copy";

const RESERVED: &str = "the snapshot has a reserve: memory for what writers copy was taken before, where the other \
     side's kernel takes it when they do";

const DELIVERED: &str = "the plain copy is of no point in time; and what the writer is about to change it copies there \
     itself, so that part of the work moves to its CPU";

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let memory = bench.leave_memory()?;
    bench.allow_thp()?;
    bench.allow_shared_thp()?;
    // Quickly, there is no time to write several gigabytes again and again.
    let part = if bench.options().quick { 4 } else { 2 };
    let available = bench.available_memory()?;
    let state = MOST_STATE.min(memory / part).min(available / STATES) / HUGE * HUGE;
    if state == 0 {
        return Ok(too_small("snapshot", available, STATES * HUGE));
    }
    // A region and its snapshot, and where the state goes.
    bench.reserve_unwritten(Pages::Hugetlb2M, 3 * state / HUGE)?;
    let (mut scene, left_out) = Scene::new(state)?;
    let memory = format!("a state of {}, written before by the writer's process", Size(state));
    let mut experiment = Experiment::on("snapshot", memory);
    experiment.notices = scene.notices();
    experiment.notices.extend(left_out);
    let mut workloads = vec![(WrittenLines::Uniform, 0.6)];
    if bench.options().quick {
        let left_out = "popular lines (zipf) and lines that fit into the cache left out: --quick";
        experiment.notices.push(left_out.to_owned());
    } else {
        workloads.push((WrittenLines::zipf(state / LINE), 0.2));
        let fitting = bench.caches().map(|caches| WrittenLines::Fitting(caches.llc / LINE));
        workloads.extend(fitting.map(|fitting| (fitting, 0.2)));
    }
    for (workload, share) in workloads {
        let rounds = bench.long_rounds(share, 20);
        rounds.observer.begin(&format!("snapshot{} {}", workload.name(), Size(state)));
        let name = format!("uniform{}", workload.name()).replace("uniform-", "");
        experiment.add(&name, watch(&mut scene, &workload, rounds, state))?;
    }
    experiment.add("call", snapshot_call::measure(state, bench.long_rounds(0.2, 20)))?;
    compare(&mut experiment, state);
    Ok(experiment)
}

/// An experiment that needs this much memory for the smallest state.
pub(super) fn too_small(name: &str, available: usize, needed: usize) -> Experiment {
    let available = Size(available / MIB * MIB);
    let reason = format!("{available} of memory are too few for any state");
    Experiment::skipped(name, reason, format!("make {} available", Size(needed)))
}

/// Every subject beside one kind of writer.
fn watch(
    scene: &mut Scene,
    workload: &WrittenLines,
    rounds: Rounds<'_>,
    state: usize,
) -> Result<Part, LabError> {
    let watched = scene.watched_with(workload);
    let methods: Vec<_> = watched.iter().map(|&index| scene.subjects[index].name()).collect();
    let names: Vec<_> =
        methods.iter().map(|name| format!("{name}/stall{}", workload.name())).collect();
    let measured = rounds.measure_with("snapshot", Unit::Microseconds, &names, |case| {
        let outcome = scene.look(watched[case], workload)?;
        Ok((outcome.stall(), outcome))
    });
    let (measured, outcomes) = measured?;
    let mut part = Part { failures: measured.failures, ..Part::new("snapshot") };
    for (name, outcomes) in
        methods.iter().zip(&outcomes).filter(|(_, outcomes)| !outcomes.is_empty())
    {
        describe(name, outcomes, workload.name(), state, &mut part);
    }
    Ok(part)
}

/// The ways to save that are watched, one after the other.
#[derive(Debug)]
struct Scene {
    subjects: Vec<SnapshotSubject>,
    /// The destination of the state.
    out: Outside,
    out_pages: Pages,
    /// The phase, and when a child was done.
    board: Outside,
    cpus: [usize; 2],
}

/// The memory that is saved, or the copy that a snapshot is compared with.
#[derive(Debug)]
enum SnapshotSubject {
    Fork(&'static str, Pages, Shared),
    Region(&'static str, SharedRegion),
    Anonymous(Granule, Option<Reserve>, Shared),
    /// All of the memory of another subject, by `copy_to`; or plainly copied.
    CopyTo,
    Plain,
}

/// Subjects of which only the time is recorded.
const COPIES: [&str; 2] = ["copy-to", "memcpy"];

/// The results of one snapshot.
#[derive(Debug)]
struct SnapshotOutcome {
    /// The time of the call that took the snapshot, and the time until all of it was saved.
    made: Duration,
    saved: Duration,
    /// Bytes that were copied because they were written.
    held: usize,
    watched: Watched,
}

impl SnapshotOutcome {
    fn latencies(&self, phase: Phase) -> &Histogram<u64> {
        &self.watched.latencies[phase as usize]
    }

    /// The longest store while the state was saved, in microseconds.
    fn stall(&self) -> f64 {
        self.latencies(Phase::During).max() as f64 / 1e3
    }

    /// Stores a second meanwhile.
    fn rate(&self) -> f64 {
        self.latencies(Phase::During).len() as f64 / self.saved.as_secs_f64()
    }
}

/// Memory of this process, on the pages that it wants if the kernel can find them.
fn shared(pages: Pages, state: usize) -> Result<Shared, LabError> {
    let mut shared = Shared::new(pages, state)?;
    if pages == Pages::Thp && !shared.is_huge() {
        // Where memory is in pieces, what comes with a fault gives up before this does.
        // SAFETY: private memory.
        unsafe { hugekit::snapshot::collapse(&raw const *shared.bytes()) };
    }
    Ok(shared)
}

impl SnapshotSubject {
    /// The notice, if the memory is not on the pages that it should be on.
    fn on_base_pages(&mut self) -> Option<String> {
        let name = self.name();
        match self {
            Self::Fork(_, Pages::Thp, shared) | Self::Anonymous(_, _, shared)
                if !shared.is_huge() =>
            {
                Some(format!(
                    "{name} is on base pages, at least in part: the kernel has no huge ones, or may not \
                     use them; `--setup` (root) allows them"
                ))
            }
            _ => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Fork(name, ..) | Self::Region(name, _) => (*name).to_owned(),
            Self::Anonymous(Granule::Small, ..) => "anonymous-64k".to_owned(),
            Self::Anonymous(_, None, _) => "anonymous-unreserved".to_owned(),
            Self::Anonymous(..) => "anonymous".to_owned(),
            Self::CopyTo => COPIES[0].to_owned(),
            Self::Plain => COPIES[1].to_owned(),
        }
    }

    /// Puts the memory on its pages again, all of it written, as far as the last look has changed that.
    fn prepare(&mut self) -> Result<(), LabError> {
        match self {
            // Memory that was shared, or protected in parts, is on base pages now.
            Self::Fork(_, Pages::Thp, shared) | Self::Anonymous(Granule::Small, _, shared) => {
                shared.give_back()?;
                shared.write();
                if !shared.is_huge() {
                    // SAFETY: private memory.
                    unsafe { hugekit::snapshot::collapse(&raw const *shared.bytes()) };
                }
            }
            Self::Fork(_, _, shared) => shared.write(),
            Self::Region(_, region) => region.prepare_write(0..region.len())?,
            _ => {}
        }
        self.warm()
    }

    /// Uses the memory once that what writers copy will go to: the hypervisor's own faults and the kernel's
    /// compaction would be all that is seen.
    fn warm(&mut self) -> Result<(), LabError> {
        match self {
            // The kernel's free memory, in whole huge pages.
            Self::Fork(_, _, shared) | Self::Anonymous(_, None, shared) => {
                Shared::new(Pages::Thp, shared.bytes().len() / 2)?;
            }
            Self::Anonymous(_, Some(reserve), _) => {
                reserve.touch();
            }
            // The pool's other half.
            Self::Region(_, region) => {
                let snapshot =
                    Snapshot::of_region(region.fork_builder().fault_mode(FaultMode::InPlace))?;
                snapshot.prepare_write(0..region.len())?;
            }
            Self::CopyTo | Self::Plain => {}
        }
        Ok(())
    }
}

/// The destination of hugekit's snapshots: memory outside.
struct Out(*mut u8);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: there is room for all of the state, of which this is the next part; no other thread writes there.
        unsafe { copy_out(self.0, bytes) };
        self.0 = self.0.wrapping_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// # Safety
/// As many bytes may be written, and no other thread uses them.
unsafe fn copy_out(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller promises that these bytes may be written and that no other thread uses them; `bytes`
    // is borrowed.
    let copied =
        unsafe { CopyOptions::new().reuse(Reuse::None).run_raw(to, bytes.as_ptr(), bytes.len()) };
    copied.expect("the two do not overlap, and no thread cancels");
}

impl Scene {
    /// The subjects for which there is memory, and the reasons why others are left out.
    fn new(state: usize) -> Result<(Self, Vec<String>), LabError> {
        let (mut subjects, mut left_out) = (Vec::new(), Vec::new());
        let reserve = Reserve::new(state);
        let reserve = reserve.map_err(|error| left_out.push(error_chain(&error).to_string())).ok();
        let mut add = |subject: Result<SnapshotSubject, LabError>, name: &str| match subject {
            Ok(subject) => subjects.push(subject),
            Err(error) => left_out.push(format!("{name} left out: {}", error_chain(&error))),
        };
        add(region(Backing::Hugetlb2M, "region", state), "region on hugetlb");
        add(region(Backing::Base, "region-base", state), "region on base pages");
        for (name, pages) in [("fork2-4k", Pages::Base), ("fork2-thp", Pages::Thp)] {
            add(
                shared(pages, state).map(|shared| SnapshotSubject::Fork(name, pages, shared)),
                name,
            );
        }
        let anonymous = |granule, reserve| {
            shared(Pages::Thp, state)
                .map(|shared| SnapshotSubject::Anonymous(granule, reserve, shared))
        };
        add(anonymous(Granule::Huge, None), "anonymous memory");
        add(anonymous(Granule::Huge, reserve.clone()), "anonymous memory");
        add(anonymous(Granule::Small, reserve), "anonymous memory");
        // Both copy the anonymous memory.
        if subjects
            .iter()
            .any(|subject| matches!(subject, SnapshotSubject::Anonymous(Granule::Huge, ..)))
        {
            subjects.extend([SnapshotSubject::CopyTo, SnapshotSubject::Plain]);
        }
        left_out.extend(subjects.iter_mut().filter_map(SnapshotSubject::on_base_pages));
        // Pages that a child has not to ask for one by one, if there are any.
        let (out, out_pages) = match Outside::new(Pages::Hugetlb2M, state) {
            Ok(out) => (out, Pages::Hugetlb2M),
            Err(_) => (Outside::new(Pages::Thp, state)?, Pages::Thp),
        };
        let board = Outside::new(Pages::Base, rustix::param::page_size())?;
        let allowed = cpus::allowed()?;
        let mut numbers = cpus::numbers(&allowed);
        let one = numbers.next().unwrap_or(0);
        let cpus = [one, numbers.next().unwrap_or(one)];
        Ok((Self { subjects, out, out_pages, board, cpus }, left_out))
    }

    fn notices(&self) -> Vec<String> {
        let [writer, saver] = self.cpus;
        let cpus = if writer == saver {
            "the writer and the saver share the only CPU: no figure means much".to_owned()
        } else {
            format!("the writer runs on CPU {writer}, the saver on CPU {saver}")
        };
        let out = match self.out_pages {
            Pages::Hugetlb2M => "the state goes to shared memory on hugetlb",
            _ => {
                "the state goes to shared memory that is not on hugetlb: the child of fork(2) maps it page by \
                 page; `--setup` (root) reserves pages"
            }
        };
        let warm = "before each look, the memory was used once that what writers copy goes to, on all sides: this \
             takes the hypervisor's share out of what is seen";
        vec![cpus, out.to_owned(), warm.to_owned()]
    }

    /// Which subjects are watched: with writers other than the uniform one, those that save, each in its best way.
    fn watched_with(&self, workload: &WrittenLines) -> Vec<usize> {
        let is_special = |subject: &SnapshotSubject| {
            matches!(subject, SnapshotSubject::Anonymous(Granule::Huge, None, _))
                || matches!(subject, SnapshotSubject::CopyTo | SnapshotSubject::Plain)
        };
        let is_uniform = matches!(workload, WrittenLines::Uniform);
        let all = self.subjects.iter().enumerate();
        let watched = all.filter(|(_, subject)| is_uniform || !is_special(subject));
        watched.map(|(index, _)| index).collect()
    }

    /// The memory of a subject.
    fn words(&mut self, index: usize) -> &'static [AtomicU64] {
        let bytes = match &mut self.subjects[index] {
            SnapshotSubject::Region(_, region) => (region.as_ptr(), region.len()),
            SnapshotSubject::Fork(_, _, shared) | SnapshotSubject::Anonymous(_, _, shared) => {
                (shared.bytes().as_mut_ptr(), shared.bytes().len())
            }
            SnapshotSubject::CopyTo | SnapshotSubject::Plain => {
                let of = |subject: &SnapshotSubject| {
                    matches!(subject, SnapshotSubject::Anonymous(Granule::Huge, ..))
                };
                let index = self.subjects.iter().position(of).expect("one of these is there");
                return self.words(index);
            }
        };
        // SAFETY: mapped until the scene ends, which outlives every look, aligned to pages, and accessed by atomics,
        // by snapshots, and by copies whose outcome no case looks at.
        unsafe { std::slice::from_raw_parts(bytes.0.cast(), bytes.1 / size_of::<u64>()) }
    }

    /// Watches the writer of one subject.
    fn look(&mut self, index: usize, workload: &WrittenLines) -> Result<SnapshotOutcome, LabError> {
        self.subjects[index].prepare()?;
        let words = self.words(index);
        let Self { subjects, out, board, cpus: [writer_cpu, saver_cpu], .. } = self;
        let (subject, phase) = (&mut subjects[index], &board.words()[0]);
        let (writer_cpu, saver_cpu) = (*writer_cpu, *saver_cpu);
        let start = Barrier::new(2);
        phase.store(Phase::Before as u64, Ordering::Relaxed);
        thread::scope(|scope| {
            let writer = spawn(scope, || {
                run_on(writer_cpu);
                start.wait();
                latency_writer::write(words, workload, phase)
            })?;
            let saver = spawn(scope, || {
                run_on(saver_cpu);
                start.wait();
                thread::sleep(AROUND);
                let saved = save(subject, words, out, board);
                phase.store(Phase::After as u64, Ordering::Relaxed);
                thread::sleep(AROUND);
                phase.store(Phase::Over as u64, Ordering::Relaxed);
                saved
            });
            let saver = saver.inspect_err(|_| {
                // The writer waits for a saver that never comes: it is over before it begins.
                phase.store(Phase::Over as u64, Ordering::Relaxed);
                start.wait();
            })?;
            let saved = saver.join().expect("it does not panic");
            let watched = writer.join().expect("it does not panic");
            let (made, saved, held) = saved?;
            let page = rustix::param::page_size();
            // A child's pages are the parent's before it wrote them: what the parent has instead.
            let held = held.unwrap_or(watched.faults as usize * page);
            Ok(SnapshotOutcome { made, saved, held, watched })
        })
    }
}

/// Has the calling thread, and children that it makes, run there. Where that is refused, it runs anywhere.
fn run_on(cpu: usize) {
    let _ = cpus::run_on(&cpus::only(cpu));
}

fn region(backing: Backing, name: &'static str, state: usize) -> Result<SnapshotSubject, LabError> {
    let pool = unscrubbed(2 * state).backing(backing).strict(true).build()?;
    let mut region = pool.region(state)?;
    region.fill(1);
    debug_assert_eq!(pool.backing(), backing);
    Ok(SnapshotSubject::Region(name, region.share()))
}

/// The time until the writers could go on, the time until all was saved, and the bytes that were copied because they
/// were written, if they are known.
type SaveTimes = (Duration, Duration, Option<usize>);

/// Takes a snapshot and saves it: how long the first took, and both, and what was retained, where that is known.
fn save(
    subject: &mut SnapshotSubject,
    words: &[AtomicU64],
    out: &Outside,
    board: &Outside,
) -> Result<SaveTimes, LabError> {
    let memory = std::ptr::slice_from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words));
    let phase = &board.words()[0];
    let in_place = Snapshot::builder().fault_mode(FaultMode::InPlace);
    // SAFETY: no thread of the lab blocks SIGBUS, and no system call writes there.
    let of_memory = |builder: Builder| unsafe { builder.of_anonymous(memory) };
    let write_out = |snapshot: Snapshot| snapshot.write_to(Out(out.start()));
    match subject {
        SnapshotSubject::Fork(_, _, shared) => save_by_child(shared, out, board),
        SnapshotSubject::Region(_, region) => {
            let builder = region.fork_builder().fault_mode(FaultMode::InPlace);
            save_by_snapshot(phase, || Snapshot::of_region(builder.clone()), write_out)
        }
        SnapshotSubject::Anonymous(granule, reserve, _) => {
            let mut builder = in_place.granule(*granule).max_cow_bytes(memory.len());
            if let Some(reserve) = reserve {
                builder = builder.reserve(reserve);
            }
            save_by_snapshot(phase, || of_memory(builder), write_out)
        }
        SnapshotSubject::CopyTo => save_by_snapshot(
            phase,
            || of_memory(in_place),
            |snapshot| {
                // SAFETY: no other thread uses it until the snapshot is out.
                snapshot
                    .copy_to(unsafe { std::slice::from_raw_parts_mut(out.start(), memory.len()) })
            },
        ),
        SnapshotSubject::Plain => {
            let began = begin(phase);
            // SAFETY: both have so many bytes; no thread looks at bytes that are copied while they are written.
            unsafe { out.start().copy_from_nonoverlapping(memory.cast(), memory.len()) };
            Ok((Duration::ZERO, began.elapsed(), Some(0)))
        }
    }
}

fn begin(phase: &AtomicU64) -> Instant {
    phase.store(Phase::During as u64, Ordering::Relaxed);
    Instant::now()
}

fn save_by_snapshot(
    phase: &AtomicU64,
    take: impl FnOnce() -> Result<Snapshot, SnapshotError>,
    save: impl FnOnce(Snapshot) -> Result<SnapshotStats, SnapshotError>,
) -> Result<SaveTimes, LabError> {
    let began = begin(phase);
    let snapshot = take()?;
    let made = began.elapsed();
    let stats = save(snapshot)?;
    Ok((made, began.elapsed(), Some(stats.most_retained)))
}

fn save_by_child(
    shared: &mut Shared,
    out: &Outside,
    board: &Outside,
) -> Result<SaveTimes, LabError> {
    let [phase, done] = [&board.words()[0], &board.words()[1]];
    let began = begin(phase);
    let (child, made) = shared.child(|bytes| {
        for (piece, bytes) in bytes.chunks(PIECE).enumerate() {
            // SAFETY: there is room for all of it, and no other thread writes there.
            unsafe { copy_out(out.start().add(piece * PIECE), bytes) };
        }
        done.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        phase.store(Phase::After as u64, Ordering::Relaxed);
    })?;
    child.wait()?;
    Ok((made, Duration::from_nanos(done.load(Ordering::Relaxed)), None))
}

/// Adds what was seen of a subject.
fn describe(name: &str, outcomes: &[SnapshotOutcome], kind: &str, state: usize, part: &mut Part) {
    let mut add = |name: &str, unit, sample: &dyn Fn(&SnapshotOutcome) -> f64| {
        part.add_case(name, unit, outcomes.iter().map(sample).collect());
    };
    let saved = |outcome: &SnapshotOutcome| outcome.saved.as_secs_f64() * 1e6;
    if COPIES.contains(&name) {
        return add(&format!("{name}/{}{kind}", Size(state)), Unit::Microseconds, &saved);
    }
    let id = |what: &str| format!("{name}/{what}{kind}");
    add(&id("stall"), Unit::Microseconds, &SnapshotOutcome::stall);
    add(&id("throughput"), Unit::StoresPerSecond, &SnapshotOutcome::rate);
    add(&id("save"), Unit::Microseconds, &saved);
    add(&id("made"), Unit::Microseconds, &|outcome| outcome.made.as_secs_f64() * 1e6);
    add(&id("memory"), Unit::Mebibytes, &|outcome| outcome.held as f64 / MIB as f64);
    for phase in WATCHED {
        let id = format!("snapshot/{}", id(&format!("{phase:?}").to_lowercase()));
        let all = sum(outcomes.iter().map(|outcome| outcome.latencies(phase)));
        part.distributions.push(distribution(&id, &all));
    }
    let Watched { began, timeline, .. } = &outcomes[outcomes.len() - 1].watched;
    part.timelines.push(Timeline {
        id: format!("snapshot/{}", id("timeline")),
        step: STEP.as_secs_f64() * 1e6,
        began: began.as_secs_f64() * 1e6,
        stores: timeline.iter().map(|(stores, _)| *stores).collect(),
        longest: timeline.iter().map(|(_, longest)| longest.as_secs_f64() * 1e6).collect(),
    });
}

/// The comparisons: where a case is missing, there is none.
fn compare(experiment: &mut Experiment, state: usize) {
    for kind in ["", "-zipf", "-fitting"] {
        for what in ["stall", "throughput", "save"] {
            for (baseline, subject, moved) in [
                ("fork2-thp", "anonymous-unreserved", None),
                ("fork2-thp", "anonymous", Some(RESERVED)),
                ("fork2-4k", "anonymous", Some(BASE_PAGES)),
                ("fork2-4k", "region", Some(POOLED)),
                ("fork2-4k", "region-base", Some(POOLED)),
            ] {
                experiment.compare((baseline, subject), &format!("{what}{kind}"), moved);
            }
        }
    }
    let sides = ["memcpy", "copy-to"].map(|method| format!("{method}/{}", Size(state)));
    let id = format!("memcpy-vs-save/{}", Size(state));
    experiment.ratio(&id, (&sides[0], &sides[1]), Some(DELIVERED));
}
