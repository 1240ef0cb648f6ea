//! Passes over this very process, and over others that cannot be tended. Where the kernel or the user may not collapse
//! memory of a process, there is nothing to test but that this is said.
#![allow(unsafe_code)]

mod unusual;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hugekit::HUGE_PAGE_BYTES;
use hugekit_tend::{
    Builder, Excluded, ForkCost, Hindrance, Outlook, PassReport, Target, TendError, TendOptions,
    TendRefusal, Tender, forked_from,
};
use hugekit_testing::processes::happens;
use hugekit_testing::racing::Stops;
use hugekit_testing::smaps::bytes_at;
use hugekit_testing::trials::skipped;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

/// Tests take turns: this process has one tender, and a child of one test, also one that has yet to start its program,
/// would hinder another.
static TURN: Mutex<()> = Mutex::new(());

fn in_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Small pages of this process.
struct Small {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: accessed by atomic operations alone.
unsafe impl Sync for Small {}

impl Small {
    /// So many huge pages' worth, of which so many small ones are touched in each.
    fn new(huge_pages: usize, touched: usize) -> Self {
        // One more, to begin at a multiple.
        let whole = (huge_pages + 1) * HUGE_PAGE_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, that no other code knows of.
        let start = unsafe {
            let start = mmap_anonymous(ptr::null_mut(), whole, access, MapFlags::PRIVATE).unwrap();
            let behind = start.addr().next_multiple_of(HUGE_PAGE_BYTES) - start.addr();
            if behind > 0 {
                munmap(start, behind).unwrap();
            }
            munmap(start.byte_add(behind + huge_pages * HUGE_PAGE_BYTES), HUGE_PAGE_BYTES - behind)
                .unwrap_or(());
            start.byte_add(behind).cast::<u8>()
        };
        let small = Self { start: NonNull::new(start).unwrap(), len: huge_pages * HUGE_PAGE_BYTES };
        // Small ones, whatever the setting is; the kernel may join them later. Without advice, the kernel's own thread
        // collapses no memory unless the setting is `always`.
        let is_always = is_always();
        let advise = |advice| {
            if is_always {
                small.advise(advice);
            }
        };
        advise(Advice::LinuxNoHugepage);
        for huge_page in 0..huge_pages {
            for page in 0..touched {
                let at = huge_page * HUGE_PAGE_BYTES + page * page_size();
                small.at(at).store((at as u64) ^ 0x5a5a, Ordering::Relaxed);
            }
        }
        advise(Advice::LinuxHugepage);
        small
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: none of these changes a byte.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) }.unwrap();
    }

    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len);
        // SAFETY: within the mapping, aligned, and accessed by atomic operations alone.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    fn addresses(&self) -> Range<usize> {
        self.start.addr().get()..self.start.addr().get() + self.len
    }

    /// Bytes on huge pages.
    fn huge(&self) -> u64 {
        bytes_at(&self.addresses(), "AnonHugePages")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: what was mapped, of which no reference is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Returns whether programs get huge pages that do not ask for them.
fn is_always() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| setting.contains("[always]"))
}

/// Small pages in a huge one.
fn pages() -> usize {
    HUGE_PAGE_BYTES / page_size()
}

fn own() -> i32 {
    getpid().as_raw_pid()
}

/// At full speed, with whatever memory is free.
fn options() -> TendOptions {
    let (bytes_per_second, keep_free, most_pressure) = (u64::MAX, 0, 101.0);
    TendOptions { bytes_per_second, keep_free, most_pressure, ..TendOptions::default() }
}

fn builder() -> Builder {
    Tender::builder().options(options())
}

/// Collapses ranges of which this share is populated, whatever that takes.
fn with_density(density: f64) -> Builder {
    Tender::builder().options(TendOptions { density, growth: 1.0, ..options() })
}

/// Fills no more holes than this.
fn with_growth(growth: f64) -> Builder {
    Tender::builder().options(TendOptions { growth, ..options() })
}

