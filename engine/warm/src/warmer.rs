//! The warm-up: checks before anything is dropped, then one window after another, then the lock.

use std::fs::File;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{SendError, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use hugekit_bulk::Cancel;
use hugekit_bulk::parallel::Progress;
use hugekit_machine::available::{Available, MemoryBudget};
use hugekit_machine::process::Process;
use hugekit_machine::{Memory, Root, hugepages};
use hugekit_sys::page_cache::{self, CacheMapping};
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::thread::spawn_scoped;
use hugekit_sys::{HeapShortage, data_runs, headroom, input, memfd};
use rustix::io::Errno;
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

use crate::error::WarmError;
use crate::file_system;
use crate::options::{WarmMode, WarmOptions};
use crate::report::{LeftSmall, WarmReport, WhySmall};
use crate::units::{UNIT, Units};
use crate::users::FileUsers;
use crate::window::{Touch, UnitState, Window};

const CAP_IPC_LOCK: u32 = 14;

/// A warm-up of files: options and callbacks.
#[derive(Clone, Copy, Default)]
#[must_use = "a warmer does nothing until `run`"]
pub struct Warmer<'a> {
    options: WarmOptions,
    progress: Option<&'a Progress<'a>>,
    before_drop: Option<&'a dyn Fn(&FileUsers)>,
    cancel: Option<&'a Cancel>,
}

impl std::fmt::Debug for Warmer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Warmer").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The result of [`Warmer::run`].
#[derive(Debug)]
pub struct Warmed {
    /// The numbers of units, and the reason for units that are not huge.
    pub report: WarmReport,
    /// The lock that keeps the units in memory while it exists. `None` unless the mode is
    /// [`WarmMode::Keep`].
    pub lock: Option<CacheLock>,
}

/// A lock that keeps units of a file in memory, by shared read-only mappings. It copies nothing. A
/// drop unlocks the units; they stay in the page cache like other pages.
#[derive(Debug)]
pub struct CacheLock {
    #[expect(dead_code, reason = "mappings are unlocked when they are dropped")]
    mappings: Vec<CacheMapping>,
}

impl<'a> Warmer<'a> {
    /// Makes a warmer with these options.
    pub fn new(options: WarmOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Sets a callback that is called after each window. By default none. Its arguments are the
    /// bytes of the file that were checked or read again, and all bytes of the file.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Sets a callback that is called before pages are dropped from the cache, if other processes
    /// have mapped the file. Reads of these processes may then come from the disk. By default none.
    pub fn before_drop(mut self, before_drop: &'a dyn Fn(&FileUsers)) -> Self {
        self.before_drop = Some(before_drop);
        self
    }

    /// Sets the flag that stops the call after the current window. By default none.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Checks a regular file of at least 2 MiB, and puts its page cache on huge pages.
    ///
    /// Units that are huge already do not change. The other units are processed window by window: a
    /// window is dropped from the cache and read again in folios of 2 MiB. The content does not
    /// change, because dirty pages are written to the disk before the drop. Units without data are
    /// skipped unless [`fill_holes`](WarmOptions::fill_holes) is set.
    ///
    /// # Errors
    /// [`WarmError`]. If memory, or the limit of locked memory, is too small for the file, nothing
    /// was dropped. Units that stay on small pages are no error: [`WarmReport::left`] counts them.
    pub fn run(&self, path: &Path) -> Result<Warmed, WarmError> {
        headroom::check()?;
        let since = Instant::now();
        let file = input::open(path).map_err(WarmError::Open)?;
        let mut work = Work::new(self, &file)?;
        let mut states = work.look_at_all()?;
        if self.options.mode != WarmMode::Check {
            work.check_room(&states)?;
            work.make_all(&mut states)?;
        }
        let lock = match self.options.mode {
            WarmMode::Keep => Some(work.lock()?),
            WarmMode::Check | WarmMode::Make => None,
        };
        work.check_is_whole()?;
        check_has_name(&file, path)?;
        let mut report = work.report(&states);
        report.time = since.elapsed();
        Ok(Warmed { report, lock })
    }
}

/// Returns true if the page cache can hold the file on huge pages: the file system makes huge
/// pages, and there is memory for the whole file. The call tries this with the first unit that has
/// data: it drops these 2 MiB and reads them again, unless they are huge already.
///
/// # Errors
/// [`WarmError`]. If the unit cannot be dropped, or if the kernel finds no free block of 2 MiB, the
/// result is `false`, not an error.
pub fn can_be_warmed(path: &Path) -> Result<bool, WarmError> {
    headroom::check()?;
    let file = input::open(path).map_err(WarmError::Open)?;
    let warmer = Warmer::new(WarmOptions { window: NonZeroU32::MIN, ..WarmOptions::default() });
    let mut work = Work::new(&warmer, &file)?;
    let first = work.windows().swap_remove(0);
    let mut states = [UnitState::Unknown];
    if work.tells_cached {
        first.look(&work, &mut states)?;
    }
    work.check_room(&states)?;
    if states != [UnitState::Huge] {
        first.make(&mut work, &mut states, 0..1)?;
    }
    Ok(states == [UnitState::Huge])
}

/// The reason why none of a window's units is huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// Blocks of 2 MiB were free for all units.
    FileSystem,
    /// Too few blocks of 2 MiB were free, although the kernel was asked to compact memory.
    Fragmented,
}

