//! Status numbers, and the error of the last failed call.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::io;
use std::ops::Range;

use engine::image::ImageError;
use engine::region::ForkError;
use engine::{
    ClearError, CopyError, ErrorKind, HeapShortage, PoolError, PopulateError, RegionError,
    SnapshotError, error_chain, system_error,
};
use hugekit_bulk::parallel::{Done, JobError};
use hugekit_delta::DeltaError;
use hugekit_warm::WarmError;

/// The result of a call. Every status except `HUGEKIT_STATUS_OK` is an error: no handle was made,
/// nothing was changed unless the function documents a change, and `hugekit_last_error` returns the
/// reason.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum hugekit_status {
    /// The call succeeded.
    Ok = 0,
    /// An argument is invalid, for example a null pointer, a range outside, or a wrong size of a
    /// structure.
    Invalid = 1,
    /// Memory, huge pages, addresses or mappings are not sufficient.
    NoMemory = 2,
    /// This process lacks a permission.
    NotPermitted = 3,
    /// This kernel, CPU, kind of memory or version of the library does not support the call.
    Unsupported = 4,
    /// Another part of this process is in conflict, for example another handler of SIGBUS or
    /// SIGSEGV.
    Conflict = 5,
    /// The work was cancelled. `hugekit_last_done` returns the bytes that are done.
    Cancelled = 6,
    /// The object belongs to the parent process; this process is a forked child.
    Forked = 7,
    /// The kernel refused a call for another reason. `hugekit_last_errno` returns the kernel's
    /// errno.
    System = 8,
    /// The snapshot is lost: writers changed more memory than the snapshot may hold, or the memory
    /// was unmapped or discarded.
    Lost = 9,
}

impl From<ErrorKind> for hugekit_status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::NoMemory => Self::NoMemory,
            ErrorKind::NotPermitted => Self::NotPermitted,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Cancelled => Self::Cancelled,
            ErrorKind::Forked => Self::Forked,
            ErrorKind::Lost => Self::Lost,
            _ => Self::System,
        }
    }
}

/// The reason why a call was refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: hugekit_status,
    /// `None` if the heap had no room for the reason.
    reason: Option<Reason>,
}

/// The answers of `hugekit_last_error` and its companions.
#[derive(Debug)]
struct Reason {
    message: String,
    remedy: Option<String>,
    errno: i32,
    done: Vec<Range<usize>>,
}

pub(crate) type Answer<T = ()> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn invalid(message: impl Display) -> Self {
        Self::new(hugekit_status::Invalid, &message)
    }

    pub(crate) fn unsupported(message: impl Display) -> Self {
        Self::new(hugekit_status::Unsupported, &message)
    }

    pub(crate) fn conflict(message: impl Display) -> Self {
        Self::new(hugekit_status::Conflict, &message)
    }

    fn new(status: hugekit_status, message: &dyn Display) -> Self {
        Self::because(status, || Reason {
            message: message.to_string(),
            remedy: None,
            errno: 0,
            done: Vec::new(),
        })
    }

    /// The reason allocates, so it is made only where the heap has room for it.
    fn because(status: hugekit_status, reason: impl FnOnce() -> Reason) -> Self {
        Self { status, reason: HeapShortage::check().ok().map(|()| reason()) }
    }

    fn of<E: Error + 'static>(
        kind: ErrorKind,
        error: &E,
        remedy: impl FnOnce(&E) -> Option<String>,
        done: Option<&Done>,
    ) -> Self {
        Self::because(kind.into(), || Reason {
            message: error_chain(error).to_string(),
            remedy: remedy(error),
            errno: system_error(error).unwrap_or(0),
            done: done.map(|done| done.ranges().to_vec()).unwrap_or_default(),
        })
    }
}

impl Refusal {
    /// With the name of the thing that it is about before its reason.
    pub(crate) fn about(mut self, name: impl Display) -> Self {
        if let Some(reason) = &mut self.reason {
            reason.message = format!("{name}: {}", reason.message);
        }
        self
    }
}

