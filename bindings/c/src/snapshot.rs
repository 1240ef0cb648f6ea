//! Snapshots.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::FromRawFd;
use std::ptr::slice_from_raw_parts;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use engine::fault::FaultMode;
use engine::snapshot::{Granule, Reserve, SnapshotReader as Reader, SnapshotStats, View};
use engine::{HeapShortage, Snapshot};

use crate::region::{
    fault_mode, fork_builder, hugekit_fault_mode, hugekit_fork_options, hugekit_region, range,
};
use crate::status::{self, Answer, Refusal, answer, give, handle, hugekit_status};
use crate::versioned::{self, CallerOptions, OutParameter, Versioned};
use crate::work::{WorkOptions, as_progress, check_range, hugekit_options};

/// The bytes of memory at one moment, while threads continue to write. Made by
/// `hugekit_snapshot_new` and `hugekit_region_snapshot`.
pub struct hugekit_snapshot(RwLock<SnapshotState>);

enum SnapshotState {
    /// The snapshot, which its views share.
    Open(Arc<Snapshot>),
    /// The costs of the snapshot when it ended.
    Ended(SnapshotStats),
}

impl hugekit_snapshot {
    fn new(snapshot: Snapshot) -> Self {
        Self(RwLock::new(SnapshotState::Open(Arc::new(snapshot))))
    }

    fn state(&self) -> RwLockReadGuard<'_, SnapshotState> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, ask: impl FnOnce(&Arc<Snapshot>) -> Answer<T>) -> Answer<T> {
        match &*self.state() {
            SnapshotState::Open(snapshot) => ask(snapshot),
            SnapshotState::Ended(_) => Err(ended()),
        }
    }

    /// Ends it: readers that are at it finish first, and views are in the way.
    fn end(&self) -> Answer<Snapshot> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let stats = match &*state {
            SnapshotState::Open(snapshot) => snapshot.stats(),
            SnapshotState::Ended(_) => return Err(ended()),
        };
        match std::mem::replace(&mut *state, SnapshotState::Ended(stats)) {
            SnapshotState::Open(snapshot) => Arc::try_unwrap(snapshot).map_err(|viewed| {
                *state = SnapshotState::Open(viewed);
                Refusal::conflict("the snapshot has a view: free that first")
            }),
            SnapshotState::Ended(_) => Err(ended()),
        }
    }

    fn keep(&self, stats: SnapshotStats) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = SnapshotState::Ended(stats);
    }
}

fn ended() -> Refusal {
    Refusal::invalid("the snapshot has ended: it was written or copied before")
}

/// The granule: the number of bytes that the first write to a granule copies.
#[repr(u32)]
#[expect(dead_code, reason = "C has the names, the library is given numbers")]
pub enum hugekit_granule {
    /// 2 MiB if some of the memory is on transparent huge pages, otherwise 64 KiB.
    Default = 0,
    /// 2 MiB. Huge pages stay whole.
    Huge = 1,
    /// 64 KiB. A write waits less. Huge pages are split, so writers later have more faults and TLB
    /// misses.
    Small = 2,
}

/// A low-priority thread also copies granules aside. Writers then have fewer faults, but some of
/// these copies may be unnecessary.
pub const HUGEKIT_SNAPSHOT_IN_BACKGROUND: u32 = 1;

/// Options of a snapshot. Zero means the default everywhere: set `size` and the fields that you
/// need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_snapshot_options {
    /// `sizeof(hugekit_snapshot_options)`.
    pub size: usize,
    /// A `hugekit_fault_mode` for writers. Snapshots of the same memory must have the same mode.
    pub fault_mode: u32,
    /// A `hugekit_granule`: the bytes that one write copies.
    pub granule: u32,
    /// Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    pub handler_threads: usize,
    /// The highest number of bytes of copies that the snapshot may hold at a time, in whole
    /// granules. If writers need more, the writers continue, the snapshot is lost, and
    /// `hugekit_last_remedy` names a value that works.
    ///
    /// 0: the length of the memory, so writers never need more. If less memory is available when
    /// the snapshot is taken, on the machine or in the control group, the limit is the available
    /// memory, but at least 64 MiB. The limit is never lower than the length of `reserve`.
    pub max_cow_bytes: usize,
    /// Bytes for copies that are populated before the snapshot is taken, so that no write waits for
    /// this memory. 0: none.
    pub populate_copies: usize,
    /// `HUGEKIT_SNAPSHOT_IN_BACKGROUND`, or 0.
    pub flags: u32,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
    /// A reserve, whose memory the copies use first, or NULL. Snapshots that exist at the same time
    /// share the reserve. If other snapshots use all of the reserve, copies use new memory.
    pub reserve: *const hugekit_reserve,
}