/// The state of a call.
pub(crate) struct Work<'a> {
    warmer: &'a Warmer<'a>,
    pub(crate) file: &'a File,
    pub(crate) root: Root,
    pub(crate) map: PageMap,
    /// True if the file is in a tmpfs, so its pages exist only in memory.
    is_memory: bool,
    bytes: u64,
    units: Units,
    /// False if the kernel says of all pages that they are in the cache.
    pub(crate) tells_cached: bool,
    /// The budget of blocks that are made and freed at once.
    pub(crate) budget: MemoryBudget,
    /// False when the kernel has said that it cannot collapse pages of this file.
    pub(crate) can_collapse: bool,
    /// The reason why no further unit is tried: none of a whole window could be made huge.
    pub(crate) given_up: Option<GivenUp>,
    /// True if the kernel has collapsed some units of the file, and refused others.
    pub(crate) is_in_use: bool,
    /// True if pages were still cached after they were dropped.
    pub(crate) is_stuck: bool,
    /// True when all dirty pages were written to the disk.
    pub(crate) is_synced: bool,
    /// Other processes that mapped the file when pages were to be dropped.
    users: Option<FileUsers>,
    already_huge: u64,
}

impl<'a> Work<'a> {
    fn new(warmer: &'a Warmer<'a>, file: &'a File) -> Result<Self, WarmError> {
        let root = Root::default();
        check_machine(&root)?;
        // A file system that does not answer is none of memory.
        let memory = memfd::huge_page(file).unwrap_or(None);
        if matches!(memory, Some(Some(_))) {
            return Err(WarmError::Hugetlbfs);
        }
        let bytes = length(file)?;
        if bytes < UNIT {
            return Err(WarmError::TooSmall { bytes });
        }
        let units = Units::of(file, bytes, warmer.options.fill_holes)?;
        if units.count == 0 {
            return Err(WarmError::NoData { holes: units.holes });
        }
        let tells_cached =
            page_cache::tells_cached_pages(file, bytes).map_err(WarmError::of("mincore"))?;
        if !tells_cached && warmer.options.mode == WarmMode::Check {
            return Err(WarmError::NotTold);
        }
        let own = rustix::process::getpid().as_raw_pid();
        let budget = MemoryBudget::of(&root, &[own]);
        let map = PageMap::open().map_err(WarmError::of("open of /proc/self/pagemap"))?;
        Ok(Self {
            warmer,
            file,
            root,
            map,
            is_memory: memory.is_some(),
            bytes,
            units,
            tells_cached,
            budget,
            can_collapse: true,
            given_up: None,
            is_in_use: false,
            is_stuck: false,
            is_synced: false,
            users: None,
            already_huge: 0,
        })
    }

    pub(crate) fn options(&self) -> &WarmOptions {
        &self.warmer.options
    }

    pub(crate) fn check_cancel(&self, states: &[UnitState]) -> Result<(), WarmError> {
        match self.warmer.cancel {
            Some(cancel) if cancel.is_cancelled() => {
                let huge = states.iter().filter(|&&state| state == UnitState::Huge).count() as u64;
                Err(WarmError::Cancelled { huge, units: self.units.count })
            }
            _ => Ok(()),
        }
    }

    fn windows(&self) -> Vec<Window> {
        let mut at = 0;
        let windows = self.units.windows(self.options().window.get());
        windows
            .map(|(units, hole_behind)| {
                let first_state = at;
                at += (units.end - units.start) as usize;
                Window { units, hole_behind, first_state }
            })
            .collect()
    }

    /// A file that cannot be in memory is refused before all of it is looked at.
    fn look_at_all(&mut self) -> Result<Vec<UnitState>, WarmError> {
        let total = Memory::read(&self.root).map_or(u64::MAX, |memory| memory.total);
        if self.options().mode != WarmMode::Check && self.units.bytes() > total {
            return Err(self.no_room());
        }
        let count = usize::try_from(self.units.count).map_err(|_| HeapShortage)?;
        let mut states = Vec::new();
        states.try_reserve_exact(count).map_err(|_| HeapShortage)?;
        states.resize(count, UnitState::Unknown);
        if self.tells_cached {
            for window in self.windows() {
                self.check_cancel(&states)?;
                let own = window.states();
                window.look(self, &mut states[own])?;
            }
        }
        self.already_huge = huge(&states);
        Ok(states)
    }

