//! Regions and their forks.
#![allow(unsafe_code)]

use engine::PopulateOptions;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsRawFd;

use engine::SharedRegion;
use engine::fault::FaultMode;
use engine::region::{ForkBuilder, PinnedRange, RegionBuilder};

use crate::pool::{clearing, hugekit_pool};
use crate::status::{self, Answer, Refusal, answer, give, handle, hugekit_status};
use crate::versioned::{self, CallerOptions, OutParameter, Versioned};
use crate::work::{
    WorkOptions, as_progress, hugekit_options, hugekit_progress, hugekit_report, threads, told,
};

/// Zeroed memory of a pool, committed and mapped. Made by `hugekit_region_new` and
/// `hugekit_region_fork`.
pub struct hugekit_region {
    pub(crate) region: SharedRegion,
}

/// The mode of fault handling, for memory that is cleared at its first access, forked or
/// snapshotted.
#[repr(u32)]
pub enum hugekit_fault_mode {
    /// For an option: threaded if this process may handle faults of system calls and of KVM,
    /// otherwise in place. In an answer: the library handles no faults of this memory.
    Default = 0,
    /// In place: the faulting thread handles the fault, in a handler of SIGBUS or SIGSEGV. A system
    /// call that writes to the memory fails with EFAULT unless the program called
    /// `hugekit_region_prepare_write` before. KVM guests exit at such a fault, so do not use this
    /// mode for guest memory.
    InPlace = 1,
    /// Threaded: threads of the library handle the faults. An access may wait longer; the program
    /// sees no other difference.
    Threaded = 2,
}

/// Options of a region. Zero means the default everywhere: set `size` and the fields that you need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_region_options {
    /// `sizeof(hugekit_region_options)`.
    pub size: usize,
    /// Threads that clear or populate at allocation. 0: the number of the pool.
    pub threads: usize,
    /// Called with the bytes of each extent that are cleared or populated. NULL: no callback.
    pub progress: hugekit_progress,
    /// Passed to `progress` unchanged.
    pub context: *mut c_void,
    /// A `hugekit_clearing`: the moment at which dirty memory is cleared.
    pub clearing: u32,
    /// A `hugekit_fault_mode` for memory that is cleared at its first access.
    pub fault_mode: u32,
    /// Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    pub handler_threads: usize,
}

// SAFETY: integers and pointers, the first of which is the size; the function is null or what the caller
// put there.
unsafe impl Versioned for hugekit_region_options {
    const NAME: &str = "hugekit_region_options";
    const FIRST: usize = offset_of!(Self, handler_threads) + size_of::<usize>();
}

impl CallerOptions for hugekit_region_options {
    fn reserved(&self) -> u32 {
        0
    }
}

/// Allocates `len` zeroed bytes of the pool, contiguous, rounded up to a multiple of the backing's
/// page, and stores the handle in `*region`. `options` may be NULL. Free the region with
/// `hugekit_region_free`.
///
/// Fails with:
/// - `HUGEKIT_STATUS_NO_MEMORY` if the pool has no contiguous free memory of this length. After a
///   success, accesses never fail for lack of memory.
/// - `HUGEKIT_STATUS_INVALID` for a length of 0, and `HUGEKIT_STATUS_FORKED` in a forked child.
/// - `HUGEKIT_STATUS_NOT_PERMITTED` if `HUGEKIT_CLEARING_ON_FAULT` is set and the process may not
///   handle faults.
///
/// After an error the pool is unchanged.
///
/// Children of fork(2) do not inherit the memory: an access in a child ends in SIGSEGV.
///
/// # Safety
/// `pool` is NULL or a pool. `region` can be written. `options` is NULL or such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_new(
    pool: *const hugekit_pool,
    len: usize,
    options: *const hugekit_region_options,
    region: *mut *mut hugekit_region,
) -> hugekit_status {
    // SAFETY: `region` is NULL or can be written, and `give` refuses NULL. `pool` and `options` are as `make` asks.
    answer(unsafe { give(region, "region", || make(pool, len, options)) })
}