impl From<ClearError> for Refusal {
    fn from(error: ClearError) -> Self {
        Self::of(error.kind(), &error, |_| None, error.done())
    }
}

impl From<CopyError> for Refusal {
    fn from(error: CopyError) -> Self {
        Self::of(error.kind(), &error, |_| None, error.done())
    }
}

impl From<JobError<PopulateError>> for Refusal {
    fn from(error: JobError<PopulateError>) -> Self {
        Self::of(error.kind(), &error, |_| None, error.done())
    }
}

impl From<PoolError> for Refusal {
    fn from(error: PoolError) -> Self {
        Self::of(error.kind(), &error, PoolError::remedy, None)
    }
}

impl From<ImageError> for Refusal {
    fn from(error: ImageError) -> Self {
        Self::of(error.kind(), &error, ImageError::remedy, None)
    }
}

impl From<RegionError> for Refusal {
    fn from(error: RegionError) -> Self {
        Self::of(error.kind(), &error, |_| None, error.done())
    }
}

impl From<ForkError> for Refusal {
    fn from(error: ForkError) -> Self {
        Self::of(error.kind(), &error, ForkError::remedy, None)
    }
}

impl From<SnapshotError> for Refusal {
    fn from(error: SnapshotError) -> Self {
        Self::of(error.kind(), &error, SnapshotError::remedy, None)
    }
}

impl From<DeltaError> for Refusal {
    fn from(error: DeltaError) -> Self {
        match error {
            DeltaError::Io(error) => error.into(),
            other => Self::invalid(other),
        }
    }
}

impl From<WarmError> for Refusal {
    fn from(error: WarmError) -> Self {
        Self::of(error.kind(), &error, WarmError::remedy, None)
    }
}

impl From<HeapShortage> for Refusal {
    fn from(error: HeapShortage) -> Self {
        Self::of(ErrorKind::NoMemory, &error, |error| Some(error.remedy()), None)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::of(ErrorKind::Kernel, &error, |_| None, None)
    }
}

/// A part of the bytes of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hugekit_part {
    /// The start in bytes.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// The last refusal of the calling thread.
#[derive(Default)]
struct Last {
    message: CString,
    remedy: CString,
    errno: i32,
    done: Vec<hugekit_part>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
    /// True if the heap had no room for the last reason. Apart, because it needs none.
    static IS_UNTOLD: Cell<bool> = const { Cell::new(false) };
}

const UNTOLD: &CStr = c"the heap has no room for the reason: memory is short";

/// Returns the status for an answer; a refusal is kept for the caller that asks why.
#[inline]
pub(crate) fn answer(answer: Answer) -> hugekit_status {
    match answer {
        Ok(()) => hugekit_status::Ok,
        Err(refusal) => refuse(refusal),
    }
}

#[cold]
fn refuse(refusal: Refusal) -> hugekit_status {
    let Refusal { status, reason } = refusal;
    let reason = reason.filter(|_| HeapShortage::check().is_ok());
    IS_UNTOLD.set(reason.is_none());
    let Some(Reason { message, remedy, errno, done }) = reason else { return status };
    let (message, remedy) = (c_string(message), c_string(remedy.unwrap_or_default()));
    let done = done
        .into_iter()
        .map(|range| hugekit_part { offset: range.start, len: range.len() })
        .collect();
    let last = Last { message, remedy, errno, done };
    // A thread that is ending has no place to keep it any more.
    let _ = LAST.try_with(|place| place.replace(last));
    status
}

/// Text as C has it; a NUL in it, which could only come from a name of the caller's, is left out.
pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|&byte| byte != 0);
    CString::new(bytes).unwrap_or_default()
}