    fn check_room(&self, states: &[UnitState]) -> Result<(), WarmError> {
        let is_kept = self.options().mode == WarmMode::Keep;
        if huge(states) == self.units.count && !is_kept {
            return Ok(());
        }
        let available = self.available();
        if available.bytes.saturating_sub(MemoryBudget::RESERVE) < self.units.bytes() {
            return Err(self.no_room());
        }
        if is_kept { self.check_lock_limit() } else { Ok(()) }
    }

    fn available(&self) -> Available {
        Available::read(&self.root, &[rustix::process::getpid().as_raw_pid()])
    }

    pub(crate) fn no_room(&self) -> WarmError {
        WarmError::NoMemory { needed: self.units.bytes(), available: self.available() }
    }

    fn check_lock_limit(&self) -> Result<(), WarmError> {
        let may_lock_all = Process::read(&self.root).is_ok_and(|process| {
            process.in_first_user_namespace && process.capabilities & (1 << CAP_IPC_LOCK) != 0
        });
        let needed = self.units.bytes();
        match getrlimit(Resource::Memlock).current {
            Some(limit) if limit < needed && !may_lock_all => {
                Err(WarmError::LockLimit { needed, limit })
            }
            _ => Ok(()),
        }
    }

    /// A thread touches a window while the next one is read from the disk.
    fn make_all(&mut self, states: &mut [UnitState]) -> Result<(), WarmError> {
        std::thread::scope(|scope| {
            let (touches, to_touch) = sync_channel::<Touch>(1);
            let touch_all = move || to_touch.into_iter().for_each(Touch::run);
            // If no thread can be started, nobody receives, and this one touches them.
            let toucher = spawn_scoped(scope, "hugekit-warm", touch_all);
            let made = self.make_each(states, &touches);
            drop(touches);
            // The scope would wait for its work, and not until the thread has gone.
            if let Ok(Err(panic)) = toucher.map(ScopedJoinHandle::join) {
                std::panic::resume_unwind(panic);
            }
            made
        })?;
        self.read_rest()
    }

