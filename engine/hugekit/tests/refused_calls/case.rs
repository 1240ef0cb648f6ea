//! One case, in a process of its own: an operation of which a call is refused, again and again, with nothing lost
//! between.
#![allow(unsafe_code)]

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, ptr, thread};

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{ErrorKind, system_error};
use hugekit_sys::injection::{self, Call, Hit, Lasting, Plan};

use crate::{heap, mappings};

pub(crate) const FINE: &str = "fine";
pub(crate) const NOT_REACHED: &str = "not reached";
pub(crate) const NO_SUCH_ANSWER: &str = "no such answer";

/// Followed by what was refused for good when a writer was told so by a signal, all else being as it must.
pub(crate) const SIGNALLED: &str = "signalled: ";

/// Followed by an error: there were fewer pages than it takes, and nothing had been refused.
pub(crate) const SHORT: &str = "short of memory: ";

/// What an operation needs before anything is refused. Reserved pages may be with other processes at this moment: then
/// the case ends, and says so.
pub(crate) fn have<T, E: Error>(made: Result<T, E>, kind: impl FnOnce(&E) -> ErrorKind) -> T {
    made.unwrap_or_else(|error| match kind(&error) {
        ErrorKind::NoMemory => end_short(&error),
        _ => panic!("{error}"),
    })
}

fn end_short(error: &dyn Error) -> ! {
    end(format!("{SHORT}{error}").as_bytes())
}

/// What is to be tried, and on what: it arms its point once, and checks what it can.
#[derive(Clone, Copy)]
pub(crate) struct TriedOperation {
    pub(crate) run: fn(&Point, Backing, FaultMode),
    pub(crate) backing: Backing,
    pub(crate) fault_mode: FaultMode,
    /// Whether it ends only when memory that forks share has been written.
    pub(crate) writes_what_is_shared: bool,
    /// Instead of refusing calls: what the process is short of.
    pub(crate) shortage: Option<ShortOf>,
}

/// The thing that a process is short of, and how much of it is left.
#[derive(Clone, Copy)]
pub(crate) enum ShortOf {
    Mappings(usize),
    HeapBytes(usize),
}

/// A shortage while it lasts: lifted when dropped.
enum Lacking {
    Mappings { _until: mappings::MappingLimit },
    Heap { _until: heap::HeapLimit },
}

impl ShortOf {
    fn begin(self) -> Lacking {
        match self {
            Self::Mappings(left) => {
                Lacking::Mappings { _until: mappings::MappingLimit::of_mappings(left) }
            }
            Self::HeapBytes(left) => Lacking::Heap { _until: heap::HeapLimit::of_heap(left) },
        }
    }
}

/// Where an operation has its calls refused.
pub(crate) struct Point {
    plan: Cell<Option<Plan>>,
    hit: Cell<Option<Hit>>,
    failed: Cell<bool>,
    hits: RefCell<Vec<Hit>>,
    problems: RefCell<String>,
    shortage: Option<ShortOf>,
    /// What the first round did.
    trace: OnceCell<Vec<Call>>,
}

impl Point {
    /// Calls `operation`; one of its calls is refused.
    pub(crate) fn refuse<R>(&self, operation: impl FnOnce() -> R) -> R {
        injection::arm(self.plan.get().unwrap_or(NOTHING));
        let shortage = self.shortage.map(ShortOf::begin);
        let result = operation();
        drop(shortage);
        let hit = injection::disarm();
        self.trace.get_or_init(injection::trace);
        self.hit.set(hit.filter(|hit| hit.errno != 0));
        self.hits.borrow_mut().extend(hit);
        result
    }