/// Returns the reason of this thread's last failed call, in English with figures. Returns the empty
/// string if no call has failed. If the heap had no room for the reason, the text says only that.
/// Never NULL. The text is valid until the thread's next failed call; successful calls do not
/// change it.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_last_error() -> *const c_char {
    if IS_UNTOLD.get() {
        return UNTOLD.as_ptr();
    }
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns a step by which an administrator or the program can prevent the error of
/// `hugekit_last_error`, for example a command for root. Returns the empty string if no step is
/// known. Never NULL. The text is valid as long as the text of `hugekit_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_last_remedy() -> *const c_char {
    if IS_UNTOLD.get() {
        return c"".as_ptr();
    }
    LAST.try_with(|last| last.borrow().remedy.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the kernel's `errno` of the call of `hugekit_last_error`. Returns 0 if the kernel was
/// not called, or if its errno is not known.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_last_errno() -> i32 {
    if IS_UNTOLD.get() {
        return 0;
    }
    LAST.try_with(|last| last.borrow().errno).unwrap_or(0)
}

/// Returns the parts that the call of `hugekit_last_error` had processed before it was cancelled or
/// before it failed. Offsets are relative to the bytes of the call, or to the region if the call
/// has a region. Parts ascend. The bytes between two parts are not done.
///
/// Writes the first `room` parts to `parts`, and returns the number of all parts. `parts` may be
/// NULL if `room` is 0. Returns 0 if nothing was done, or if the call does not clear, copy or
/// populate.
///
/// # Safety
/// `parts` is NULL, or `room` parts can be written to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_last_done(parts: *mut hugekit_part, room: usize) -> usize {
    let write = |last: &RefCell<Last>| {
        let done = &last.borrow().done;
        let count = if parts.is_null() { 0 } else { done.len().min(room) };
        // SAFETY: so many are there to be read, and the caller promises room for them.
        unsafe { parts.copy_from_nonoverlapping(done.as_ptr(), count) };
        done.len()
    };
    if IS_UNTOLD.get() {
        return 0;
    }
    LAST.try_with(write).unwrap_or(0)
}

/// Returns the name of a status, for example `"no memory"`. Returns `"unknown status"` for any
/// other number. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 10] = [
        c"ok",
        c"invalid argument",
        c"no memory",
        c"not permitted",
        c"unsupported",
        c"conflict",
        c"cancelled",
        c"forked",
        c"system error",
        c"lost",
    ];
    let name = usize::try_from(status).ok().and_then(|status| NAMES.get(status));
    name.unwrap_or(&c"unknown status").as_ptr()
}

/// Returns the version of the library, for example `"0.1.0"`. The text is static. `HUGEKIT_VERSION`
/// is the version of the header.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

/// Returns a handle, if there is one.
///
/// # Safety
/// Null, or a handle that is not freed before the reference ends.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, name: &str) -> Answer<&'a T> {
    // SAFETY: null, or a handle that is not freed before the reference ends: the contract of this function.
    unsafe { handle.as_ref() }.ok_or_else(|| Refusal::invalid(format_args!("{name} is NULL")))
}

/// Writes a new handle to `out`, if the heap has room for the handle.
///
/// # Safety
/// Null, or valid for writing a pointer.
pub(crate) unsafe fn give<T>(
    out: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Answer<T>,
) -> Answer {
    let make = || {
        HeapShortage::check()?;
        make()
    };
    // SAFETY: null, or valid for writing a pointer, as this function's caller promises.
    unsafe { give_checked(out, name, make) }
}

/// Like [`give`], where `make` looks for room by itself.
///
/// # Safety
/// As there.
pub(crate) unsafe fn give_checked<T>(
    out: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Answer<T>,
) -> Answer {
    if out.is_null() {
        return Err(Refusal::invalid(format_args!(
            "{name} is NULL: there is no place for the handle"
        )));
    }
    let made = make()?;
    // SAFETY: not null, so the caller promises that it can be written.
    unsafe { out.write(Box::into_raw(Box::new(made))) };
    Ok(())
}

/// Takes a handle back.
///
/// # Safety
/// Null, or a handle that [`give`] gave, which no thread uses any more.
pub(crate) unsafe fn take_handle<T>(handle: *mut T) -> Option<T> {
    // SAFETY: not null, so it came from the box of `give`, and no thread uses it any more.
    (!handle.is_null()).then(|| *unsafe { Box::from_raw(handle) })
}