    fn make_each(
        &mut self,
        states: &mut [UnitState],
        touches: &SyncSender<Touch>,
    ) -> Result<(), WarmError> {
        let (mut done, all) = (0, self.units.bytes() as usize);
        for window in self.windows() {
            self.check_cancel(states)?;
            let own = window.states();
            done += own.len() * UNIT as usize;
            let before = states[own.clone()].to_vec();
            window.make(self, states, own)?;
            if let Err(SendError(touch)) = touches.send(window.to_touch(self, &before)?) {
                touch.run();
            }
            if let Some(progress) = self.warmer.progress {
                progress(done, all);
            }
            if self.given_up.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Reads the bytes behind the last unit, unless they are a hole.
    fn read_rest(&self) -> Result<(), WarmError> {
        let start = self.bytes / UNIT * UNIT;
        let len = (self.bytes - start) as usize;
        if len == 0 || self.given_up.is_some() {
            return Ok(());
        }
        let data = data_runs::next(self.file, &(start..self.bytes));
        let data = data.map_err(|source| WarmError::Read { at: start, source })?;
        if data.is_none() && !self.options().fill_holes {
            return Ok(());
        }
        let len = len.next_multiple_of(page_size());
        let rest = self.map_bytes(start, len)?;
        rest.populate(0..len).map_err(|errno| self.unread(errno, start..self.bytes))
    }

    /// Tells once who has mapped the file before pages of it are dropped.
    pub(crate) fn note_users(&mut self, mapping: &CacheMapping) -> Result<(), WarmError> {
        if self.users.is_none() {
            let users = FileUsers::of_mapping_at(&self.root, mapping.address());
            let users = users
                .map_err(|source| WarmError::Kernel { call: "open of /proc/PID/maps", source })?;
            if let (Some(tell), false) = (self.warmer.before_drop, users.pids.is_empty()) {
                tell(&users);
            }
            self.users = Some(users);
        }
        Ok(())
    }

    pub(crate) fn map_bytes(&self, start: u64, len: usize) -> Result<CacheMapping, WarmError> {
        CacheMapping::new(self.file, start, len).map_err(WarmError::of("mmap"))
    }

    /// Returns the reason why bytes of the file could not be put into the page tables.
    pub(crate) fn unread(
        &self,
        errno: rustix::io::Errno,
        bytes: std::ops::Range<u64>,
    ) -> WarmError {
        use std::os::unix::fs::FileExt;
        if let Err(truncated) = self.check_is_whole() {
            return truncated;
        }
        if errno == rustix::io::Errno::NOMEM {
            return self.no_room();
        }
        let mut page = vec![0; page_size()];
        for at in bytes.step_by(page.len()) {
            if let Err(source) = self.file.read_at(&mut page, at) {
                return WarmError::Read { at, source };
            }
        }
        WarmError::of("process_vm_readv")(errno)
    }

    fn check_is_whole(&self) -> Result<(), WarmError> {
        let has = length(self.file)?;
        if has < self.bytes {
            return Err(WarmError::Truncated { had: self.bytes, has });
        }
        Ok(())
    }

    fn lock(&self) -> Result<CacheLock, WarmError> {
        let mut mappings = Vec::new();
        for run in &self.units.runs {
            let len = usize::try_from((run.end - run.start) * UNIT).map_err(|_| self.no_room())?;
            let mapping = self.map_bytes(run.start * UNIT, len)?;
            // A hole behind the run stays one.
            let _ = mapping.read_nothing_ahead(0..len);
            mapping.lock().map_err(|errno| self.unlocked(errno))?;
            mappings.push(mapping);
        }
        Ok(CacheLock { mappings })
    }

    fn unlocked(&self, errno: Errno) -> WarmError {
        if let Err(truncated) = self.check_is_whole() {
            return truncated;
        }
        let needed = self.units.bytes();
        match (errno, getrlimit(Resource::Memlock).current) {
            // Memory that is locked already counts, too.
            (Errno::NOMEM, Some(limit)) => WarmError::LockLimit { needed, limit },
            // A filter of system calls refuses by the same number.
            (Errno::PERM, Some(limit)) if limit < needed => WarmError::LockLimit { needed, limit },
            _ => WarmError::of("mlock")(errno),
        }
    }

    fn report(&self, states: &[UnitState]) -> WarmReport {
        let made_huge = huge(states) - self.already_huge;
        let left = self.units.count - huge(states);
        let left = NonZeroU64::new(left).map(|units| LeftSmall { units, why: self.why(states) });
        let (bytes, already_huge, holes) = (self.bytes, self.already_huge, self.units.holes);
        let time = std::time::Duration::ZERO;
        WarmReport { bytes, already_huge, made_huge, holes, left, time }
    }

    fn why(&self, states: &[UnitState]) -> WhySmall {
        let count = |wanted| states.iter().filter(|&&state| state == wanted).count() as u64;
        let (on_small_pages, not_in_memory) = (count(UnitState::Small), count(UnitState::Absent));
        let users = self.users.clone().unwrap_or_default();
        match self.options().mode {
            WarmMode::Check => WhySmall::NotMade { on_small_pages, not_in_memory },
            _ if self.given_up == Some(GivenUp::FileSystem)
                || (self.is_memory && !self.can_collapse) =>
            {
                WhySmall::FileSystem { name: file_system::name_of(&self.root, self.file) }
            }
            _ if self.is_stuck && !self.is_memory && !users.pids.is_empty() => {
                WhySmall::Mapped(users)
            }
            _ if self.is_in_use || (self.is_stuck && !self.is_memory) => WhySmall::Busy,
            _ => WhySmall::Fragmented { free: self.free_blocks() },
        }
    }

    /// Returns the number of bytes that are free in blocks of 2 MiB and more.
    pub(crate) fn free_blocks(&self) -> u64 {
        hugekit_machine::memory::free_blocks(&self.root, UNIT).unwrap_or(0)
    }
}

fn huge(states: &[UnitState]) -> u64 {
    states.iter().filter(|&&state| state == UnitState::Huge).count() as u64
}

fn check_machine(root: &Root) -> Result<(), WarmError> {
    // A size that cannot be read says nothing about the kernel.
    if hugepages::transparent_size(root).is_ok_and(|size| size != Some(UNIT)) {
        return Err(WarmError::NoHugePages);
    }
    match Process::read(root) {
        Ok(process) if !process.thp_allowed => Err(WarmError::Disabled),
        _ => Ok(()),
    }
}

fn length(file: &File) -> Result<u64, WarmError> {
    let found = file.metadata().map_err(|source| WarmError::Kernel { call: "fstat", source })?;
    Ok(found.len())
}

fn check_has_name(file: &File, path: &Path) -> Result<(), WarmError> {
    let own = file.metadata().map_err(|source| WarmError::Kernel { call: "fstat", source })?;
    let named = path.metadata();
    let is_same = |named: std::fs::Metadata| (named.dev(), named.ino()) == (own.dev(), own.ino());
    if named.is_ok_and(is_same) { Ok(()) } else { Err(WarmError::Replaced) }
}