// SAFETY: integers and a pointer, the first of which is the size.
unsafe impl Versioned for hugekit_snapshot_options {
    const NAME: &str = "hugekit_snapshot_options";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

impl CallerOptions for hugekit_snapshot_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// Populated memory for the copies of granules, which one snapshot after another uses. Made by
/// `hugekit_reserve_new`.
pub struct hugekit_reserve(Reserve);

/// Allocates and populates `bytes`, rounded up to a multiple of 2 MiB, on transparent huge pages if
/// there are any, and stores the handle in `*reserve`. The call lasts 0.1 to 0.2 s per GiB, or
/// longer if free memory is fragmented.
///
/// Without a reserve, a write to snapshotted memory waits until the kernel has found and cleared
/// memory for the copy. The reserve is large enough if it has as many bytes as writers change until
/// a snapshot is read. Snapshots that exist at the same time share the reserve.
///
/// Fails with `HUGEKIT_STATUS_NO_MEMORY` if less memory is available.
///
/// # Safety
/// `reserve` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_reserve_new(
    bytes: usize,
    reserve: *mut *mut hugekit_reserve,
) -> hugekit_status {
    // SAFETY: `reserve` is NULL or can be written, and `give` refuses NULL.
    answer(unsafe { give(reserve, "reserve", || Ok(hugekit_reserve(Reserve::new(bytes)?))) })
}

/// Returns the length of the reserve in bytes. 0 for NULL.
///
/// # Safety
/// `reserve` is NULL or a reserve.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_reserve_len(reserve: *const hugekit_reserve) -> usize {
    // SAFETY: `reserve` is NULL or a handle that is not freed meanwhile.
    unsafe { reserve.as_ref() }.map_or(0, |reserve| reserve.0.len())
}

/// Frees the reserve. Its memory is freed when the last snapshot that uses it is freed. Does
/// nothing for NULL. In a forked child the call frees only the handle.
///
/// # Safety
/// `reserve` is NULL, or a reserve that no thread uses any more. Snapshots may still use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_reserve_free(reserve: *mut hugekit_reserve) {
    // SAFETY: `reserve` is NULL or came from `hugekit_reserve_new`, and no thread uses the handle any more. A snapshot
    // shares the memory, and needs no handle.
    drop(unsafe { status::take_handle(reserve) });
}

