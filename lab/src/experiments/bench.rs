//! The means that experiments of one run share: options, the memory, how much time each may take.

use std::time::Duration;

use crate::measure::machine::memory::{THP_ENABLED, available_memory, free_huge_pages, has_thp};
use crate::measure::machine::settings::{PATIENCE, Settings};
use crate::measure::part::Rounds;
use crate::measure::sampler::Plan;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::arena::Arena;
use crate::measure::{LabError, Observer};
use crate::record::Experiment;
use hugekit_machine::size::{GIB, MIB, Size};
use hugekit_machine::{CacheSizes, Memory, Root, cache};

use crate::Options;

/// Time that the rounds of one experiment may take together. A quick one has 15 s for everything,
/// warming memory and the rounds that must be included.
const QUICK_BUDGET: Duration = Duration::from_secs(5);
const FULL_BUDGET: Duration = Duration::from_millis(6500);

/// Rounds below which a median says little; even, because half of them choose and half judge.
const QUICK_ROUNDS: usize = 4;
const FULL_ROUNDS: usize = 6;

/// The same of rounds that take seconds, whose samples are long enough to be steady by themselves.
const LONG_ROUNDS: usize = 2;

/// The number of times its time that a part may take for its fewest rounds, before two are enough. All experiments
/// together are to end within three minutes, on a machine where a round takes longer too.
const PATIENCE_IN_BUDGETS: u32 = 4;

/// With less, no experiment has room for more than one size. So little is a cache on many machines, which
/// notices say.
const LEAST_MEMORY: usize = 16 * MIB;

const SHARED_THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

pub(crate) struct Bench<'a> {
    options: &'a Options,
    observer: &'a dyn Observer,
    root: Root,
    memory: usize,
    /// The reason why this is less memory than other machines have.
    short: Option<String>,
    arena: Option<Arena>,
    /// True if this much memory has been written once.
    warmed: bool,
    caches: Option<CacheSizes>,
    settings: Settings,
}

impl<'a> Bench<'a> {
    /// Decides how much memory to use; maps none yet.
    pub(crate) fn new(options: &'a Options, observer: &'a dyn Observer) -> Result<Self, LabError> {
        Self::on(Root::default(), options, observer)
    }

    /// A bench on the machine that these files describe.
    fn on(root: Root, options: &'a Options, observer: &'a dyn Observer) -> Result<Self, LabError> {
        // First: until its turn another lab has memory set apart, or has left settings changed.
        let settings = match options.setup {
            true => Settings::in_turn(&root, PATIENCE, observer)?,
            false => Settings::none(),
        };
        let available = available_memory(&root)?;
        let memory = memory_to_use(options, available)?;
        let short = short_of_memory(options, memory, available);
        let caches = cache::read(&root).ok();
        Ok(Self {
            options,
            observer,
            root,
            memory,
            short,
            arena: None,
            warmed: false,
            caches,
            settings,
        })
    }

    /// The reason why this run has less memory than others, if it has.
    pub(crate) fn short_of_memory(&self) -> Option<&str> {
        self.short.as_deref()
    }

    /// Bytes that the machine, or the control group, would still give.
    pub(crate) fn available_memory(&self) -> Result<usize, LabError> {
        available_memory(&self.root)
    }

    /// The last-level cache in bytes; 0 where the machine does not say.
    pub(crate) fn llc(&self) -> usize {
        self.caches.map_or(0, |caches| caches.llc)
    }