/// `None` where that is not permitted here.
fn tender(builder: Builder) -> Option<Tender> {
    match builder.process(own()).build() {
        Err(
            TendError::NotPermitted { .. }
            | TendError::Unsupported
            | TendError::OtherHugePages { .. },
        ) => None,
        tender => Some(tender.unwrap()),
    }
}

fn pass(tender: &mut Tender) -> PassReport {
    tender.pass(&NOT_STOPPED).unwrap().pop().unwrap()
}

#[test]
fn pass_puts_small_pages_on_huge_ones_and_changes_no_byte() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let memory = Small::new(8, pages());
    assert_eq!(memory.huge(), 0);
    let report = pass(&mut tender);
    if report.refused.is_empty() {
        assert_eq!(memory.huge(), memory.len as u64, "{report:?}");
    }
    assert!(report.collapsed >= memory.huge() / HUGE_PAGE_BYTES as u64, "{report:?}");
    for at in (0..memory.len).step_by(page_size()) {
        assert_eq!(memory.at(at).load(Ordering::Relaxed), (at as u64) ^ 0x5a5a);
    }
    let before = memory.huge();
    pass(&mut tender);
    assert_eq!(memory.huge(), before, "a second pass leaves huge pages as they are");
}

#[test]
fn range_with_holes_is_left_unless_the_settings_bear_it() {
    let _turn = in_turn();
    let memory = Small::new(4, pages() / 2);
    let Some(mut careful) = tender(with_growth(0.0)) else { return };
    let report = pass(&mut careful);
    assert_eq!(memory.huge(), 0, "{report:?}");
    assert!(report.sparse >= memory.len as u64 / 2, "{report:?}");
    drop(careful);
    let report = pass(&mut tender(with_density(0.4)).unwrap());
    if report.refused.is_empty() {
        assert_eq!(memory.huge(), memory.len as u64, "{report:?}");
        assert!(report.filled >= memory.len as u64 / 2, "{report:?}");
    }
}

#[test]
fn holes_are_filled_until_the_process_has_grown_by_its_share() {
    let _turn = in_turn();
    let (_whole, sparse) = (Small::new(16, pages()), Small::new(16, pages() * 3 / 4));
    let Some(mut tender) = tender(with_growth(0.1)) else { return };
    let first = pass(&mut tender);
    let share = first.before.all / 10;
    assert!(first.filled <= share && first.sparse > 0, "{first:?}");
    if first.refused.is_empty() {
        assert!(first.filled > share - HUGE_PAGE_BYTES as u64 / 4, "{first:?}");
        assert!(sparse.huge() > 0, "{first:?}");
    }
    let second = pass(&mut tender);
    assert!(first.filled + second.filled <= second.before.all / 10, "{first:?} {second:?}");
}

#[test]
fn memory_that_its_owner_gives_back_during_a_pass_is_not_filled() {
    let _turn = in_turn();
    if is_always() {
        return skipped("a touch makes a whole huge page where the setting is `always`");
    }
    let memory = Small::new(16, pages());
    let slowly = TendOptions { bytes_per_second: 20 << 20, ..options() };
    let Some(mut tender) = tender(Tender::builder().options(slowly)) else { return };
    thread::scope(|scope| {
        let pass = scope.spawn(|| pass(&mut tender));
        // All of it is planned by then.
        assert!(happens(|| memory.huge() > 0 || pass.is_finished()));
        memory.advise(Advice::LinuxDontNeed);
        for range in 0..16 {
            memory.at(range * HUGE_PAGE_BYTES).store(7, Ordering::Relaxed);
        }
        let report = pass.join().unwrap();
        // The kernel may collapse one at that moment.
        let resident = bytes_at(&memory.addresses(), "Rss");
        assert!(resident <= 2 * HUGE_PAGE_BYTES as u64, "{resident} {report:?}");
    });
}

