//! Beyond what was published: a state of memory that is saved again and again, as all of it and as what has changed.
//!
//! Before each save, what a second's stores of the writer change is changed, and the writer goes on at its rate while the
//! state is saved. It is *out* when it is in a file in memory, by write(2): the whole snapshot (*full*), or a delta of
//! what was written since the state before (*delta*). *plain* writes the memory as it is, of no point in time.
//!
//! *full* and *plain* overwrite one file, whose pages are there. Each delta is a new file, as in a program, because the
//! next one is compared with those before it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek, Write};
use std::ptr::slice_from_raw_parts;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use hugekit::Snapshot;
use hugekit::snapshot::{Builder, Changes, Epoch, Reserve};
use hugekit_delta::{Chain, Saved};
use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;

use super::epochs_throughput;
use super::part::{Part, found};
use crate::anonymous::{Anonymous, Pages};
use crate::bench::Bench;
use crate::dirty_pages::DirtyPages;
use crate::paced_writer::Pattern;
use crate::record::{Case, Experiment, Ratio, Skipped, Unit};
use crate::sampler::{Plan, try_alternate};
use crate::size::{GIB, MIB, Size};
use crate::{LabError, Observer};

/// The state that is saved.
const MOST_STATE: usize = GIB;

const HUGE: usize = 2 * MIB;

/// Of what is available, the state may be one part in this many: it is there, where it goes, in its deltas, and in what
/// its writers copy.
const STATES: usize = 6;

/// Deltas that follow on each other, until all of the state is saved anew.
const MOST_DELTAS: usize = 12;

const UNSAVED: &str = "plainly written, it is of no point in time";

const BY_BLOCKS: &str =
    "the kernel's notes are of whole pages, and a delta is of blocks of 4 KiB, found by comparing";

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let (memory, observer) = bench.leave_memory()?;
    bench.allow_thp()?;
    let part = if bench.options().quick { 8 } else { 2 };
    let state = MOST_STATE.min(memory / part).min(bench.available_memory()? / STATES) / HUGE * HUGE;
    if state == 0 {
        return Ok(skipped(bench.available_memory()?));
    }
    let reserved = bench.reserve_unwritten(Pages::Hugetlb2M, state / HUGE)?;
    let mut experiment = Experiment {
        name: "epochs".to_owned(),
        memory: Some(format!("a state of {} on huge pages, written before", Size(state))),
        ..Experiment::default()
    };
    let mut saver = Saver::new(Pages::Thp, state)?;
    if !saver.deltas.is_in_memory() {
        let folder = saver.deltas.folder.path().display();
        let notice = format!("deltas go to {folder}, because /dev/shm cannot be written");
        experiment.notices.push(notice);
    }
    for (pattern, share) in [(Pattern::clustered(state), 0.3), (Pattern::zipf(state), 0.3)] {
        observer.begin(&format!("epochs save {} {}", pattern.name, Size(state)));
        let plan = bench.plan_of_long_rounds(share, 20);
        experiment.add(pattern.name, saves(&mut saver, &pattern, plan, observer))?;
    }
    let pattern = Pattern::uniform(state);
    observer.begin(&format!("epochs bytes {} {}", pattern.name, Size(state)));
    let plan = bench.plan_of_long_rounds(0.1, 6);
    let has_reserved = reserved * HUGE >= state;
    experiment.add("bytes", bytes(&mut saver, &pattern, has_reserved, plan, observer))?;
    drop(saver);
    observer.begin(&format!("epochs throughput {}", Size(state)));
    let plan = bench.plan_of_long_rounds(0.3, 12);
    experiment.add("throughput", epochs_throughput::measure(state, plan, observer))?;
    Ok(experiment)
}

fn skipped(available: usize) -> Experiment {
    Experiment {
        name: "epochs".to_owned(),
        skipped: Some(Skipped {
            reason: format!("{} of memory are too few for any state", Size(available / MIB * MIB)),
            remedy: format!("make {} available", Size(STATES * HUGE)),
        }),
        ..Experiment::default()
    }
}

/// Memory with its saved states, and where they go.
#[derive(Debug)]
struct Saver {
    memory: Anonymous,
    out: File,
    chain: Chain,
    deltas: Deltas,
    epoch: Option<Epoch>,
    reserve: Reserve,
}