/// Takes a snapshot of private anonymous memory of this process, from any allocator (`malloc`,
/// `mmap`), on any page size, and stores its handle in `*snapshot`. `options` may be NULL. Free the
/// snapshot with `hugekit_snapshot_free`, which lifts the protection.
///
/// For 1 GiB this lasts 0.4 to 2 ms on huge pages, and 12 to 27 ms on base pages. If another thread
/// writes to a granule during the call, the snapshot may contain this store or not, as with
/// fork(2).
///
/// Fails with:
/// - `HUGEKIT_STATUS_INVALID` for no bytes, or for memory that is not mapped.
/// - `HUGEKIT_STATUS_UNSUPPORTED` for shared memory, a file or a thread's stack, or before Linux
///   5.14. For memory of a pool use `hugekit_region_snapshot`.
/// - `HUGEKIT_STATUS_NOT_PERMITTED` if the process may not handle faults.
///
/// Other threads may write, unmap, remap, protect, discard and fork the memory meanwhile. If this
/// removes bytes of the snapshot, a read of the snapshot returns an error.
///
/// # Safety
/// Until the snapshot is freed:
/// - No thread that writes to the memory blocks SIGBUS, and no other code replaces the library's
///   handler of SIGBUS without passing signals on to it.
/// - No thread has its stack, its alternate signal stack or its thread-local variables in the
///   memory.
/// - If faults are handled in place (`hugekit_snapshot_serving`), no system call writes to the
///   memory unless the program called `hugekit_snapshot_prepare_write` before, or handles EFAULT.
/// - No other code, in this or another process, handles faults of the memory (`userfaultfd`,
///   ptrace, CRIU).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_new(
    memory: *const c_void,
    len: usize,
    options: *const hugekit_snapshot_options,
    snapshot: *mut *mut hugekit_snapshot,
) -> hugekit_status {
    // SAFETY: `options` is NULL or such a structure, and `snapshot` is NULL or can be written. What this function asks
    // of the program's threads, handlers and system calls is what `of_anonymous` asks.
    answer(unsafe {
        give(snapshot, "snapshot", || {
            check_range("memory", memory, len)?;
            let builder = builder(&versioned::read(options)?)?;
            let memory = slice_from_raw_parts(memory.cast::<u8>(), len);
            Ok(hugekit_snapshot::new(builder.of_anonymous(memory)?))
        })
    })
}

/// A range of memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_range {
    /// The start of the range.
    pub memory: *const c_void,
    /// The length in bytes.
    pub len: usize,
}

/// Takes a snapshot of each of `count` ranges, like calls of `hugekit_snapshot_new` one after the
/// other, and stores the handles in `snapshots`, in the order of the ranges.
///
/// Ranges that touch are snapshotted together, which saves 1 ms per range on huge pages. The same
/// holds if less than a page lies between two ranges and belongs to an allocator. `options` apply
/// to each range. Ranges that are snapshotted together share the bytes of copies that they may
/// hold, and their costs (`hugekit_snapshot_statistics`) are counted together.
///
/// Fails as `hugekit_snapshot_new` does, for the first range that is refused. The call then takes
/// no snapshot.
///
/// # Safety
/// The conditions of `hugekit_snapshot_new`, for all ranges. `ranges` is NULL or has `count`
/// elements. `count` handles can be written to `snapshots`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_new_several(
    ranges: *const hugekit_range,
    count: usize,
    options: *const hugekit_snapshot_options,
    snapshots: *mut *mut hugekit_snapshot,
) -> hugekit_status {
    // SAFETY: `ranges` has `count` entries and `snapshots` room for `count` handles, or they are refused as NULL.
    // `options` is NULL or such a structure. What this function asks of the program for each range is what `take_many`
    // asks.
    answer((|| unsafe {
        if count > 0 && (ranges.is_null() || snapshots.is_null()) {
            return Err(Refusal::invalid("ranges or snapshots is NULL"));
        }
        check_range(
            "ranges",
            ranges.cast::<u8>(),
            count.saturating_mul(size_of::<hugekit_range>()),
        )?;
        HeapShortage::check()?;
        let mut memories = Vec::new();
        memories.try_reserve_exact(count).map_err(|_| HeapShortage)?;
        for index in 0..count {
            let hugekit_range { memory, len } = ranges.add(index).read_unaligned();
            check_range(&format!("ranges[{index}].memory"), memory, len)?;
            memories.push(slice_from_raw_parts(memory.cast::<u8>(), len));
        }
        let taken = builder(&versioned::read(options)?)?.take_many(&memories)?;
        for (index, snapshot) in taken.into_iter().enumerate() {
            snapshots.add(index).write(Box::into_raw(Box::new(hugekit_snapshot::new(snapshot))));
        }
        Ok(())
    })())
}