#[test]
fn memory_that_its_owner_wants_otherwise_is_left_and_told() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let unforked = Small::new(2, pages());
    unforked.advise(Advice::LinuxDontFork);
    let small = Small::new(2, pages());
    small.advise(Advice::LinuxNoHugepage);
    let locked = Small::new(2, pages());
    // SAFETY: of a mapping that lives on.
    let is_locked = unsafe { mlock(locked.start.as_ptr().cast(), locked.len) }.is_ok();
    let report = pass(&mut tender);
    let told = |reason| {
        let bytes = report.excluded.iter().find(|(other, _)| *other == reason);
        bytes.map_or(0, |&(_, bytes)| bytes)
    };
    assert_eq!((unforked.huge(), small.huge()), (0, 0), "{report:?}");
    assert!(told(Excluded::LeftOutOfForks) >= unforked.len as u64, "{report:?}");
    assert!(told(Excluded::NoHugePages) >= small.len as u64, "{report:?}");
    if is_locked {
        assert_eq!(locked.huge(), 0);
        assert!(told(Excluded::Locked) >= locked.len as u64, "{report:?}");
    }
}

/// A forked child that does nothing until it is killed.
struct Forked(Pid);

impl Forked {
    fn new() -> Self {
        // SAFETY: the child calls only what is async-signal-safe.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                // SAFETY: `pause` is async-signal-safe and touches no memory.
                unsafe { libc::pause() };
            }
        }
        Self(Pid::from_raw(pid).unwrap())
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

#[test]
fn forked_child_holds_the_tender_back_until_it_has_ended() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let memory = Small::new(4, pages());
    let child = Forked::new();
    let report = pass(&mut tender);
    assert_eq!(report.hindrance, Some(Hindrance::Child { count: 1 }));
    assert_eq!((report.collapsed, memory.huge()), (0, 0));
    drop(child);
    let report = pass(&mut tender);
    assert!(report.hindrance.is_none() && report.collapsed > 0, "{report:?}");
}

/// Kernels refuse 2 MiB of which no page can be written without a fault (seen: 6.1, 6.8, 6.12; not 6.18).
#[test]
fn memory_that_was_not_written_since_a_fork_is_collapsed_too() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let memory = Small::new(8, pages());
    drop(Forked::new());
    let report = pass(&mut tender);
    if !report.refused.iter().any(|(why, _)| *why != TendRefusal::Unsuitable) {
        assert_eq!(memory.huge(), memory.len as u64, "{report:?}");
    }
    for at in (0..memory.len).step_by(page_size()) {
        assert_eq!(memory.at(at).load(Ordering::Relaxed), (at as u64) ^ 0x5a5a);
    }
}

#[test]
fn forked_child_is_not_tended_beside_its_parent_nor_is_what_they_share() {
    let _turn = in_turn();
    let memory = Small::new(4, pages());
    let child = Forked::new();
    let pid = child.0.as_raw_pid();
    let Some(mut of_parent) = tender(builder()) else { return };
    of_parent.add(pid).unwrap();
    assert_eq!(of_parent.pass(&NOT_STOPPED).unwrap().len(), 1, "the child is part of its parent");
    drop(of_parent);
    // Only with privileges may another process be tended than this one.
    let Ok(mut of_child) = builder().process(pid).build() else { return };
    let report = pass(&mut of_child);
    let shared = report.excluded.iter().find(|(why, _)| *why == Excluded::SharedSinceFork);
    assert!(shared.is_some_and(|&(_, bytes)| bytes >= memory.len as u64), "{report:?}");
    let all = procfs::process::Process::new(pid).unwrap().smaps().unwrap();
    let start = memory.addresses().start as u64;
    let own = all.iter().find(|map| map.address.0 <= start && start < map.address.1).unwrap();
    assert_eq!(own.extension.map["AnonHugePages"], 0);
}

