//! Memory that the signal handler reads and writes, whatever the thread it interrupts is doing there.
//!
//! One word of each page is the handler's: the *lane*. The handler adds one to it, and counts in memory of
//! this module how often it began and finished to do so. At any moment, the lane has at least its value at
//! the time of exposure plus the additions that were finished before the lane is read, and at most that
//! value plus the additions that were begun before the read has ended. Every other word is read, and must say where it
//! lies ([`crate::model`]).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::time::Duration;

use crate::model::{LANE, PAGE_WORDS, is_plausible};

/// Memories that are exposed at a time.
const SLOTS: usize = 64;

/// Pages of one memory that the handler knows: of longer memory, every second, third and so on.
const PAGES: usize = 512;

struct Slot {
    taken: AtomicBool,
    start: AtomicPtr<AtomicU64>,
    pages: AtomicUsize,
    stride: AtomicUsize,
    /// Handlers that are at it.
    users: AtomicUsize,
    begun: [AtomicU32; PAGES],
    done: [AtomicU32; PAGES],
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicPtr::new(ptr::null_mut()),
        pages: AtomicUsize::new(0),
        stride: AtomicUsize::new(1),
        users: AtomicUsize::new(0),
        begun: [const { AtomicU32::new(0) }; PAGES],
        done: [const { AtomicU32::new(0) }; PAGES],
    }
}; SLOTS];