    pub(crate) fn options(&self) -> &'a Options {
        self.options
    }

    pub(crate) fn caches(&self) -> Option<CacheSizes> {
        self.caches
    }

    /// Rounds for a part of an experiment that may take this share of its time.
    pub(crate) fn rounds(&self, share: f64, max_rounds: usize) -> Rounds<'a> {
        self.rounds_of(share, max_rounds, None)
    }

    /// [`rounds`](Self::rounds), for rounds that take seconds.
    pub(crate) fn long_rounds(&self, share: f64, max_rounds: usize) -> Rounds<'a> {
        self.rounds_of(share, max_rounds, Some(LONG_ROUNDS))
    }

    /// [`rounds`](Self::rounds), with this least number instead of the usual one.
    pub(crate) fn rounds_of(
        &self,
        share: f64,
        max_rounds: usize,
        least: Option<usize>,
    ) -> Rounds<'a> {
        let (budget, min_rounds) = match self.options.quick {
            true => (QUICK_BUDGET, QUICK_ROUNDS),
            false => (FULL_BUDGET, FULL_ROUNDS),
        };
        let (budget, min_rounds) = (budget.mul_f64(share), least.unwrap_or(min_rounds));
        let by_time =
            Plan { min_rounds, max_rounds, budget, patience: PATIENCE_IN_BUDGETS * budget };
        let plan = self.options.rounds.map_or(by_time, Plan::exactly);
        Rounds { plan, observer: self.observer }
    }

    /// The memory, mapped and warmed at the first call.
    pub(crate) fn arena(&mut self) -> Result<&mut Arena, LabError> {
        let arena = match self.arena.take() {
            Some(arena) => arena,
            None => self.new_arena()?,
        };
        Ok(self.arena.insert(arena))
    }

    fn new_arena(&mut self) -> Result<Arena, LabError> {
        self.allow_thp()?;
        let arena = Arena::warmed(self.memory, self.observer)?;
        self.warmed = true;
        Ok(arena)
    }

    /// Sees to it that anonymous memory may be on transparent huge pages of 2 MiB, as far as settings may be
    /// changed; whether it may.
    pub(crate) fn allow_thp(&mut self) -> Result<bool, LabError> {
        let path = self.root.path(THP_ENABLED);
        Ok(has_thp(&self.root) && self.settings.choose(&path, &["always", "madvise"], "madvise")?)
    }

    /// The same of shared memory.
    pub(crate) fn allow_shared_thp(&mut self) -> Result<bool, LabError> {
        let path = self.root.path(SHARED_THP_ENABLED);
        let enough = ["always", "within_size", "advise", "force"];
        Ok(path.exists() && self.settings.choose(&path, &enough, "advise")?)
    }

    /// Does something with settings that are put back right afterwards.
    pub(crate) fn with_settings_for_a_while<T>(
        &mut self,
        work: impl FnOnce(&mut Settings) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let mark = self.settings.mark();
        let outcome = work(&mut self.settings);
        let restored = self.settings.restore_to(mark);
        outcome.and_then(|outcome| restored.map(|()| outcome))
    }

    /// Whom to tell what happens.
    pub(crate) fn observer(&self) -> &'a dyn Observer {
        self.observer
    }

    /// Leaves the memory to the kernel, written once before, for an experiment that asks the kernel
    /// for its own; returns how much that is.
    pub(crate) fn leave_memory(&mut self) -> Result<usize, LabError> {
        if !self.warmed {
            self.arena()?;
        }
        self.arena = None;
        Ok(self.memory)
    }

    /// The number of huge pages that this process may have now, at most `wanted`. If fewer are free and settings may be
    /// changed, more are reserved. All of these pages have been written once.
    pub(crate) fn reserve(&mut self, pages: Pages, wanted: usize) -> Result<usize, LabError> {
        let free = self.reserve_unwritten(pages, wanted)?;
        if free > 0 {
            drop(Anonymous::populated(pages, free * pages.size())?);
        }
        Ok(free)
    }

    /// [`reserve`](Self::reserve), for an experiment that writes all of the pages before it measures.
    pub(crate) fn reserve_unwritten(
        &mut self,
        pages: Pages,
        wanted: usize,
    ) -> Result<usize, LabError> {
        let size = pages.size();
        let before = free_huge_pages(&self.root, pages.size())?;
        let wanted = wanted.min(before + self.room_for_reserved()? / size);
        self.settings.reserve(&self.root, size as u64, wanted as u64)?;
        Ok(free_huge_pages(&self.root, pages.size())?.min(wanted))
    }

    /// Huge pages of this size that are free.
    pub(crate) fn free_huge_pages(&self, pages: Pages) -> Result<usize, LabError> {
        free_huge_pages(&self.root, pages.size())
    }

    /// Bytes that may be set apart for huge pages: what is available beside the experiment's own memory, less
    /// what is left to the rest of the system.
    fn room_for_reserved(&self) -> Result<usize, LabError> {
        let spare = usize::try_from(Memory::read(&self.root)?.spare()).unwrap_or(usize::MAX);
        Ok(spare.min(self.available_memory()?).saturating_sub(self.memory))
    }

    /// An empty record of an experiment on the shared memory.
    pub(crate) fn experiment(&mut self, name: &str) -> Result<Experiment, LabError> {
        let arena = self.arena()?;
        let (len, huge) = (arena.len(), arena.huge_bytes());
        let notices = self.memory_notices(len, huge);
        Ok(Experiment { notices, ..Experiment::on(name, describe_memory(len, huge)) })
    }

    fn memory_notices(&self, len: usize, huge: Option<usize>) -> Vec<String> {
        let caches = self.caches.map(|caches| {
            format!(
                "caches of a CPU: L1d {}, L2 {}, last level {} shared by {} CPUs",
                Size(caches.l1d),
                Size(caches.l2),
                Size(caches.llc),
                caches.llc_shared_by
            )
        });
        let base_pages = huge.is_some_and(|huge| huge < len / 20 * 19).then(|| {
            format!(
                "most of the memory is on base pages, which cost address translations; \
                 `hugekit doctor` says why{}",
                if self.options.setup {
                    ""
                } else {
                    ", `--setup` (root) allows huge pages meanwhile"
                }
            )
        });
        caches.into_iter().chain(base_pages).collect()
    }

    /// Puts the machine's settings back.
    pub(crate) fn restore_settings(&mut self) -> Result<(), LabError> {
        self.settings.restore()
    }

    /// Notes on them for the reader.
    pub(crate) fn settings_notes(&mut self) -> Vec<String> {
        self.settings.notes()
    }
}