#[test]
fn forked_child_has_a_parent_and_a_program_that_was_started_has_none() {
    let _turn = in_turn();
    let child = Forked::new();
    let pid = child.0.as_raw_pid();
    assert_eq!(forked_from(pid), Some(own()));
    if let Ok(outlook) = Outlook::of(pid) {
        assert_eq!(outlook.forked_from, Some(own()));
    }
    // What started the tests is another program.
    assert_eq!(forked_from(own()), None);
    drop(child);
    assert_eq!(forked_from(pid), None);
}

#[test]
fn forked_child_that_was_found_first_is_left_to_its_parent() {
    let _turn = in_turn();
    let child = Forked::new();
    let Ok(mut tender) = builder().process(child.0.as_raw_pid()).build() else { return };
    let own = std::process::id() as i32;
    tender.add(own).unwrap();
    let reports = tender.pass(&NOT_STOPPED).unwrap();
    assert_eq!(reports.iter().map(|report| report.pid).collect::<Vec<_>>(), [own]);
}

#[test]
fn child_that_runs_another_program_holds_no_tender_back() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let mut child = Other::new(Command::new("sleep").arg("60"));
    let memory = Small::new(2, pages());
    let report = pass(&mut tender);
    assert_eq!(report.hindrance, None);
    assert!(report.collapsed >= memory.huge() / HUGE_PAGE_BYTES as u64);
    let _ = child.0.kill();
}

#[test]
fn run_makes_a_pass_again_when_a_child_has_ended() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let (stop, mut told, mut child) = (AtomicBool::new(false), Vec::new(), None);
    tender.run(&stop, &mut |status| {
        match (status.passes, status.children) {
            (1, 0) if told.is_empty() => child = Some(Forked::new()),
            (_, 1) => child = None,
            (2.., 0) => stop.store(true, Ordering::Relaxed),
            _ => {}
        }
        told.push((status.passes, status.forks, status.children));
    });
    assert_eq!(told, [(1, 0, 0), (1, 1, 1), (1, 1, 0), (2, 1, 0)]);
}

/// Where a writer counts in each page, behind the page's first word.
fn word(writer: usize) -> usize {
    8 * (writer + 1)
}

#[test]
fn writes_beside_passes_are_all_there() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let (memory, stop) = (Small::new(8, pages()), AtomicBool::new(false));
    let counts: Vec<u64> = thread::scope(|scope| {
        let write = |writer: usize| {
            let (memory, stop) = (&memory, &stop);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let page = count as usize * 7919 % (memory.len / page_size());
                    memory.at(page * page_size() + word(writer)).fetch_add(1, Ordering::Relaxed);
                    count += 1;
                }
                count
            })
        };
        let writing = Stops(&stop);
        let writers: Vec<_> = (0..2).map(write).collect();
        for _ in 0..20 {
            pass(&mut tender);
            // Split again, by what the kernel splits for.
            let one = memory.start.as_ptr();
            // SAFETY: a page of the mapping; its rights are the same in the end, and writers wait for no fault of it
            // because it is readable and writable all the time.
            let _ = unsafe {
                madvise(one.add(page_size()).cast(), page_size(), Advice::LinuxNoHugepage)
            };
            memory.advise(Advice::LinuxHugepage);
        }
        drop(writing);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for (writer, count) in counts.into_iter().enumerate() {
        let of_page = |page| memory.at(page * page_size() + word(writer)).load(Ordering::Relaxed);
        assert_eq!((0..memory.len / page_size()).map(of_page).sum::<u64>(), count);
    }
}

/// A program that is started and killed.
struct Other(Child);