    /// As [`unless_refused`](Self::unless_refused) for what may also be lost.
    pub(crate) fn unless_lost<T, E: Error + 'static>(
        &self,
        result: Result<T, E>,
        kind: impl FnOnce(&E) -> ErrorKind,
    ) -> Option<T> {
        let is_lost = self.hit.get().is_some() || injection::hit().is_some();
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let kind = kind(&error);
                if !(is_lost && kind == ErrorKind::Lost) {
                    self.failed(&error, kind);
                }
                None
            }
        }
    }

    /// Takes an error, which must say what was refused.
    pub(crate) fn failed(&self, error: &(dyn Error + 'static), kind: ErrorKind) {
        self.failed.set(true);
        if self.shortage.is_some() && kind == ErrorKind::NoMemory {
            return;
        }
        let refused = self.hit.get().or_else(|| injection::hit().filter(|hit| hit.errno != 0));
        let Some(hit) = refused else {
            if kind == ErrorKind::NoMemory {
                end_short(error);
            }
            return self.problem(format!("nothing was refused, but {kind:?}: {error}"));
        };
        if !fits(hit, kind) {
            let errno = system_error(error);
            self.problem(format!("is {kind:?} ({errno:?}): {error}"));
        }
    }

    /// The value, unless there is an error that says what was refused.
    pub(crate) fn unless_refused<T, E: Error + 'static>(
        &self,
        result: Result<T, E>,
        kind: impl FnOnce(&E) -> ErrorKind,
    ) -> Option<T> {
        result.map_err(|error| self.failed(&error, kind(&error))).ok()
    }

    /// What was answered in the kernel's place.
    pub(crate) fn refused(&self) -> Option<i32> {
        self.hit.get().map(|hit| hit.errno)
    }

    /// Whether all calls of a kind were refused.
    pub(crate) fn is_refused_for_good(&self, call: Call) -> bool {
        let lasts = self.plan.get().is_some_and(|plan| plan.lasting != Lasting::Once);
        lasts && self.hit.get().is_some_and(|hit| hit.call == call)
    }

    /// Whether every look at memory was answered as if it had failed.
    pub(crate) fn had_all_memory_fail(&self) -> bool {
        let failed =
            self.refused().is_some_and(|errno| [libc::EFAULT, libc::EHWPOISON].contains(&errno));
        failed && self.is_refused_for_good(Call::MadvisePopulate)
    }

    /// Whatever becomes of this process, these bytes stay this one.
    pub(crate) fn keeps(&self, bytes: &[u8], value: u8) {
        let facts = [bytes.as_ptr().addr(), bytes.len(), usize::from(value)];
        KEPT.iter().zip(facts).for_each(|(kept, fact)| kept.store(fact, Ordering::SeqCst));
    }

    pub(crate) fn check(&self, is_so: bool, what: &str) {
        if !is_so {
            self.problem(what.to_owned());
        }
    }

    pub(crate) fn problem(&self, what: String) {
        let mut problems = self.problems.borrow_mut();
        let _ = writeln!(problems, "{:?}: {what}", self.hit.get());
    }

    fn round(&self, operation: TriedOperation, plan: Option<Plan>) {
        self.plan.set(plan);
        self.hit.set(None);
        self.failed.set(false);
        if catch_unwind(AssertUnwindSafe(|| {
            (operation.run)(self, operation.backing, operation.fault_mode);
        }))
        .is_err()
        {
            injection::disarm();
            self.problem("panicked".to_owned());
        }
    }

    /// Some rounds, between which nothing may grow: what there is afterwards, and `expected` unless that is empty.
    fn leaks_nothing(
        &self,
        operation: TriedOperation,
        plan: Option<Plan>,
        expected: &str,
    ) -> String {
        let before = Census::take();
        (0..ROUNDS).for_each(|_| self.round(operation, plan));
        self.round(operation, None);
        let is_as_expected = |kinds: &str| expected.is_empty() || kinds == expected;
        let after = Census::settled(|now| {
            now.growth_since(&before).is_none() && is_as_expected(&now.kinds())
        });
        if let Some(difference) = after.growth_since(&before) {
            self.problem(format!("leaks: {difference}"));
        }
        let kinds = after.kinds();
        if !is_as_expected(&kinds) {
            self.problem(format!("has {kinds} at the end, not {expected}"));
        }
        kinds
    }
}

