//! The plan of refused calls: the part of fault injection that a test sees.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use rustix::io::{self, Errno};

use super::Call;

/// The call to refuse, and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of calls of all threads that pass before it.
    pub nth: u32,
    /// The index of the answer among the answers of the call.
    pub choice: usize,
    /// The duration of the refusal.
    pub lasting: Lasting,
}

/// The duration of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Lasting {
    /// A single call.
    Once,
    /// The call, and all other calls of its kind, until the plan is disarmed.
    Kind,
    /// The call, and all ioctls if it is an ioctl, with `EPERM`, as a system-call filter would
    /// refuse them.
    Filter,
}

/// A refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The call.
    pub call: Call,
    /// The returned error; 0 if the call has fewer errors than the index, so that it passed.
    pub errno: i32,
}

static ARMED: AtomicBool = AtomicBool::new(false);
static LEFT: AtomicU32 = AtomicU32::new(0);
static CHOICE: AtomicU32 = AtomicU32::new(0);
static LASTING: AtomicU8 = AtomicU8::new(0);
/// The refused call: its number plus one, and its answer.
static REFUSED: AtomicU8 = AtomicU8::new(0);
static ERRNO: AtomicI32 = AtomicI32::new(0);

/// A text by which a binary with this code is recognized.
#[used]
static MARK: &[u8; 36] = b"hugekit: system calls may be refused";

/// The calls since the plan was armed. Only the first ones are kept.
static TRACE: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
static TRACED: AtomicUsize = AtomicUsize::new(0);

/// Returns the calls of all threads since a plan was last armed.
#[must_use]
pub fn trace() -> Vec<Call> {
    let made = TRACED.load(Ordering::SeqCst);
    let calls = TRACE.iter().take(made);
    calls.filter_map(|call| Call::numbered(call.load(Ordering::SeqCst))).collect()
}

/// Arms a plan: from now on, calls are counted and refused. Only one plan is armed at a time.
pub fn arm(plan: Plan) {
    REFUSED.store(0, Ordering::SeqCst);
    ERRNO.store(0, Ordering::SeqCst);
    LEFT.store(plan.nth, Ordering::SeqCst);
    CHOICE.store(plan.choice as u32, Ordering::SeqCst);
    LASTING.store(plan.lasting as u8, Ordering::SeqCst);
    TRACED.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
}

/// Disarms the plan: all calls pass again. Returns the refused call.
pub fn disarm() -> Option<Hit> {
    ARMED.store(false, Ordering::SeqCst);
    hit()
}

/// Returns the calls that were refused so far.
#[must_use]
pub fn hit() -> Option<Hit> {
    let call = Call::numbered(REFUSED.load(Ordering::SeqCst).checked_sub(1)?)?;
    Some(Hit { call, errno: ERRNO.load(Ordering::SeqCst) })
}

pub fn pass(call: Call) -> io::Result<()> {
    if !ARMED.load(Ordering::SeqCst) {
        return Ok(());
    }
    if let Some(place) = TRACE.get(TRACED.fetch_add(1, Ordering::SeqCst)) {
        place.store(call as u8, Ordering::SeqCst);
    }
    match Call::numbered(REFUSED.load(Ordering::SeqCst).wrapping_sub(1)) {
        Some(refused) => again(refused, call),
        None => first(call),
    }
}

/// Refuses the call if the plan names it.
fn first(call: Call) -> io::Result<()> {
    let filter = LASTING.load(Ordering::SeqCst) == Lasting::Filter as u8;
    let answers = if filter { &[Errno::PERM] } else { call.answers() };
    let left = LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    let is_mine = left.is_err()
        && REFUSED.compare_exchange(0, call as u8 + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let lasts = LASTING.load(Ordering::SeqCst) != Lasting::Once as u8;
    // These mean that it will work when it is tried again, or that nothing needs to be done; no kernel says so for
    // ever.
    let passes_by = |errno: Errno| {
        let is_ioctls = matches!(errno, Errno::AGAIN | Errno::EXIST | Errno::NOENT);
        errno == Errno::INTR || is_ioctls && call.is_ioctl()
    };
    let mut fitting = answers.iter().copied().filter(|&errno| !(lasts && passes_by(errno)));
    match fitting.nth(CHOICE.load(Ordering::SeqCst) as usize) {
        Some(errno) if is_mine => {
            ERRNO.store(errno.raw_os_error(), Ordering::SeqCst);
            Err(errno)
        }
        _ => Ok(()),
    }
}

/// Refuses the call if the refusal of another call also applies to it.
fn again(refused: Call, call: Call) -> io::Result<()> {
    let lasting = LASTING.load(Ordering::SeqCst);
    let is_ioctl = lasting == Lasting::Filter as u8 && refused.is_ioctl() && call.is_ioctl();
    match ERRNO.load(Ordering::SeqCst) {
        errno if errno != 0 && lasting != Lasting::Once as u8 && (refused == call || is_ioctl) => {
            Err(Errno::from_raw_os_error(errno))
        }
        _ => Ok(()),
    }
}

impl Call {
    fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