/// # Safety
/// `pool` is NULL or a pool; `options` is NULL or such a structure.
unsafe fn make(
    pool: *const hugekit_pool,
    len: usize,
    options: *const hugekit_region_options,
) -> Answer<hugekit_region> {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile; `options` is NULL or such a structure.
    let (pool, options) = unsafe { (handle(pool, "pool")?, versioned::read(options)?) };
    let progress = told(options.progress, options.context);
    let mut builder = pool.pool.region_builder(len);
    if options.threads > 0 {
        builder = builder.threads(threads(options.threads));
    }
    if let Some(progress) = &progress {
        builder = builder.progress(progress);
    }
    if let Some(clearing) = clearing("hugekit_region_options", options.clearing)? {
        builder = builder.clearing(clearing);
    }
    let fault_mode =
        fault_mode("hugekit_region_options", options.fault_mode, options.handler_threads)?;
    builder = fault_mode.into_iter().fold(builder, RegionBuilder::fault_mode);
    Ok(hugekit_region { region: builder.build()?.share() })
}

pub(crate) fn fault_mode(name: &str, number: u32, threads: usize) -> Answer<Option<FaultMode>> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(FaultMode::InPlace)),
        2 => Ok(Some(FaultMode::Threaded { threads: threads.max(1) })),
        _ => Err(Refusal::invalid(format_args!(
            "{name}.fault_mode is {number}, no hugekit_fault_mode"
        ))),
    }
}

/// Returns the memory to the pool, which clears the memory before another region gets it. Does
/// nothing for NULL. In a forked child the call frees only the handle.
///
/// # Safety
/// `region` is NULL, or a region that no thread uses any more, neither by its handle nor by its
/// address or file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_free(region: *mut hugekit_region) {
    // SAFETY: `region` is NULL or a handle that the library gave, and no thread uses it any more.
    drop(unsafe { status::take_handle(region) });
}

/// Frees a region whose memory a system call or a device may still read or write, for example by
/// `vmsplice`, by `O_DIRECT`, or by a buffer registered with `io_uring`. The pages return to the
/// kernel, not to the pool. On an error no region ever gets the pages again, and the handle is
/// freed too.
///
/// While a range is pinned, the call fails with `HUGEKIT_STATUS_CONFLICT`, and the handle stays
/// valid.
///
/// # Safety
/// `region` is NULL, or a region that no thread of this process uses any more, neither by its
/// handle nor by its address or file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_retire(region: *mut hugekit_region) -> hugekit_status {
    if region.is_null() {
        return hugekit_status::Ok;
    }
    // SAFETY: not NULL, so a handle that came from a box; no thread of this process uses it any more.
    let mut handle = unsafe { Box::from_raw(region) };
    // SAFETY: no thread of this process uses the region any more, by its handle, its address or its file.
    match unsafe { handle.region.into_exclusive() } {
        Ok(region) => answer(region.retire().map_err(Refusal::from)),
        Err(pinned) => {
            handle.region = pinned;
            let _ = Box::into_raw(handle);
            answer(Err(Refusal::conflict("a range of the region is pinned: free its pins first")))
        }
    }
}

/// A range of a region that forks and snapshots copy at once. Made by `hugekit_region_pin`.
pub struct hugekit_pin {
    _range: PinnedRange,
}

/// Pins a range: every fork and snapshot of the region copies the range at once, and the region
/// keeps its pages, until `*pin` is freed. Pin memory that a device, an `io_uring` ring or a
/// running system call accesses by its pages, because write protection does not stop these
/// accesses. A fork that is made during such a write contains the written words or not.
///
/// The region may be freed before the pin: its memory exists until the pin is freed too. Fails
/// with:
/// - `HUGEKIT_STATUS_INVALID` for a range outside the region.
/// - `HUGEKIT_STATUS_NO_MEMORY` or `HUGEKIT_STATUS_SYSTEM` if bytes that are shared with earlier
///   forks cannot be copied now.
///
/// # Safety
/// `region` is NULL or a region. `pin` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_pin(
    region: *const hugekit_region,
    offset: usize,
    len: usize,
    pin: *mut *mut hugekit_pin,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile; `pin` is NULL or can be written.
    answer(unsafe {
        give(pin, "pin", || {
            let region = handle(region, "region")?;
            Ok(hugekit_pin { _range: region.region.pin(range(offset, len))? })
        })
    })
}

/// Frees the pin: later forks and snapshots share the range again. Does nothing for NULL. In a
/// forked child the call frees only the handle.
///
/// # Safety
/// `pin` is NULL, or a pin that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pin_free(pin: *mut hugekit_pin) {
    // SAFETY: `pin` is NULL or came from `hugekit_region_pin`, and no thread uses it any more.
    drop(unsafe { status::take_handle(pin) });
}