/// Whether an error's kind says what a refused call means.
fn fits(hit: Hit, kind: ErrorKind) -> bool {
    use ErrorKind::{Kernel, NoMemory, NotPermitted, Unsupported};
    match hit.errno {
        // The kernel says so of what is not registered any more, of another's, or of what cannot be.
        libc::ENOENT | libc::EBUSY if is_of_userfaultfd(hit.call) => true,
        libc::EPERM if is_of_userfaultfd(hit.call) => matches!(kind, NotPermitted | Unsupported),
        // What is not there in `/sys`, this kernel has not.
        // No broker listens there; or it has hung up.
        libc::ENOENT | libc::ECONNREFUSED if hit.call == Call::Connect => kind == Unsupported,
        libc::ECONNRESET if hit.call == Call::Recvmsg => kind == ErrorKind::Conflict,
        libc::ENOENT if hit.call == Call::Open => matches!(kind, Kernel | Unsupported),
        // For a mapping that may not be written.
        libc::EINVAL if hit.call == Call::MadvisePopulate => true,
        libc::EAGAIN | libc::EBUSY if hit.call == Call::MadviseCollapse => {
            matches!(kind, NoMemory | Unsupported)
        }
        libc::ENOMEM | libc::ENOSPC => kind == NoMemory,
        // Threads, locked memory, or memory that could not be moved at the moment.
        libc::EAGAIN if hit.call == Call::Clone => kind == NoMemory,
        libc::EPERM | libc::EACCES => kind == NotPermitted,
        libc::ENOSYS | libc::EINVAL | libc::ENODEV | libc::ENOTTY => {
            matches!(kind, Kernel | Unsupported)
        }
        libc::EFAULT => matches!(kind, Kernel | NoMemory | Unsupported),
        _ => matches!(kind, Kernel | NoMemory),
    }
}

fn is_of_userfaultfd(call: Call) -> bool {
    matches!(call, Call::UffdRegister | Call::UffdWriteprotect | Call::UffdContinue)
}

/// Only counts.
const NOTHING: Plan = Plan { nth: u32::MAX, choice: 0, lasting: Lasting::Once };

static PANICKED: AtomicBool = AtomicBool::new(false);

/// What [`Point::keeps`] was told: address, length, byte.
static KEPT: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Has the process end by a report when a writer is told by a signal that what he needs is refused for good.
fn report_signals() {
    let report = (report_signal as extern "C" fn(_)) as libc::sighandler_t;
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        // SAFETY: what the handler does is async-signal-safe.
        unsafe { libc::signal(signal, report) };
    }
}

extern "C" fn report_signal(signal: i32) {
    // SAFETY: a signal in here ends the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let [start, len, value] = KEPT.each_ref().map(|fact| fact.load(Ordering::SeqCst));
    let start = ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: memory that the operation that was interrupted still has, and can be read.
    let is_kept = |at| usize::from(unsafe { start.add(at).read_volatile() }) == value;
    let mut text = [0_u8; 64];
    let mut rest = &mut text[..];
    let _ = match injection::hit() {
        _ if !(0..len).all(is_kept) => write!(rest, "what is kept changed"),
        Some(hit) => write!(rest, "{SIGNALLED}{:?}", hit.call),
        None => write!(rest, "signal {signal} though nothing was refused"),
    };
    let left = rest.len();
    end(&text[..text.len() - left])
}

/// Ends the process, without destructors, as after `fork` it must.
fn end(text: &[u8]) -> ! {
    // SAFETY: writes a string to the file that standard output is.
    unsafe {
        libc::lseek(1, 0, libc::SEEK_SET);
        if !PANICKED.load(Ordering::SeqCst) {
            libc::ftruncate(1, 0);
        }
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(0)
    }
}

