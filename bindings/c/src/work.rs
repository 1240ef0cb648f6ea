//! Clears, copies and populating.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use engine::{Cancel, ClearOptions, CopyOptions, HeapShortage, PopulateOptions, Reuse, Threads};
use hugekit_bulk::parallel::{Progress, Report};

use crate::status::{Answer, Refusal, answer, hugekit_status};
use crate::versioned::{self, CallerOptions, OutParameter, Versioned};

/// A callback that is called as `progress(done, total, context)`, in bytes, after every piece. The
/// thread that processed the piece calls it: the calling thread or a helper. Calls do not overlap,
/// and `done` ascends. Other threads wait for the call, so the callback should be short. It must
/// return normally: an exception that leaves it ends the process.
pub type hugekit_progress =
    Option<unsafe extern "C-unwind" fn(done: usize, total: usize, context: *mut c_void)>;

/// A flag that asks work to stop. Made by `hugekit_cancel_new`.
pub struct hugekit_cancel(pub(crate) Cancel);

/// Makes a flag that is not set. Returns NULL, which means no flag, if the heap has no room. Free
/// the flag with `hugekit_cancel_free` after all calls that use it have returned.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_cancel_new() -> *mut hugekit_cancel {
    let room = HeapShortage::check();
    room.map_or(ptr::null_mut(), |()| Box::into_raw(Box::new(hugekit_cancel(Cancel::new()))))
}

/// Sets the flag. A set flag cannot be unset. Operations that use the flag stop after their current
/// pieces. Any thread and any signal handler may call this. Does nothing for NULL.
///
/// # Safety
/// `cancel` is NULL, or a flag that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_cancel_set(cancel: *const hugekit_cancel) {
    // SAFETY: `cancel` is NULL or a flag that is not freed meanwhile.
    if let Some(hugekit_cancel(cancel)) = unsafe { cancel.as_ref() } {
        cancel.cancel();
    }
}

/// Frees the flag. Does nothing for NULL.
///
/// # Safety
/// `cancel` is NULL, or a flag that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_cancel_free(cancel: *mut hugekit_cancel) {
    // SAFETY: `cancel` is NULL or came from `hugekit_cancel_new`, and no thread uses it any more.
    let _ = unsafe { crate::status::take_handle(cancel) };
}

/// The next use of memory, as far as the caller knows.
#[repr(u32)]
#[expect(dead_code, reason = "C has the names, the library is given numbers")]
pub enum hugekit_reuse {
    /// The next use is not known. With a target, the same as `HUGEKIT_REUSE_TARGET`. Without a
    /// target, the length decides if the bytes stream past the cache.
    Unknown = 0,
    /// The bytes around the target are used next, or the bytes at the start if there is no target.
    /// The rest streams past the cache.
    Target = 1,
    /// All bytes are used soon. As many bytes as fit into the cache stay there, beginning with the
    /// bytes around the target.
    All = 2,
    /// No thread uses the bytes soon. All of them stream past the cache.
    None = 3,
}

/// `hugekit_options.target` is set. Without this flag there is no target.
pub const HUGEKIT_HAS_TARGET: u32 = 1;

/// Helpers run only on CPUs that no other thread needs (`SCHED_IDLE`).
pub const HUGEKIT_LOW_PRIORITY: u32 = 2;

/// Options of work on memory. Zero means the default everywhere: set `size` and the fields that you
/// need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_options {
    /// `sizeof(hugekit_options)`.
    pub size: usize,
    /// The number of threads, the calling thread included. 0: as many as are useful. The call uses
    /// no more threads than there are allowed CPUs, or pieces that are long enough for a thread.
    pub threads: usize,
    /// Called after every piece. NULL: no callback.
    pub progress: hugekit_progress,
    /// Passed to `progress` unchanged.
    pub context: *mut c_void,
    /// The flag that stops the work early, or NULL.
    pub cancel: *const hugekit_cancel,
    /// `HUGEKIT_HAS_TARGET`, `HUGEKIT_LOW_PRIORITY`, or both.
    pub flags: u32,
    /// A `hugekit_reuse`: the next use of the written memory. `hugekit_populate` does not use it.
    pub reuse: u32,
    /// A `hugekit_reuse`: the next use of the source. Only `hugekit_copy_with` uses it.
    pub source_reuse: u32,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
    /// The byte that is used next, as an offset in bytes from the start. `HUGEKIT_HAS_TARGET` must
    /// be set.
    pub target: usize,
}