impl Saver {
    fn new(pages: Pages, state: usize) -> Result<Self, LabError> {
        let mut memory = written(pages, state)?;
        let mut out = File::from(
            memfd_create("hugekit-lab", MemfdFlags::CLOEXEC)
                .map_err(|errno| LabError::Map { len: Size(state), cause: errno.into() })?,
        );
        // Its pages are there from the beginning, whichever is saved first.
        out.write_all(memory.bytes()).map_err(LabError::Saved)?;
        let (chain, reserve) = (Chain::new(state as u64), Reserve::new(state)?);
        let deltas = Deltas::new()?;
        Ok(Self { memory, out, chain, deltas, epoch: None, reserve })
    }

    /// The memory as writers share it.
    fn words(&mut self) -> &'static [AtomicU64] {
        words(&mut self.memory)
    }

    fn all(&mut self) -> *const [u8] {
        let bytes = self.memory.bytes();
        slice_from_raw_parts(bytes.as_ptr(), bytes.len())
    }

    fn plain(&mut self) -> Result<(), LabError> {
        self.out.rewind().map_err(LabError::Saved)?;
        self.out.write_all(self.memory.bytes()).map_err(LabError::Saved)
    }

    fn full(&mut self) -> Result<(), LabError> {
        self.out.rewind().map_err(LabError::Saved)?;
        let all = self.all();
        // SAFETY: the memory outlives the snapshot; its writers are threads of ours, none of which blocks SIGBUS.
        unsafe { builder(all.len(), &self.reserve).of_anonymous(all) }?.write_to(&self.out)?;
        Ok(())
    }

    /// The next delta has what is written from now on.
    fn begin_delta(&mut self) -> Result<(), LabError> {
        if self.deltas.count == MOST_DELTAS {
            self.chain.begin_anew();
            (self.deltas, self.epoch) = (Deltas::new()?, None);
        }
        self.delta().map(drop)
    }

    fn delta(&mut self) -> Result<Saved, LabError> {
        let changes = self.changes()?;
        let file = self.deltas.next().map_err(LabError::Saved)?;
        let mut saving = self.chain.save_changes(&file)?;
        self.epoch = Some(changes.write_to(|offset, bytes| saving.put(offset as u64, bytes))?);
        Ok(saving.finish()?)
    }

    fn changes(&mut self) -> Result<Changes, LabError> {
        let builder = builder(self.memory.bytes().len(), &self.reserve);
        let changes = match self.epoch.take() {
            // SAFETY: as for `full`.
            Some(epoch) => unsafe { builder.since(epoch) },
            // SAFETY: as above.
            None => unsafe { builder.first_epoch(self.all()) },
        };
        Ok(changes?)
    }
}

/// Where deltas go.
#[derive(Debug)]
struct Deltas {
    folder: TempDir,
    count: usize,
}

impl Deltas {
    fn new() -> Result<Self, LabError> {
        let in_memory = tempfile::tempdir_in("/dev/shm");
        let folder = in_memory.or_else(|_| tempfile::tempdir()).map_err(LabError::Saved)?;
        Ok(Self { folder, count: 0 })
    }

    fn is_in_memory(&self) -> bool {
        self.folder.path().starts_with("/dev/shm")
    }

    fn next(&mut self) -> io::Result<File> {
        self.count += 1;
        File::create(self.folder.path().join(self.count.to_string()))
    }
}

/// Wherever the writer writes, no state is lost for want of memory for its copies, and the writer does not wait until the
/// kernel has cleared it.
fn builder(state: usize, reserve: &Reserve) -> Builder {
    Snapshot::builder().max_cow_bytes(state).reserve(reserve)
}

/// Memory of which every page was written.
pub(super) fn written(pages: Pages, len: usize) -> Result<Anonymous, LabError> {
    let mut memory = Anonymous::new(pages, len)?;
    let mut random = fastrand::Rng::with_seed(1969);
    // Nothing that is alike, as values of programs are not.
    for word in memory.bytes().chunks_exact_mut(size_of::<u64>()) {
        word.copy_from_slice(&random.u64(..).to_ne_bytes());
    }
    if pages == Pages::Thp {
        put_together(&mut memory);
    }
    Ok(memory)
}

/// Memory that is to be on huge pages is, where the kernel has taken them apart or found none at the faults.
pub(super) fn put_together(memory: &mut Anonymous) {
    // SAFETY: private memory of our own.
    unsafe { hugekit::snapshot::collapse(&raw const *memory.bytes()) };
}

/// Memory as several threads write it, as long as it is there.
pub(super) fn words(memory: &mut Anonymous) -> &'static [AtomicU64] {
    let bytes = memory.bytes();
    // SAFETY: mapped at a multiple of a page; each user of it here has ended before the memory is dropped, and other
    // borrows of it are for reading by the kernel, from a snapshot.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<u64>()) }
}