/// Runs a case and ends the process.
pub(crate) fn run(operation: TriedOperation, plan: Option<Plan>, expected: &str, said: i32) -> ! {
    // SAFETY: the process's own descriptors; its threads share one arena, so that the next thread needs no new one.
    unsafe {
        libc::dup2(said, 1);
        libc::dup2(said, 2);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    std::panic::set_hook(Box::new(|panic| {
        PANICKED.store(true, Ordering::SeqCst);
        eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
    }));
    let lasts = plan.is_some_and(|plan| plan.lasting != Lasting::Once);
    if lasts && operation.writes_what_is_shared {
        report_signals();
    }
    end(verdict(operation, plan, expected).as_bytes())
}

fn verdict(operation: TriedOperation, plan: Option<Plan>, expected: &str) -> String {
    let mut point = Point {
        plan: Cell::default(),
        hit: Cell::default(),
        failed: Cell::default(),
        hits: RefCell::default(),
        problems: RefCell::default(),
        shortage: operation.shortage,
        trace: OnceCell::new(),
    };
    point.round(operation, plan);
    if operation.shortage.is_some() {
        point.shortage = None;
        point.round(operation, None);
        let problems = point.problems.into_inner();
        return if problems.is_empty() { FINE.to_owned() } else { problems };
    }
    point.round(operation, None);
    point.round(operation, plan);
    point.round(operation, None);
    // What is refused for good may have been what gives back.
    let may_leak = plan.is_some_and(|plan| plan.lasting != Lasting::Once);
    let kinds =
        if may_leak { String::new() } else { point.leaks_nothing(operation, plan, expected) };
    if PANICKED.load(Ordering::SeqCst) {
        point.problem("a thread panicked".to_owned());
    }
    let problems = point.problems.into_inner();
    let hits = point.hits.into_inner();
    match plan {
        _ if !problems.is_empty() => problems,
        None => format!("{FINE}\n{kinds}\n{:?}", point.trace.get()),
        Some(_) if hits.is_empty() => NOT_REACHED.to_owned(),
        Some(_) if hits.iter().all(|hit| hit.errno == 0) => NO_SUCH_ANSWER.to_owned(),
        Some(_) => FINE.to_owned(),
    }
}

/// Rounds between which nothing may grow.
const ROUNDS: usize = 3;

/// What this process has.
#[derive(Debug)]
struct Census {
    /// By what they are.
    descriptors: BTreeMap<String, usize>,
    /// Mappings of pools, by name.
    files: BTreeMap<String, usize>,
    anonymous: usize,
    anonymous_bytes: usize,
    threads: BTreeMap<String, usize>,
}

impl Census {
    fn take() -> Self {
        let mut census = Self {
            descriptors: BTreeMap::new(),
            files: BTreeMap::new(),
            anonymous: 0,
            anonymous_bytes: 0,
            threads: BTreeMap::new(),
        };
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            // Those of this harness, of which other threads of the parent may have some open.
            if !target.starts_with("/proc/") && !target.starts_with("/memfd:said") {
                *census.descriptors.entry(target).or_default() += 1;
            }
        }
        for entry in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            // Helpers stay, and how many there are depends on who was busy; a young one has its starter's name.
            if name.starts_with("hugekit-") && name.trim() != "hugekit-helper" {
                *census.threads.entry(name.trim().to_owned()).or_default() += 1;
            }
        }
        fs::read_to_string("/proc/self/maps").unwrap().lines().for_each(|line| census.map(line));
        census
    }

    fn map(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let range = words.next().unwrap_or_default();
        match words.nth(4) {
            None => {
                let (start, end) = range.split_once('-').unwrap();
                let address = |text| usize::from_str_radix(text, 16).unwrap();
                self.anonymous += 1;
                self.anonymous_bytes += address(end) - address(start);
            }
            Some(name) if name.contains("hugekit") && name.starts_with("/memfd") => {
                *self.files.entry(name.to_owned()).or_default() += 1;
            }
            Some(_) => {}
        }
    }

    /// After what ends by itself has ended: once `is_settled`, or after a second.
    fn settled(is_settled: impl Fn(&Self) -> bool) -> Self {
        for _ in 0..200 {
            let now = Self::take();
            if is_settled(&now) {
                return now;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Self::take()
    }

    /// What grew: of mappings, by one or more a round, because stacks and the allocator's own come and go. What became
    /// less was about to end before.
    fn growth_since(&self, before: &Self) -> Option<String> {
        let named = [
            (&before.descriptors, &self.descriptors),
            (&before.files, &self.files),
            (&before.threads, &self.threads),
        ];
        let page = rustix::param::page_size();
        let has_grown = |before: &BTreeMap<String, usize>, now: &BTreeMap<String, usize>| {
            now.iter().any(|(name, count)| *count > before.get(name).copied().unwrap_or(0))
        };
        if named.iter().any(|(before, now)| has_grown(before, now)) {
            return Some(format!("{before:?}\n -> {self:?}"));
        }
        let (mappings, bytes) = (
            self.anonymous.saturating_sub(before.anonymous),
            self.anonymous_bytes.saturating_sub(before.anonymous_bytes),
        );
        (mappings >= ROUNDS && bytes >= ROUNDS * page)
            .then(|| format!("{mappings} anonymous mappings, {bytes} bytes"))
    }

    fn kinds(&self) -> String {
        format!("{:?} {:?} {:?}", self.descriptors, self.files, self.threads)
    }
}