/// # Safety
/// The reserve is null or one.
pub(crate) unsafe fn builder(
    options: &hugekit_snapshot_options,
) -> Answer<engine::snapshot::Builder> {
    let name = "hugekit_snapshot_options";
    let unknown = options.flags & !HUGEKIT_SNAPSHOT_IN_BACKGROUND;
    if unknown != 0 {
        return Err(Refusal::invalid(format_args!("{name}.flags has unknown bits {unknown:#x}")));
    }
    let granule = match options.granule {
        0 => Granule::Auto,
        1 => Granule::Huge,
        2 => Granule::Small,
        other => {
            return Err(Refusal::invalid(format_args!(
                "{name}.granule is {other}, no hugekit_granule"
            )));
        }
    };
    let mut builder = Snapshot::builder().granule(granule).populate_copies(options.populate_copies);
    builder = builder.in_background(options.flags & HUGEKIT_SNAPSHOT_IN_BACKGROUND != 0);
    if let Some(fault_mode) = fault_mode(name, options.fault_mode, options.handler_threads)? {
        builder = builder.fault_mode(fault_mode);
    }
    // SAFETY: the reserve is null or a handle that is not freed meanwhile.
    if let Some(reserve) = unsafe { options.reserve.as_ref() } {
        builder = builder.reserve(&reserve.0);
    }
    if options.max_cow_bytes > 0 {
        builder = builder.max_cow_bytes(options.max_cow_bytes);
    }
    Ok(builder)
}

/// Takes a snapshot of a region, by a read-only fork. For 1 GiB this lasts 0.4 to 2 ms on huge
/// pages, and 67 ms on base pages. The snapshot reserves as many bytes of the pool as the region
/// has, so it is never lost to writers. The snapshot may outlive the region. `options` may be NULL.
/// Fails as `hugekit_region_fork` does.
///
/// # Safety
/// `region` is NULL or a region. `snapshot` can be written. `options` is NULL or such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_snapshot(
    region: *const hugekit_region,
    options: *const hugekit_fork_options,
    snapshot: *mut *mut hugekit_snapshot,
) -> hugekit_status {
    // SAFETY: `region` is NULL or a handle that is not freed meanwhile; `options` is NULL or such a structure;
    // `snapshot` is NULL or can be written.
    answer(unsafe {
        give(snapshot, "snapshot", || {
            let (region, options) = (handle(region, "region")?, versioned::read(options)?);
            Ok(hugekit_snapshot::new(Snapshot::of_region(fork_builder(&region.region, &options)?)?))
        })
    })
}

/// Frees the snapshot. The protection of the memory is lifted when the views of the snapshot are
/// freed too. Does nothing for NULL. In a forked child the call frees only the handle.
///
/// # Safety
/// `snapshot` is NULL, or a snapshot that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_free(snapshot: *mut hugekit_snapshot) {
    // SAFETY: `snapshot` is NULL or a handle that the library gave, and no thread uses it any more.
    drop(unsafe { status::take_handle(snapshot) });
}

/// Returns the length of the snapshot in bytes. 0 for NULL, and after the snapshot has ended.
///
/// # Safety
/// `snapshot` is NULL or a snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_len(snapshot: *const hugekit_snapshot) -> usize {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile.
    let snapshot = unsafe { handle(snapshot, "snapshot") };
    snapshot.and_then(|snapshot| snapshot.with(|snapshot| Ok(snapshot.len()))).unwrap_or(0)
}

/// Returns a `hugekit_fault_mode`: the mode in which faults of writers are handled. In place, a
/// system call may write to the memory only after `hugekit_snapshot_prepare_write`. 0 for NULL, if
/// nothing is protected, and after the snapshot has ended.
///
/// # Safety
/// `snapshot` is NULL or a snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_serving(snapshot: *const hugekit_snapshot) -> u32 {
    let serving = |snapshot: &Arc<Snapshot>| {
        Ok(match snapshot.serving().map(|serving| serving.fault_mode) {
            None => hugekit_fault_mode::Default,
            Some(FaultMode::InPlace) => hugekit_fault_mode::InPlace,
            Some(_) => hugekit_fault_mode::Threaded,
        })
    };
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile.
    let snapshot = unsafe { handle(snapshot, "snapshot") };
    snapshot.and_then(|snapshot| snapshot.with(serving)).map_or(0, |fault_mode| fault_mode as u32)
}