impl Other {
    fn new(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn process_that_cannot_be_tended_is_told_why() {
    let _turn = in_turn();
    let mut ended = Other::new(&mut Command::new("true"));
    ended.0.wait().unwrap();
    assert!(matches!(Target::open(ended.pid()), Err(TendError::Gone { .. })));
    assert!(matches!(Target::open(-1), Err(TendError::Gone { .. })));
    // One that has ended and that its parent has not waited for.
    let zombie = Other::new(&mut Command::new("true"));
    while procfs::process::Process::new(zombie.pid()).unwrap().stat().unwrap().state != 'Z' {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(Target::open(zombie.pid()), Err(TendError::Gone { .. })));
    let of_a_thread = thread::spawn(|| {
        let thread = rustix::thread::gettid().as_raw_pid();
        (thread, Target::open(thread))
    });
    let (thread, told) = of_a_thread.join().unwrap();
    assert!(matches!(told, Err(TendError::Thread { pid, of }) if pid == thread && of == own()));
    let kernels = procfs::process::Process::new(2).and_then(|two| two.stat());
    if kernels.is_ok_and(|stat| stat.comm == "kthreadd") {
        assert!(matches!(Target::open(2), Err(TendError::Kernel { pid: 2 })));
    }
}

#[test]
fn process_without_transparent_huge_pages_is_told_so() {
    let _turn = in_turn();
    let mut command = Command::new("sleep");
    // SAFETY: one system call, between fork and exec.
    unsafe {
        command.arg("60").pre_exec(|| {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
            Ok(())
        })
    };
    let other = Other::new(&mut command);
    match Target::open(other.pid()) {
        Err(
            TendError::NotPermitted { .. }
            | TendError::Unsupported
            | TendError::OtherHugePages { .. },
        ) => {}
        told => assert!(matches!(told, Err(TendError::SwitchedOff { .. })), "{told:?}"),
    }
}

#[test]
fn process_that_switches_huge_pages_off_later_is_told_so() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let memory = Small::new(2, pages());
    let disable = |disable: libc::c_ulong| {
        // SAFETY: the call changes no memory.
        let failed = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, 0, 0, 0) };
        assert_eq!(failed, 0);
    };
    disable(1);
    let report = pass(&mut tender);
    disable(0);
    assert_eq!((report.hindrance, memory.huge()), (Some(Hindrance::SwitchedOff), 0), "{report:?}");
    assert_eq!(pass(&mut tender).hindrance, None);
}

/// As Node.js does with its first thread.
#[test]
fn process_whose_first_thread_has_another_name_is_found_by_its_file() {
    let _turn = in_turn();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hugekit-found-by-its-file");
    std::fs::copy("/bin/sleep", &program).unwrap();
    // A thread has the name by which its program was started, and the file another one.
    let link = folder.path().join("MainThread");
    std::os::unix::fs::symlink(&program, &link).unwrap();
    let other = Other::new(Command::new(&link).arg("60"));
    let name = program.file_name().unwrap();
    let found = |name: &std::ffi::OsStr| hugekit_tend::named(&[name]);
    assert_eq!(found(name), [other.pid()]);
    assert!(found("MainThread".as_ref()).contains(&other.pid()));
}

#[test]
fn page_tables_that_are_nearly_empty_are_counted() {
    let _turn = in_turn();
    let spare = || hugekit_tend::Extent::of(own()).map(|extent| extent.spare_tables);
    let Ok(before) = spare() else { return };
    let memory = Small::new(64, pages());
    let full = spare().unwrap();
    assert!(full < before + 32 * page_size() as u64, "{before} {full}");
    // From Linux 6.14 on, a table goes with its pages if they are given back at once.
    for half in 0..2 * 64 {
        let half = memory.at(half * HUGE_PAGE_BYTES / 2).as_ptr();
        // SAFETY: within the mapping, of which no reference exists.
        unsafe { madvise(half.cast(), HUGE_PAGE_BYTES / 2, Advice::LinuxDontNeed) }.unwrap();
    }
    let empty = spare().unwrap();
    assert!(empty >= full + 16 * page_size() as u64, "{before} {full} {empty}");
}