// SAFETY: integers and pointers, the first of which is the size; the function is null or what the caller
// put there.
unsafe impl Versioned for hugekit_options {
    const NAME: &str = "hugekit_options";
    const FIRST: usize = offset_of!(Self, target) + size_of::<usize>();
}

impl CallerOptions for hugekit_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// A report of completed work.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_report {
    /// `sizeof(hugekit_report)`, set by the caller.
    pub size: usize,
    /// Bytes that are done: all bytes of the request.
    pub bytes: usize,
    /// Threads that shared the work, the calling thread included.
    pub threads: usize,
    /// Threads that processed at least one piece. The other threads started too late.
    pub took_part: usize,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_report {
    const NAME: &str = "hugekit_report";
    const FIRST: usize = offset_of!(Self, took_part) + size_of::<usize>();
}

/// Sets `len` bytes at `memory` to zero, on the calling thread, by the routine that is fastest for
/// this length. `memory` may be NULL if `len` is 0.
///
/// # Safety
/// The memory can be written. During the call no other thread accesses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_clear(memory: *mut c_void, len: usize) -> hugekit_status {
    if !is_range(memory, len) {
        return answer(Err(not_a_range("memory", memory, len)));
    }
    // SAFETY: `memory` is a range (checked above) that can be written and that no other thread accesses meanwhile.
    match unsafe { ClearOptions::new().run_raw(start_of(memory), len) } {
        Ok(_) => hugekit_status::Ok,
        Err(error) => answer(Err(error.into())),
    }
}

/// Sets `len` bytes at `memory` to zero, with options: next use, several threads, progress.
/// `options` and `report` may be NULL.
///
/// Fails with `HUGEKIT_STATUS_INVALID` for a target outside the memory or an unknown option; the
/// memory is unchanged then. Fails with `HUGEKIT_STATUS_CANCELLED` if the work is cancelled; some
/// bytes may be zero then.
///
/// # Safety
/// The memory can be written. During the call no other thread accesses it. `options` is NULL or
/// such a structure, and its flag is not freed during the call. `report` is NULL or such a
/// structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_clear_with(
    memory: *mut c_void,
    len: usize,
    options: *const hugekit_options,
    report: *mut hugekit_report,
) -> hugekit_status {
    // SAFETY: `memory` is a range (`check_range`) that can be written and that no other thread accesses meanwhile.
    // `options` and `report` are NULL or such structures, and the flag in `options` is not freed meanwhile.
    answer((|| unsafe {
        check_range("memory", memory, len)?;
        let (options, report) = (WorkOptions::read(options)?, OutParameter::new(report)?);
        let progress = options.progress();
        let mut clear = ClearOptions::new().threads(options.threads()).reuse(options.reuse()?);
        clear = clear.low_priority(options.is(HUGEKIT_LOW_PRIORITY));
        clear = options.target().into_iter().fold(clear, ClearOptions::target);
        clear = options.cancel().into_iter().fold(clear, ClearOptions::cancel);
        clear = as_progress(&progress).into_iter().fold(clear, ClearOptions::progress);
        report.fill(&clear.run_raw(start_of(memory), len)?.into());
        Ok(())
    })())
}

/// Copies `len` bytes from `from` to `to`, on the calling thread, by the routine that is fastest
/// for this length. `from` and `to` may be NULL if `len` is 0.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if source and destination overlap; nothing is written then.
///
/// # Safety
/// `from` can be read and `to` can be written. During the call no other thread writes to `from` or
/// `to`, or reads from `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_copy(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
) -> hugekit_status {
    // SAFETY: both are ranges (`check_range`): `from` can be read and `to` written, and no other thread writes to
    // either, or reads from `to`, meanwhile.
    answer((|| unsafe {
        check_range("to", to, len)?;
        check_range("from", from, len)?;
        CopyOptions::new().run_raw(start_of(to), start_of(from), len)?;
        Ok(())
    })())
}