/// Copies `len` bytes of the snapshot from `offset` on to `to`. Several threads may read at the
/// same time, and each byte may be read many times.
///
/// Fails with `HUGEKIT_STATUS_INVALID` for bytes outside the snapshot, or after the snapshot has
/// ended. Fails with `HUGEKIT_STATUS_LOST` if writers changed more than the snapshot may hold, or
/// if the memory was unmapped or discarded; the content of `to` is unspecified then.
///
/// # Safety
/// `snapshot` is NULL or a snapshot. `to` can be written, and during the call no other thread
/// accesses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_read(
    snapshot: *const hugekit_snapshot,
    offset: usize,
    to: *mut c_void,
    len: usize,
) -> hugekit_status {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile. `to` can be written for `len` bytes that no
    // other thread accesses.
    answer((|| unsafe {
        let bytes = bytes_at(to, len)?;
        handle(snapshot, "snapshot")?.with(|snapshot| Ok(snapshot.read_at(offset, bytes)?))
    })())
}

/// Copies all bytes to `to` and ends the snapshot. `len` must be the length of the snapshot. Copied
/// granules are released, so writers need not copy them aside any more. `options` may be NULL; only
/// its progress and cancel have an effect.
///
/// Fails as `hugekit_snapshot_read` does, and with `HUGEKIT_STATUS_CANCELLED`; the snapshot has
/// ended after these errors. Fails with `HUGEKIT_STATUS_INVALID` if `len` differs, and with
/// `HUGEKIT_STATUS_CONFLICT` if the snapshot has a view; nothing is done then, and the snapshot has
/// not ended.
///
/// # Safety
/// `snapshot` is NULL or a snapshot. `to` can be written, and during the call no other thread
/// accesses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_copy(
    snapshot: *const hugekit_snapshot,
    to: *mut c_void,
    len: usize,
    options: *const hugekit_options,
) -> hugekit_status {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile. `to` can be written for `len` bytes that no
    // other thread accesses. `options` is NULL or such a structure, whose flag is not freed meanwhile.
    answer((|| unsafe {
        let (bytes, options) = (bytes_at(to, len)?, WorkOptions::read(options)?);
        let (progress, cancel) = (options.progress(), options.cancel());
        let handle = handle(snapshot, "snapshot")?;
        let has = handle.with(|snapshot| Ok(snapshot.len()))?;
        if has != len {
            return Err(Refusal::invalid(format_args!("the snapshot has {has} bytes, not {len}")));
        }
        let reader =
            as_progress(&progress).into_iter().fold(handle.end()?.reader(), Reader::progress);
        let reader = cancel.into_iter().fold(reader, Reader::cancel);
        handle.keep(reader.copy_to(bytes)?);
        Ok(())
    })())
}

/// Writes all bytes in order to an open file, pipe or socket, and ends the snapshot. The file may
/// be slow: writers of the memory do not wait for it. `options` may be NULL; only its progress and
/// cancel have an effect. The call neither closes nor synchronises the descriptor.
///
/// Fails as `hugekit_snapshot_copy` does, and with `HUGEKIT_STATUS_SYSTEM` if writing fails. The
/// bytes that were written before the error are a prefix of the snapshot.
///
/// # Safety
/// `snapshot` is NULL or a snapshot. The descriptor stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_write(
    snapshot: *const hugekit_snapshot,
    descriptor: c_int,
    options: *const hugekit_options,
) -> hugekit_status {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile. The descriptor stays open until the call
    // returns. `options` is NULL or such a structure, whose flag is not freed meanwhile.
    answer((|| unsafe {
        let (handle, options) = (handle(snapshot, "snapshot")?, WorkOptions::read(options)?);
        if descriptor < 0 {
            return Err(Refusal::invalid(format_args!("{descriptor} is no descriptor")));
        }
        let (progress, cancel) = (options.progress(), options.cancel());
        let file = ManuallyDrop::new(File::from_raw_fd(descriptor));
        let reader =
            as_progress(&progress).into_iter().fold(handle.end()?.reader(), Reader::progress);
        let reader = cancel.into_iter().fold(reader, Reader::cancel);
        handle.keep(reader.write_to(&*file)?);
        Ok(())
    })())
}