#[test]
fn process_has_one_tender_at_a_time() {
    let _turn = in_turn();
    let other = Other::new(Command::new("sleep").arg("60"));
    match Target::open(other.pid()) {
        Err(
            TendError::NotPermitted { .. }
            | TendError::Unsupported
            | TendError::OtherHugePages { .. },
        ) => {}
        first => {
            let first = first.unwrap();
            assert!(matches!(Target::open(other.pid()), Err(TendError::Taken { .. })));
            drop(first);
            Target::open(other.pid()).unwrap();
        }
    }
}

#[test]
fn process_that_is_stopped_or_in_another_pid_namespace_is_tended_all_the_same() {
    let _turn = in_turn();
    let stopped = Other::new(Command::new("sleep").arg("60"));
    kill_process(Pid::from_child(&stopped.0), Signal::STOP).unwrap();
    let mut apart = Command::new("unshare");
    let mut apart = Other::new(apart.args(["--pid", "--fork", "--kill-child", "sleep", "60"]));
    let parent = apart.pid();
    let inner = || {
        let task = procfs::process::Process::new(parent).ok()?.task_main_thread().ok()?;
        i32::try_from(*task.children().ok()?.first()?).ok()
    };
    // Without the right to make a namespace, the program ends.
    let mut has_ended = || apart.0.try_wait().unwrap().is_some();
    let mut found = None;
    assert!(happens(|| {
        found = inner();
        found.is_some() || has_ended()
    }));
    for pid in [Some(stopped.pid()), found].into_iter().flatten() {
        let Ok(mut tender) = builder().process(pid).build() else { continue };
        let report = pass(&mut tender);
        assert!(report.hindrance.is_none() && report.after.all > 0, "{report:?}");
    }
}

#[test]
fn run_ends_when_the_process_does() {
    let _turn = in_turn();
    let mut other = Other::new(Command::new("sleep").arg("60"));
    let Ok(mut tender) = builder().process(other.pid()).build() else { return };
    tender.run(&NOT_STOPPED, &mut |_| {
        let _ = other.0.kill();
    });
    assert!(tender.is_empty());
}

#[test]
fn outlook_says_what_a_pass_does_then() {
    let _turn = in_turn();
    let whole = Small::new(8, pages());
    let sparse = Small::new(4, pages() / 4);
    let outlook = match Outlook::of(own()) {
        Err(
            TendError::NotPermitted { .. }
            | TendError::Unsupported
            | TendError::OtherHugePages { .. },
        ) => return,
        outlook => outlook.unwrap(),
    };
    assert_eq!((whole.huge(), outlook.is_tended), (0, false), "nothing is changed");
    assert!(outlook.sparse >= sparse.len as u64 / 4, "{outlook:?}");
    let gained = outlook.tended.huge - outlook.now.huge;
    assert!(gained >= whole.len as u64 && outlook.tended.all >= outlook.now.all, "{outlook:?}");
    let child = Forked::new();
    let hindrance = Outlook::of(own()).unwrap().hindrance;
    assert_eq!(hindrance, Some(Hindrance::Child { count: 1 }));
    drop(child);
    let mut tender = tender(builder()).unwrap();
    assert!(Outlook::of(own()).unwrap().is_tended);
    let report = pass(&mut tender);
    if report.refused.is_empty() {
        assert!(report.after.huge >= outlook.tended.huge, "{report:?} {outlook:?}");
    }
}

#[test]
fn tender_in_a_thread_of_its_own_works_until_it_is_dropped() {
    let _turn = in_turn();
    let Some(tender) = tender(builder()) else { return };
    let memory = Small::new(4, pages());
    let tending = tender.spawn().unwrap();
    while tending.said().is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    let said = tending.said().pop().unwrap();
    assert_eq!((said.pid, said.passes, tending.is_over()), (own(), 1, false));
    let report = said.last.unwrap();
    if report.refused.is_empty() && report.hindrance.is_none() {
        assert_eq!(memory.huge(), memory.len as u64, "{report:?}");
    }
    // A forked child has the handle and not the thread.
    // SAFETY: the child frees memory, and calls nothing else that is not async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(tending);
        // SAFETY: runs no destructor.
        unsafe { libc::_exit(0) };
    }
    let ended = waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap().1;
    assert_eq!(ended.exit_status(), Some(0));
    drop(tending);
    Target::open(own()).unwrap();
}