/// The process whose memory the table names: children forked from it have none of that.
static OWNER: AtomicI32 = AtomicI32::new(0);
thread_local! {
    /// Before this time the thread touches nothing.
    static RESTS_UNTIL: Cell<u64> = const { Cell::new(0) };
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// The first word that no owner of its memory has written: its address, its value and its index.
static IMPLAUSIBLE: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Memory that the handler touches until this is dropped.
#[derive(Debug)]
pub struct Exposed(usize);

impl Exposed {
    /// Pages from an address on, which stay mapped meanwhile. `None` if as many memories are exposed already
    /// as the table has room for.
    ///
    /// # Safety
    /// Any thread's signal handler may read and write these pages until it is dropped.
    #[must_use]
    pub unsafe fn new(start: *mut AtomicU64, pages: usize) -> Option<Self> {
        let index = TABLE.iter().position(|slot| !slot.taken.swap(true, Ordering::SeqCst))?;
        let slot = &TABLE[index];
        for count in slot.begun.iter().chain(&slot.done) {
            count.store(0, Ordering::SeqCst);
        }
        slot.pages.store(pages, Ordering::SeqCst);
        slot.stride.store(pages.div_ceil(PAGES).max(1), Ordering::SeqCst);
        slot.start.store(start, Ordering::SeqCst);
        Some(Self(index))
    }

    /// The number of times that the handler has begun to write a page's lane, and the number of times that it has
    /// finished.
    #[must_use]
    pub fn begun(&self, page: usize) -> i64 {
        self.count(page, &TABLE[self.0].begun)
    }

    #[must_use]
    pub fn done(&self, page: usize) -> i64 {
        self.count(page, &TABLE[self.0].done)
    }

    fn count(&self, page: usize, counts: &[AtomicU32; PAGES]) -> i64 {
        let stride = TABLE[self.0].stride.load(Ordering::SeqCst);
        if page.is_multiple_of(stride) {
            i64::from(counts[page / stride].load(Ordering::SeqCst))
        } else {
            0
        }
    }

    /// Ends it; the counts stay as they are until it is dropped.
    pub fn withdraw(&self) {
        let slot = &TABLE[self.0];
        slot.start.store(ptr::null_mut(), Ordering::SeqCst);
        while slot.users.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        self.withdraw();
        TABLE[self.0].taken.store(false, Ordering::SeqCst);
    }
}

/// Has this process's handler of SIGUSR1 touch all exposed memory. It runs on the stack of the thread that it
/// interrupts: the alternate one is left to faults.
///
/// # Panics
/// If the kernel refuses a handler.
pub fn install() {
    // SAFETY: `on_signal` allocates nothing, takes no lock and keeps `errno`.
    unsafe {
        OWNER.store(libc::getpid(), Ordering::SeqCst);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// Has handlers touch nothing any more, permanently.
pub fn stop_all() {
    OWNER.store(0, Ordering::SeqCst);
}

/// Signals handled so far.
#[must_use]
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// The first word that the handler read and that was never written there.
#[must_use]
pub fn implausible() -> Option<String> {
    let [address, value, index] =
        [0, 1, 2].map(|part: usize| IMPLAUSIBLE[part].load(Ordering::SeqCst));
    (address != 0).then(|| {
        format!(
            "a handler read {value:#x} at {address:#x}, word {index}: not a value of its owner's"
        )
    })
}

/// Returns true if the table names this process's memory. Async-signal-safe.
pub(crate) fn is_owner() -> bool {
    // SAFETY: no precondition.
    unsafe { libc::getpid() == OWNER.load(Ordering::Relaxed) }
}

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the address of the calling thread's errno; the kernel's context.
    unsafe {
        let errno = *libc::__errno_location();
        if is_owner() {
            touch_unless_resting();
            crate::step::go_on(context);
        }
        *libc::__errno_location() = errno;
    }
}

/// A touch may wait for longer than the period of the storm, where many threads fault at once. The next signal is there
/// when it ends, and the thread would never do anything else. So it rests for as long as it has waited.
fn touch_unless_resting() {
    let begun = now();
    if begun < RESTS_UNTIL.get() {
        return;
    }
    touch(CALLS.fetch_add(1, Ordering::Relaxed));
    let end = now();
    let waited = Duration::from_nanos(end - begun);
    if waited > crate::storm::PERIOD {
        RESTS_UNTIL.set(end + (end - begun));
    }
}

/// Nanoseconds since the machine was started. Async-signal-safe.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Touches a page of the first exposed memory from some slot on.
fn touch(call: u64) {
    let random = (call ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    let first = random as usize % SLOTS;
    for slot in TABLE[first..].iter().chain(&TABLE[..first]) {
        if slot.start.load(Ordering::Relaxed).is_null() {
            continue;
        }
        slot.users.fetch_add(1, Ordering::SeqCst);
        let start = slot.start.load(Ordering::SeqCst);
        if !start.is_null() {
            touch_page(slot, start, (random >> 8) as usize);
        }
        slot.users.fetch_sub(1, Ordering::SeqCst);
        return;
    }
}

fn touch_page(slot: &Slot, start: *mut AtomicU64, random: usize) {
    let stride = slot.stride.load(Ordering::SeqCst);
    let known = slot.pages.load(Ordering::SeqCst).div_ceil(stride);
    if known == 0 {
        return;
    }
    let page = random % known;
    let word = page * stride * PAGE_WORDS;
    // SAFETY: `Exposed::new` was promised these pages, and the thread that withdraws them waits for this user.
    let (read, lane) = unsafe {
        let index = word + (random >> 20) % LANE;
        ((index, &*start.add(index)), &*start.add(word + LANE))
    };
    // Half of the touches write first: a first access that is a write is another path than a read.
    if random & 1 == 0 {
        look(read.0, read.1);
    }
    slot.begun[page].fetch_add(1, Ordering::SeqCst);
    lane.fetch_add(1, Ordering::SeqCst);
    slot.done[page].fetch_add(1, Ordering::SeqCst);
    look(read.0, read.1);
}

fn look(index: usize, word: &AtomicU64) {
    let value = word.load(Ordering::Relaxed);
    let is_first = || {
        let address = ptr::from_ref(word).addr() as u64;
        IMPLAUSIBLE[0].compare_exchange(0, address, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    if !is_plausible(value, index) && is_first() {
        IMPLAUSIBLE[1].store(value, Ordering::SeqCst);
        IMPLAUSIBLE[2].store(index as u64, Ordering::SeqCst);
    }
}