/// Returns the address of the region, a multiple of the page size of its backing. The address never
/// changes, and is valid for `hugekit_region_mapped_len` bytes until the region is freed. NULL for
/// NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_address(region: *const hugekit_region) -> *mut c_void {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile.
    let region = unsafe { region.as_ref() };
    region.map_or(std::ptr::null_mut(), |region| region.region.as_ptr().cast())
}

/// Returns the requested length of the region in bytes. 0 for NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_len(region: *const hugekit_region) -> usize {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile.
    unsafe { region.as_ref() }.map_or(0, |region| region.region.len())
}

/// Returns the number of mapped bytes: the length rounded up to a multiple of the backing's page. 0
/// for NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_mapped_len(region: *const hugekit_region) -> usize {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile.
    unsafe { region.as_ref() }.map_or(0, |region| region.region.mapped_len())
}

/// Returns a `hugekit_fault_mode`: the mode in which faults of the region are handled. 0 for NULL,
/// and if the library handles no faults of the region.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_serving(region: *const hugekit_region) -> u32 {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile.
    let serving = unsafe { region.as_ref() }.and_then(|region| region.region.serving());
    let number = serving.map(|serving| match serving.fault_mode {
        FaultMode::InPlace => hugekit_fault_mode::InPlace,
        _ => hugekit_fault_mode::Threaded,
    });
    number.unwrap_or(hugekit_fault_mode::Default) as u32
}

/// Stores the file of the pool, and the region's offset in the file in bytes. This is for a program
/// that maps the memory itself, for example a device process (vhost-user). KVM's memory slots need
/// only the address. Do not close the descriptor: it belongs to the pool. The call clears memory
/// that is not cleared yet. After the call, the region cannot be forked.
///
/// Fails with `HUGEKIT_STATUS_CONFLICT` for a region that was forked or is a fork.
///
/// # Safety
/// `region` is NULL or a region. `descriptor` and `offset` can be written. The descriptor gives
/// access to the whole pool. The program accesses only `hugekit_region_mapped_len` bytes from the
/// offset on, and only while the region exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_file(
    region: *const hugekit_region,
    descriptor: *mut c_int,
    offset: *mut u64,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile; the two places are NULL, which is refused, or
    // can be written. What the program does by the descriptor is what `SharedRegion::file` asks.
    answer((|| unsafe {
        let missing = || Refusal::invalid("descriptor or offset is NULL");
        let (descriptor, offset) = descriptor.as_mut().zip(offset.as_mut()).ok_or_else(missing)?;
        let (file, start) = handle(region, "region")?.region.file()?;
        (*descriptor, *offset) = (file.as_raw_fd(), start);
        Ok(())
    })())
}

/// Maps every page that contains a byte of the range now, so that later accesses cause no faults.
/// `options` may be NULL. Only its threads (0 means one thread here) and progress have an effect.
/// `report` may be NULL.
///
/// Fails with `HUGEKIT_STATUS_INVALID` for a range outside the region.
///
/// # Safety
/// `region` is NULL or a region. `options` and `report` are NULL or such structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_populate(
    region: *const hugekit_region,
    offset: usize,
    len: usize,
    options: *const hugekit_options,
    report: *mut hugekit_report,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile; `options` and `report` are NULL or such
    // structures.
    answer((|| unsafe {
        let (region, options) = (handle(region, "region")?, WorkOptions::read(options)?);
        let report = OutParameter::new(report)?;
        let progress = options.progress();
        let populate = PopulateOptions::new().threads(options.threads_or_one());
        let populate = as_progress(&progress).into_iter().fold(populate, PopulateOptions::progress);
        let done = region.region.populate_with(range(offset, len), &populate)?;
        report.fill(&done.into());
        Ok(())
    })())
}

/// Discards the bytes of a range. Afterwards the range reads as zeroes, and stays allocated and
/// mapped. Bytes that other threads write during the call may be discarded or not.
///
/// Fails with `HUGEKIT_STATUS_INVALID` unless the range consists of whole pages of the backing. The
/// range may also end at the region's end.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_release(
    region: *const hugekit_region,
    offset: usize,
    len: usize,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile.
    let region = unsafe { handle(region, "region") };
    answer(region.and_then(|region| Ok(region.region.release(range(offset, len))?)))
}