/// What the tender says of the first fork that it sees.
fn told_of_a_fork(builder: Builder, fork: &mut dyn FnMut()) -> Option<Option<Duration>> {
    let mut tender = builder.build().ok()?;
    let (stop, mut told) = (AtomicBool::new(false), None);
    tender.run(&stop, &mut |status| match status.forks {
        0 => fork(),
        _ => {
            told = Some(status.last_fork);
            stop.store(true, Ordering::Relaxed);
        }
    });
    told
}

/// Every fork takes a second.
const COST: ForkCost = ForkCost {
    process: Duration::from_secs(1),
    base_page: Duration::ZERO,
    huge_page: Duration::ZERO,
    spare_table: Duration::ZERO,
};

#[test]
fn fork_is_estimated_by_what_entries_cost() {
    let _turn = in_turn();
    for (builder, expected) in [
        (builder().fork_cost(COST), Some(COST.process)),
        // Without the cost, it is not known.
        (builder(), None),
    ] {
        let mut child = None;
        let told = told_of_a_fork(builder.process(own()), &mut || child = Some(Forked::new()));
        assert!(told.is_none_or(|told| told == expected), "{told:?}");
    }
}

#[test]
fn fork_that_ends_a_pass_is_estimated_too() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder().fork_cost(COST)) else { return };
    let _child = Forked::new();
    assert_eq!(pass(&mut tender).hindrance, Some(Hindrance::Child { count: 1 }));
    let (stop, mut told) = (AtomicBool::new(false), None);
    tender.run(&stop, &mut |status| {
        told = told.or(Some(status.last_fork));
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(told, Some(Some(COST.process)));
}

/// A real server, whose save takes a second.
struct Redis {
    server: Other,
    _folder: tempfile::TempDir,
    port: u16,
}

impl Redis {
    fn new() -> Option<(Self, i32)> {
        loop {
            let mut redis = Self::started()?;
            let has_ended = |redis: &mut Self| redis.server.0.try_wait().unwrap().is_some();
            assert!(happens(|| redis.said("PING\r\n") == "+PONG\r\n" || has_ended(&mut redis)));
            // Another program may have got the port before the server.
            if has_ended(&mut redis) {
                continue;
            }
            let set = |key| redis.said(&format!("SET {key} 1\r\n"));
            (0..20).for_each(|key| assert_eq!(set(key), "+OK\r\n"));
            let pid = redis.server.pid();
            return Some((redis, pid));
        }
    }

    fn started() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--rdb-key-save-delay", "50000", "--dir"]).arg(folder.path());
        let Ok(server) = command.stdout(Stdio::null()).stdin(Stdio::null()).spawn() else {
            skipped("no redis-server");
            return None;
        };
        Some(Self { server: Other(server), _folder: folder, port })
    }

    /// Its answer; nothing while it does not listen.
    fn said(&self, request: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return String::new();
        };
        stream.write_all(request.as_bytes()).unwrap();
        let mut said = [0; 100];
        let count = stream.read(&mut said).unwrap();
        String::from_utf8_lossy(&said[..count]).into_owned()
    }
}

#[test]
fn fork_of_a_server_that_saves_is_estimated_too() {
    let _turn = in_turn();
    let Some((redis, pid)) = Redis::new() else { return };
    let told = told_of_a_fork(builder().fork_cost(COST).process(pid), &mut || {
        redis.said("BGSAVE\r\n");
    });
    // It may be that it cannot be tended here.
    assert!(told.is_none_or(|told| told == Some(COST.process)), "{told:?}");
}