/// Copies as `hugekit_copy` does, with options: next use of source and destination, several
/// threads, progress. `options` and `report` may be NULL. Fails as `hugekit_copy` and
/// `hugekit_clear_with` do.
///
/// # Safety
/// `from` can be read and `to` can be written. During the call no other thread writes to `from` or
/// `to`, or reads from `to`. `options` is NULL or such a structure, and its flag is not freed
/// during the call. `report` is NULL or such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_copy_with(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    options: *const hugekit_options,
    report: *mut hugekit_report,
) -> hugekit_status {
    // SAFETY: both are ranges (`check_range`): `from` can be read and `to` written, and no other thread writes to
    // either, or reads from `to`, meanwhile. `options` and `report` are NULL or such structures, and the flag in
    // `options` is not freed meanwhile.
    answer((|| unsafe {
        check_range("to", to, len)?;
        check_range("from", from, len)?;
        let (options, report) = (WorkOptions::read(options)?, OutParameter::new(report)?);
        let progress = options.progress();
        let mut copy = CopyOptions::new().threads(options.threads()).reuse(options.reuse()?);
        copy = copy.source_reuse(options.source_reuse()?);
        copy = copy.low_priority(options.is(HUGEKIT_LOW_PRIORITY));
        copy = options.target().into_iter().fold(copy, CopyOptions::target);
        copy = options.cancel().into_iter().fold(copy, CopyOptions::cancel);
        copy = as_progress(&progress).into_iter().fold(copy, CopyOptions::progress);
        report.fill(&copy.run_raw(start_of(to), start_of(from), len)?.into());
        Ok(())
    })())
}

/// Populates every page that contains a byte of the memory, writable, on several threads
/// (`MADV_POPULATE_WRITE`). The content of the memory does not change. Any address is allowed.
/// `options` and `report` may be NULL.
///
/// Fails with:
/// - `HUGEKIT_STATUS_INVALID` if a part of the memory is not mapped or cannot be written.
/// - `HUGEKIT_STATUS_NO_MEMORY` if memory is short.
/// - `HUGEKIT_STATUS_UNSUPPORTED` before Linux 5.14.
///
/// Pages that were populated before the error stay populated.
///
/// # Safety
/// `options` is NULL or such a structure, and its flag is not freed during the call. `report` is
/// NULL or such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_populate(
    memory: *mut c_void,
    len: usize,
    options: *const hugekit_options,
    report: *mut hugekit_report,
) -> hugekit_status {
    // SAFETY: `options` and `report` are NULL or such structures, and the flag in `options` is not freed meanwhile.
    // The memory is not accessed by this code, so any address will do.
    answer((|| unsafe {
        check_range("memory", memory, len)?;
        let (options, report) = (WorkOptions::read(options)?, OutParameter::new(report)?);
        let progress = options.progress();
        let mut populate = PopulateOptions::new().threads(options.threads());
        populate = populate.low_priority(options.is(HUGEKIT_LOW_PRIORITY));
        populate = options.cancel().into_iter().fold(populate, PopulateOptions::cancel);
        populate = as_progress(&progress).into_iter().fold(populate, PopulateOptions::progress);
        let start = start_of(memory).expose_provenance();
        report.fill(&populate.run_range(start..start.saturating_add(len))?.into());
        Ok(())
    })())
}

#[inline]
fn is_range<T>(start: *const T, len: usize) -> bool {
    let fits = len <= isize::MAX as usize && start.addr().checked_add(len).is_some();
    (!start.is_null() || len == 0) && fits
}

#[cold]
fn not_a_range<T>(name: &str, start: *const T, len: usize) -> Refusal {
    let start = start.addr();
    Refusal::invalid(format_args!("{name} cannot be {len} bytes at {start:#x}"))
}