/// Makes a range writable without a fault. Call this before a system call or a device writes to the
/// range. Dirty bytes are cleared, and shared bytes are copied. The range stays prepared until it
/// is released, or until the region is forked or snapshotted. Only regions whose faults are handled
/// in place need this call.
///
/// Fails with `HUGEKIT_STATUS_INVALID` for a range outside the region.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_prepare_write(
    region: *const hugekit_region,
    offset: usize,
    len: usize,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile.
    let region = unsafe { handle(region, "region") };
    answer(region.and_then(|region| Ok(region.region.prepare_write(range(offset, len))?)))
}

/// Options of a fork. The options of a region's first fork apply to its later forks, and to forks
/// of forks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_fork_options {
    /// `sizeof(hugekit_fork_options)`.
    pub size: usize,
    /// The granule: the number of bytes that one copy contains, a power of two. On reserved huge
    /// pages, only a page of the backing is possible; on other backings, a base page up to 2 MiB.
    /// 0: a page of the backing, or 64 KiB on base pages.
    pub granule: usize,
    /// The highest number of mappings of the process that copies of the fork group may use. 0: half
    /// of `vm.max_map_count`, for all fork groups together.
    pub max_vmas: usize,
    /// A `hugekit_fault_mode` for the fork group.
    pub fault_mode: u32,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
    /// Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    pub handler_threads: usize,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_fork_options {
    const NAME: &str = "hugekit_fork_options";
    const FIRST: usize = offset_of!(Self, handler_threads) + size_of::<usize>();
}

impl CallerOptions for hugekit_fork_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// Makes a region with the same bytes, and stores its handle in `*fork`. Neither region sees later
/// writes to the other. `options` may be NULL.
///
/// The call write-protects the region and copies nothing. The first write to a granule, by the
/// region or by the fork, copies the granule; the parent keeps its pages. If another thread writes
/// to a granule during the call, the fork may contain this store or not. Region and fork may be
/// freed in any order.
///
/// The fork reserves as many bytes of the pool as the region has. Fails with:
/// - `HUGEKIT_STATUS_NO_MEMORY` if the pool does not have these bytes.
/// - `HUGEKIT_STATUS_NOT_PERMITTED` if the process may not handle faults.
/// - `HUGEKIT_STATUS_UNSUPPORTED` on pages of 1 GiB.
/// - `HUGEKIT_STATUS_CONFLICT` after `hugekit_region_file`.
///
/// # Safety
/// `region` is NULL or a region. `fork` can be written. `options` is NULL or such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_fork(
    region: *const hugekit_region,
    options: *const hugekit_fork_options,
    fork: *mut *mut hugekit_region,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile; `options` is NULL or such a structure; `fork`
    // is NULL or can be written.
    answer(unsafe {
        give(fork, "fork", || {
            let (region, options) = (handle(region, "region")?, versioned::read(options)?);
            let fork = fork_builder(&region.region, &options)?.build()?;
            Ok(hugekit_region { region: fork.share() })
        })
    })
}

pub(crate) fn fork_builder<'a>(
    region: &'a SharedRegion,
    options: &hugekit_fork_options,
) -> Answer<ForkBuilder<'a>> {
    let hugekit_fork_options { granule, max_vmas, handler_threads, .. } = *options;
    let mut builder = region.fork_builder();
    if granule > 0 {
        builder = builder.granule(granule);
    }
    if max_vmas > 0 {
        builder = builder.max_vmas(max_vmas);
    }
    if let Some(fault_mode) =
        fault_mode("hugekit_fork_options", options.fault_mode, handler_threads)?
    {
        builder = builder.fault_mode(fault_mode);
    }
    Ok(builder)
}

/// Stores in `*bytes` the number of bytes that the region shares with forks at this moment, in
/// whole granules. Later writes may have to copy up to this many bytes.
///
/// # Safety
/// `region` is NULL or a region. `bytes` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_shared_bytes(
    region: *const hugekit_region,
    bytes: *mut usize,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile; `bytes` is NULL or can be written.
    answer((|| unsafe {
        let place = bytes.as_mut().ok_or_else(|| Refusal::invalid("bytes is NULL"))?;
        *place = handle(region, "region")?.region.shared_bytes()?;
        Ok(())
    })())
}

/// Returns offsets; one that overflows lies outside of every region.
pub(crate) fn range(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len)
}