/// The bytes of a snapshot, mapped at addresses of their own. Made by `hugekit_snapshot_view`.
pub struct hugekit_view {
    view: View<Arc<Snapshot>>,
}

/// Maps a snapshot as memory and stores the view's handle in `*view`. The call copies no byte:
/// `hugekit_view_bytes` and `hugekit_view_rebase` copy the bytes that they return, because they can
/// report that the snapshot is lost, and a page fault could not. Copied bytes use memory until the
/// view is freed. View and snapshot may be freed in any order.
///
/// Fails with `HUGEKIT_STATUS_INVALID` after the snapshot has ended, and with
/// `HUGEKIT_STATUS_NO_MEMORY` if the process has no addresses for the view.
///
/// # Safety
/// `snapshot` is NULL or a snapshot. `view` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_view(
    snapshot: *const hugekit_snapshot,
    view: *mut *mut hugekit_view,
) -> hugekit_status {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile; `view` is NULL or can be written.
    answer(unsafe {
        give(view, "view", || {
            let handle = handle(snapshot, "snapshot")?;
            handle.with(|snapshot| Ok(hugekit_view { view: View::of(Arc::clone(snapshot))? }))
        })
    })
}

/// Frees the view. Does nothing for NULL. In a forked child the call frees only the handle.
///
/// # Safety
/// `view` is NULL, or a view that no thread uses any more, neither by its handle nor by addresses
/// in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_view_free(view: *mut hugekit_view) {
    // SAFETY: `view` is NULL or came from `hugekit_snapshot_view`, and no thread uses the handle or an address in it
    // any more.
    drop(unsafe { status::take_handle(view) });
}

/// Returns the length of the snapshot in bytes. 0 for NULL.
///
/// # Safety
/// `view` is NULL or a view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_view_len(view: *const hugekit_view) -> usize {
    // SAFETY: `view` is NULL or a handle that is not freed meanwhile.
    unsafe { view.as_ref() }.map_or(0, |view| view.view.len())
}

/// Copies `len` bytes from `offset` on into the view, and stores their address in `*bytes`. These
/// bytes can be read, and do not move or change until the view is freed. Several threads may call
/// this at the same time.
///
/// Fails as `hugekit_snapshot_read` does.
///
/// # Safety
/// `view` is NULL or a view. `bytes` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_view_bytes(
    view: *const hugekit_view,
    offset: usize,
    len: usize,
    bytes: *mut *const c_void,
) -> hugekit_status {
    // SAFETY: `view` is NULL or a handle that is not freed meanwhile; `bytes` is NULL or can be written.
    answer(unsafe { show(view, bytes, |view| view.bytes(range(offset, len))) })
}

/// Converts `pointer`, an address of the snapshotted memory, to an address in the view, and stores
/// the address in `*there`. A program can thus follow the pointers in a snapshot. The call copies
/// `len` bytes from there on into the view. Their alignment is the same as in the memory, up to the
/// alignment of a page. The caller must know if their content is valid: it may contain a part of a
/// store that raced with the taking of the snapshot.
///
/// Fails as `hugekit_snapshot_read` does, and with `HUGEKIT_STATUS_INVALID` for a pointer to other
/// memory.
///
/// # Safety
/// `view` is NULL or a view. `there` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_view_rebase(
    view: *const hugekit_view,
    pointer: *const c_void,
    len: usize,
    there: *mut *const c_void,
) -> hugekit_status {
    // SAFETY: `view` is NULL or a handle that is not freed meanwhile; `there` is NULL or can be written.
    answer(unsafe { show(view, there, |view| view.rebase_bytes(pointer.addr(), len)) })
}