fn describe_memory(len: usize, huge: Option<usize>) -> String {
    let pages = match huge {
        Some(huge) => format!("{:.0} % of it on huge pages", huge as f64 * 100.0 / len as f64),
        None => "page size unknown".into(),
    };
    format!("{} of private anonymous memory, written once before, {pages}", Size(len))
}

/// The requested memory, or an error if less is available. By default 4 GiB for a full run and 2 GiB for a quick one.
/// If that is more than half of the available memory, 1 GiB or, if that is too much as well, that half.
fn memory_to_use(options: &Options, available: usize) -> Result<usize, LabError> {
    let half = available / 2 / (2 * MIB) * (2 * MIB);
    let wanted = if options.quick { 2 * GIB } else { 4 * GIB };
    let by_default = [wanted, GIB].into_iter().find(|&size| size <= half).unwrap_or(half);
    let asked = options.memory.map_or(by_default, |size| size.0);
    if asked < LEAST_MEMORY {
        return Err(LabError::MemoryTooSmall { asked: Size(asked), least: Size(LEAST_MEMORY) });
    }
    if asked > available {
        return Err(LabError::TooLittleMemory { asked: Size(asked), available: Size(available) });
    }
    Ok(asked)
}

/// A notice that a run has less memory than by default, with figures.
fn short_of_memory(options: &Options, memory: usize, available: usize) -> Option<String> {
    let wanted = if options.quick { 2 * GIB } else { 4 * GIB };
    (options.memory.is_none() && memory < wanted).then(|| {
        format!(
            "{} to measure on instead of {}: {} are available to this process, of which it takes half at \
             most; what does not fit is left out",
            Size(memory),
            Size(wanted),
            Size(available / MIB * MIB)
        )
    })
}

/// The largest of `most` and its halves that has room, unless that is less than `least`.
pub(crate) fn halved_to_fit(most: usize, least: usize, room: usize) -> Option<usize> {
    let halves = std::iter::successors(Some(most), |bytes| Some(bytes / 2));
    halves.take_while(|&bytes| bytes >= least).find(|&bytes| bytes <= room)
}