const METHODS: [&str; 3] = ["full", "delta", "plain"];

fn saves(
    saver: &mut Saver,
    pattern: &Pattern,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    let (mut part, mut deltas, words) = (Part::default(), Vec::new(), saver.words());
    let mut written = 0;
    let rounds = try_alternate(plan, METHODS.len(), observer, |method| {
        // So that the next delta has what follows, and nothing that is due to others' turns.
        saver.begin_delta()?;
        pattern.write(words, written, pattern.rate);
        written += pattern.rate;
        let took = pattern.during(words, || {
            let began = Instant::now();
            match METHODS[method] {
                "full" => saver.full()?,
                "plain" => saver.plain()?,
                _ => deltas.push(saver.delta()?),
            }
            Ok(began.elapsed())
        })?;
        Ok(took.as_secs_f64() * 1e6)
    })?;
    let save = format!("save-{}", pattern.name);
    let cases = part.cases_of(rounds, |index, samples| Case {
        id: format!("epochs/{}/{save}", METHODS[index]),
        unit: Unit::Microseconds,
        samples,
        published: Vec::new(),
    });
    if let [Some(full), Some(delta), plain] = &cases[..] {
        part.ratios.push(Ratio::between(format!("epochs/full-vs-delta/{save}"), full, delta));
        let of_plain = |plain| {
            Ratio::between(format!("epochs/plain-vs-full/{save}"), plain, full).unlike(UNSAVED)
        };
        part.ratios.extend(plain.iter().map(of_plain));
    }
    part.notices.extend(deltas.last().map(|saved| {
        format!(
            "{}: {} stores of 64 bytes a second; the last delta had {} of {}",
            pattern.name,
            pattern.rate,
            Size(saved.changed as usize / 4096 * 4096),
            Size(saver.memory.bytes().len()),
        )
    }));
    part.cases = found(cases);
    Ok(part)
}

/// Bytes of what is saved, and of the pages that the kernel notes as written.
fn bytes(
    saver: &mut Saver,
    pattern: &Pattern,
    has_reserved: bool,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    let state = saver.memory.bytes().len();
    let mut noted = vec![("wp-async-base", Pages::Base), ("wp-async-thp", Pages::Thp)];
    noted.extend(has_reserved.then_some(("wp-async-hugetlb", Pages::Hugetlb2M)));
    let names: Vec<&str> =
        ["full", "delta"].into_iter().chain(noted.iter().map(|(name, _)| *name)).collect();
    let mut first = 0;
    let rounds = try_alternate(plan, names.len(), observer, |index| {
        first += pattern.rate;
        let bytes = match index {
            0 => state,
            1 => {
                saver.begin_delta()?;
                pattern.write(saver.words(), first, pattern.rate);
                saver.delta()?.written as usize
            }
            _ => noted_bytes(noted[index - 2].1, state, pattern, first)?,
        };
        Ok(bytes as f64 / MIB as f64)
    })?;
    let mut part = Part::default();
    let bytes = format!("bytes-{}", pattern.name);
    let cases = part.cases_of(rounds, |index, samples| Case {
        id: format!("epochs/{}/{bytes}", names[index]),
        unit: Unit::Mebibytes,
        samples,
        published: Vec::new(),
    });
    let against = |other: usize| {
        let id = format!("epochs/{}-vs-delta/{bytes}", names[other]);
        let ratio = Ratio::between(id, cases[other].as_ref()?, cases[1].as_ref()?);
        Some(if other == 0 { ratio } else { ratio.unlike(BY_BLOCKS) })
    };
    part.ratios = (0..names.len()).filter(|&other| other != 1).filter_map(against).collect();
    if !has_reserved {
        let left_out = "wp-async-hugetlb left out: too few reserved pages are free; `--setup` (root) reserves them";
        part.notices.push(left_out.to_owned());
    }
    part.cases = found(cases);
    Ok(part)
}

/// Bytes of pages that were written, as the kernel's notes have it.
fn noted_bytes(
    pages: Pages,
    state: usize,
    pattern: &Pattern,
    first: usize,
) -> Result<usize, LabError> {
    let mut memory = written(pages, state)?;
    let notes = DirtyPages::by_wp_async(memory.addresses()).map_err(LabError::notes)?;
    let notes = notes.ok_or_else(|| LabError::notes(rustix::io::Errno::NOSYS))?;
    notes.begin().map_err(LabError::notes)?;
    pattern.write(words(&mut memory), first, pattern.rate);
    Ok(notes.count().map_err(LabError::notes)? * rustix::param::page_size())
}