/// Stores where bytes of a view are.
///
/// # Safety
/// `view` is null or a view; `place` is null or can be written.
unsafe fn show<'a>(
    view: *const hugekit_view,
    place: *mut *const c_void,
    find: impl FnOnce(&'a View<Arc<Snapshot>>) -> Result<&'a [u8], engine::SnapshotError>,
) -> Answer {
    // SAFETY: `view` is null or a handle that is not freed meanwhile; `place` is null or can be written.
    let (view, place) = unsafe { (handle(view, "view")?, place.as_mut()) };
    let place =
        place.ok_or_else(|| Refusal::invalid("there is no place for the address: it is NULL"))?;
    *place = find(&view.view)?.as_ptr().cast();
    Ok(())
}

/// Makes a range of the memory writable without a fault. Call this before a system call writes to
/// the range, if faults are handled in place. The granules of the range are copied aside, and the
/// snapshot keeps its bytes. Fails as `hugekit_snapshot_read` does.
///
/// # Safety
/// `snapshot` is NULL or a snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_prepare_write(
    snapshot: *const hugekit_snapshot,
    offset: usize,
    len: usize,
) -> hugekit_status {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile.
    let handle = unsafe { handle(snapshot, "snapshot") };
    let range = range(offset, len);
    answer(handle.and_then(|handle| handle.with(|snapshot| Ok(snapshot.prepare_write(range)?))))
}

/// The costs of a snapshot until now, or until it ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_snapshot_stats {
    /// `sizeof(hugekit_snapshot_stats)`, set by the caller.
    pub size: usize,
    /// Granules of the snapshot.
    pub granules: usize,
    /// Bytes of a granule.
    pub granule_bytes: usize,
    /// Granules that writers copied.
    pub copied_by_writers: u64,
    /// Granules that other code copied: `hugekit_snapshot_prepare_write`, the background thread, or
    /// the call that took the snapshot.
    pub copied_by_others: u64,
    /// Bytes of the copies that exist now.
    pub retained: usize,
    /// The highest number of bytes of copies at any moment.
    pub most_retained: usize,
    /// The limit of the bytes of copies.
    pub cap: usize,
    /// The longest time in nanoseconds that one write waited for a copy, without the time to
    /// deliver a signal.
    pub longest_fault_ns: u64,
    /// Bytes of `cap` that were allocated in advance, in a reserve or in a region's pool.
    pub reserved: usize,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_snapshot_stats {
    const NAME: &str = "hugekit_snapshot_stats";
    const FIRST: usize = offset_of!(Self, longest_fault_ns) + size_of::<u64>();
}

/// Fills `stats` with the costs of the snapshot.
///
/// # Safety
/// `snapshot` is NULL or a snapshot. `stats` is a `hugekit_snapshot_stats` whose size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_snapshot_statistics(
    snapshot: *const hugekit_snapshot,
    stats: *mut hugekit_snapshot_stats,
) -> hugekit_status {
    // SAFETY: `snapshot` is NULL or a handle that is not freed meanwhile; `stats` is NULL or can be written for the
    // size that it states.
    answer((|| unsafe {
        let (handle, place) = (handle(snapshot, "snapshot")?, OutParameter::needed(stats)?);
        let stats = match &*handle.state() {
            SnapshotState::Open(snapshot) => snapshot.stats(),
            SnapshotState::Ended(stats) => *stats,
        };
        place.fill(&hugekit_snapshot_stats {
            size: 0,
            granules: stats.granules,
            granule_bytes: stats.granule_bytes,
            copied_by_writers: stats.copied_by_writers,
            copied_by_others: stats.copied_by_others,
            retained: stats.retained,
            most_retained: stats.most_retained,
            cap: stats.cap,
            longest_fault_ns: stats.longest_fault.as_nanos().try_into().unwrap_or(u64::MAX),
            reserved: stats.reserved,
        });
        Ok(())
    })())
}

/// Returns memory of the caller, for the bytes of a snapshot.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, and no other thread accesses these bytes before the
/// slice ends.
unsafe fn bytes_at<'a>(to: *mut c_void, len: usize) -> Answer<&'a mut [u8]> {
    check_range("to", to, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: `len` bytes can be written there, and no other thread accesses them before the slice ends. They are only
    // ever written, so they need not be initialised.
    Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), len) })
}