pub(crate) fn check_range<T>(name: &str, start: *const T, len: usize) -> Answer {
    if is_range(start, len) { Ok(()) } else { Err(not_a_range(name, start, len)) }
}

/// Returns the start of memory, if it has any bytes.
fn start_of(memory: *const c_void) -> *mut u8 {
    if memory.is_null() { ptr::dangling_mut() } else { memory.cast_mut().cast() }
}

impl From<Report> for hugekit_report {
    fn from(report: Report) -> Self {
        let Report { bytes, threads, took_part, .. } = report;
        Self { size: 0, bytes, threads, took_part }
    }
}

/// Threads as C counts them.
pub(crate) fn threads(number: usize) -> Threads {
    match number {
        0 => Threads::Auto,
        number => Threads::Exactly(number),
    }
}

/// Returns the function to tell, as the library wants it. The context is the caller's, which says
/// that any thread may hand it to the function.
pub(crate) fn told(
    progress: hugekit_progress,
    context: *mut c_void,
) -> Option<impl Fn(usize, usize) + Sync> {
    struct Context(*mut c_void);
    // SAFETY: only ever handed to the caller's function, which is documented to be called by any thread.
    unsafe impl Sync for Context {}
    impl Context {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }
    let (progress, context) = (progress?, Context(context));
    // SAFETY: the caller gave this function to be called with this context.
    Some(move |done, total| unsafe { progress(done, total, context.get()) })
}

/// Returns the function to tell, as options of the library take it.
pub(crate) fn as_progress<F: Fn(usize, usize) + Sync>(told: &Option<F>) -> Option<&Progress<'_>> {
    told.as_ref().map(|tell| tell as _)
}

/// Options that make sense.
pub(crate) struct WorkOptions(hugekit_options);

impl WorkOptions {
    /// # Safety
    /// Null, or the caller's options.
    pub(crate) unsafe fn read(options: *const hugekit_options) -> Answer<Self> {
        // SAFETY: null, or the caller's options, of which as many bytes can be read as their first word says.
        let options = unsafe { versioned::read(options) }?;
        let unknown = options.flags & !(HUGEKIT_HAS_TARGET | HUGEKIT_LOW_PRIORITY);
        if unknown != 0 {
            return Err(Refusal::invalid(format_args!(
                "hugekit_options.flags has unknown bits {unknown:#x}"
            )));
        }
        Ok(Self(options))
    }

    pub(crate) fn threads(&self) -> Threads {
        threads(self.0.threads)
    }

    /// Returns the threads for work in which more than one seldom pays off.
    pub(crate) fn threads_or_one(&self) -> Threads {
        threads(self.0.threads.max(1))
    }

    pub(crate) fn progress(&self) -> Option<impl Fn(usize, usize) + Sync + use<>> {
        told(self.0.progress, self.0.context)
    }

    /// # Safety
    /// The flag outlives the returned reference.
    pub(crate) unsafe fn cancel<'a>(&self) -> Option<&'a Cancel> {
        // SAFETY: null, or a flag that outlives what is returned.
        unsafe { self.0.cancel.as_ref() }.map(|hugekit_cancel(cancel)| cancel)
    }

    fn is(&self, flag: u32) -> bool {
        self.0.flags & flag != 0
    }

    fn target(&self) -> Option<usize> {
        self.is(HUGEKIT_HAS_TARGET).then_some(self.0.target)
    }

    fn reuse(&self) -> Answer<Reuse> {
        reuse("reuse", self.0.reuse)
    }

    fn source_reuse(&self) -> Answer<Reuse> {
        reuse("source_reuse", self.0.source_reuse)
    }
}

fn reuse(name: &str, number: u32) -> Answer<Reuse> {
    match number {
        0 => Ok(Reuse::Unknown),
        1 => Ok(Reuse::Target),
        2 => Ok(Reuse::All),
        3 => Ok(Reuse::None),
        _ => Err(Refusal::invalid(format_args!(
            "hugekit_options.{name} is {number}, no hugekit_reuse"
        ))),
    }
}