/// The reason why a workload is left out that needs more memory than a run has.
pub(crate) fn left_out(label: &str, needed: usize, has: usize) -> String {
    format!("{label} left out: it needs {} of memory, this run has {}", Size(needed), Size(has))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;
    use crate::measure::machine::memory::why_no_thp;

    fn to_use(quick: bool, memory: Option<usize>, available: usize) -> Result<usize, LabError> {
        let options = Options { quick, memory: memory.map(Size), ..Options::default() };
        memory_to_use(&options, available)
    }

    #[test]
    fn memory_follows_what_is_available() {
        assert_eq!(to_use(false, None, 22 * GIB).unwrap(), 4 * GIB);
        assert_eq!(to_use(true, None, 22 * GIB).unwrap(), 2 * GIB);
        assert_eq!(to_use(false, None, 4 * GIB).unwrap(), GIB);
        assert_eq!(to_use(false, None, GIB).unwrap(), GIB / 2);
    }

    #[test]
    fn more_than_is_available_is_an_error_with_both_figures() {
        let error = to_use(false, Some(64 * GIB), 22 * GIB).unwrap_err();
        assert_eq!(error.to_string(), "not enough memory: 64GiB requested, 22GiB available");
    }

    #[test]
    fn too_little_to_measure_on_is_an_error() {
        let error = to_use(false, Some(4096), 22 * GIB).unwrap_err();
        assert!(error.to_string().contains("at least 16MiB"), "{error}");
    }

    #[test]
    fn largest_half_that_has_room_is_chosen() {
        assert_eq!(halved_to_fit(GIB, 64 * MIB, 2 * GIB), Some(GIB));
        assert_eq!(halved_to_fit(GIB, 64 * MIB, GIB - 1), Some(GIB / 2));
        assert_eq!(halved_to_fit(GIB, 64 * MIB, 64 * MIB), Some(64 * MIB));
        assert_eq!(halved_to_fit(GIB, 64 * MIB, 64 * MIB - 1), None);
    }

    #[test]
    fn a_run_that_has_less_than_it_would_take_says_why_in_figures() {
        let note = |memory, available| {
            short_of_memory(&Options { memory, ..Options::default() }, 62 * MIB, available)
        };
        let said = note(None, 124 * MIB + 4096).unwrap();
        assert!(
            said.starts_with("62MiB to measure on instead of 4GiB: 124MiB are available"),
            "{said}"
        );
        assert_eq!(note(Some(Size(62 * MIB)), 124 * MIB), None, "asked for");
        assert_eq!(short_of_memory(&Options::default(), 4 * GIB, 9 * GIB), None);
    }

    #[test]
    fn transparent_huge_pages_of_another_size_are_none_of_ours() {
        for machine in hugekit_invented_machines::MACHINES {
            let files = machine.files().unwrap();
            let root = Root::at(files.path());
            let options = Options { setup: true, ..Options::default() };
            let mut bench = Bench::on(root, &options, &crate::Quiet).unwrap();
            let ours = machine.thp && machine.huge_page == 2 << 20;
            assert_eq!(bench.allow_thp().unwrap(), ours, "{}", machine.name);
            let why = why_no_thp(&Root::at(files.path()));
            let other = machine.thp && machine.huge_page != 2 << 20;
            assert_eq!(why == "they are of 512MiB here", other, "{}: {why}", machine.name);
            assert_eq!(why == "this kernel has none", !machine.thp, "{}: {why}", machine.name);
        }
    }

    /// A lab that holds the turn, with memory set apart, until another one waits for it.
    struct Holder {
        settings: RefCell<Option<Settings>>,
        meminfo: PathBuf,
    }

    impl Observer for Holder {
        fn begin(&self, stage: &str) {
            if stage.starts_with("waiting for process ") {
                std::fs::write(&self.meminfo, meminfo(8 << 20)).unwrap();
                self.settings.take();
            }
        }
    }

    fn meminfo(kib: usize) -> String {
        format!("MemTotal: 16777216 kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n")
    }

    #[test]
    fn memory_that_another_lab_has_set_apart_is_available_after_its_turn() {
        let files = hugekit_invented_machines::MACHINES[0].files().unwrap();
        let (root, meminfo_file) = (Root::at(files.path()), files.path().join("proc/meminfo"));
        let held = Settings::in_turn(&root, Duration::ZERO, &crate::Quiet).unwrap();
        std::fs::write(&meminfo_file, meminfo(1)).unwrap();
        let holder = Holder { settings: RefCell::new(Some(held)), meminfo: meminfo_file };
        let options = Options { setup: true, ..Options::default() };
        let bench = Bench::on(root, &options, &holder).unwrap();
        assert!(bench.memory > LEAST_MEMORY, "{}", bench.memory);
    }

    /// The memory that a run takes on every machine, with huge pages reserved for it and without.
    #[test]
    fn no_run_takes_more_memory_than_the_machine_has() {
        for (machine, quick) in
            hugekit_invented_machines::MACHINES.iter().flat_map(|m| [(m, true), (m, false)])
        {
            let files = machine.files().unwrap();
            let options = Options { quick, setup: true, ..Options::default() };
            let mut bench = Bench::on(Root::at(files.path()), &options, &crate::Quiet).unwrap();
            let name = machine.name;
            assert!(bench.memory as u64 <= machine.available() / 2, "{name}");
            assert_eq!(bench.llc() as u64, if machine.l1d > 0 { machine.llc } else { 0 }, "{name}");
            let reserved = bench.reserve_unwritten(Pages::Hugetlb2M, 1 << 40).unwrap();
            let free = machine.reserved.unwrap_or(0);
            assert!(reserved as u64 >= free.min(1), "{name}");
            let file = files.path().join("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
            let Ok(asked) = std::fs::read_to_string(&file) else {
                assert_eq!(machine.reserved, None, "{name}");
                continue;
            };
            let added = (asked.trim().parse::<u64>().unwrap() - free) * (2 * MIB) as u64;
            let spare = machine.available() - machine.memory / 8;
            assert!(
                added + bench.memory as u64 <= spare.max(bench.memory as u64),
                "{name}: {added}"
            );
            bench.restore_settings().unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), free.to_string(), "{name}");
        }
    }

    #[test]
    fn a_number_of_rounds_is_kept_to() {
        let options = Options { rounds: Some(7), ..Options::default() };
        let bench = Bench::new(&options, &crate::Quiet).unwrap();
        assert_eq!(bench.rounds(0.1, 3).plan, Plan::exactly(7));
        assert_eq!(bench.long_rounds(0.1, 3).plan, Plan::exactly(7));
    }
}
