//! Epochs: successive states, each as the changes since the previous state.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::slice_from_raw_parts;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::snapshot::{Changes, Epoch};

use crate::region::{fork_builder, hugekit_fork_options, hugekit_region, range};
use crate::snapshot::{builder, hugekit_snapshot_options};
use crate::status::{self, Answer, Refusal, answer, give, handle, hugekit_part, hugekit_status};
use crate::versioned;
use crate::work::check_range;

/// A value that one call takes out of its handle, which is freed apart.
struct Once<T>(Mutex<Option<T>>);

impl<T> Once<T> {
    fn new(value: T) -> Self {
        Self(Mutex::new(Some(value)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, name: &str, ask: impl FnOnce(&T) -> Answer<R>) -> Answer<R> {
        self.lock().as_ref().ok_or_else(|| ended(name)).and_then(ask)
    }

    fn end(&self, name: &str) -> Answer<T> {
        self.lock().take().ok_or_else(|| ended(name))
    }
}

fn ended(name: &str) -> Refusal {
    Refusal::invalid(format_args!("the {name} has ended: it was used before"))
}

/// The bytes of a state of memory that changed since the previous state. For the first state, all
/// bytes. Made by `hugekit_changes_first` and `hugekit_changes_since`, for a region by
/// `hugekit_region_changes`. `hugekit_changes_write` and `hugekit_chain_save` consume the changes
/// and make an epoch.
pub struct hugekit_changes(Once<Changes>);

/// The time since a state was saved. During an epoch, the library records the granules that are
/// written; the first write to each granule costs one fault. `hugekit_changes_since` and
/// `hugekit_region_changes` consume the epoch.
pub struct hugekit_epoch(Once<Epoch>);

impl hugekit_changes {
    fn new(changes: Changes) -> Self {
        Self(Once::new(changes))
    }

    pub(crate) fn len(&self) -> Answer<usize> {
        self.0.with("changes", |changes| Ok(changes.len()))
    }

    pub(crate) fn end(&self) -> Answer<Changes> {
        self.0.end("changes")
    }
}

impl hugekit_epoch {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self(Once::new(epoch))
    }
}

/// Takes a snapshot of memory, as `hugekit_snapshot_new` does, and stores a handle of its bytes in
/// `*changes`. Later states can then be saved as changes. `options` may be NULL;
/// `HUGEKIT_SNAPSHOT_IN_BACKGROUND` has no effect. Fails as `hugekit_snapshot_new` does.
///
/// # Safety
/// The conditions of `hugekit_snapshot_new`, until the last of the changes and epochs that follow
/// is consumed or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_first(
    memory: *const c_void,
    len: usize,
    options: *const hugekit_snapshot_options,
    changes: *mut *mut hugekit_changes,
) -> hugekit_status {
    // SAFETY: `options` is NULL or such a structure, and `changes` is NULL or can be written. The conditions of
    // `hugekit_snapshot_new` hold for `memory`, and they are those of `first_epoch`.
    answer(unsafe {
        give(changes, "changes", || {
            check_range("memory", memory, len)?;
            let builder = builder(&versioned::read(options)?)?;
            let memory = slice_from_raw_parts(memory.cast::<u8>(), len);
            Ok(hugekit_changes::new(builder.first_epoch(memory)?))
        })
    })
}

/// Takes a snapshot of the bytes of the epoch's memory that were written since the epoch began, and
/// stores its handle in `*changes`. The epoch is consumed, and must still be freed. Memory that was
/// unmapped, discarded or replaced since the epoch began counts as written if it is mapped now.
/// `options` may be NULL; the granule is the epoch's granule.
///
/// Fails as `hugekit_snapshot_new` does, and with:
/// - `HUGEKIT_STATUS_CONFLICT` for the epoch of a region.
/// - `HUGEKIT_STATUS_INVALID` if the epoch is consumed already.
/// - `HUGEKIT_STATUS_LOST` if the written bytes are unknown. Begin with `hugekit_changes_first`
///   again.
///
/// # Safety
/// The conditions of `hugekit_changes_first`. `epoch` is NULL or an epoch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_since(
    epoch: *const hugekit_epoch,
    options: *const hugekit_snapshot_options,
    changes: *mut *mut hugekit_changes,
) -> hugekit_status {
    // SAFETY: `epoch` is NULL or an epoch, `options` NULL or such a structure, and `changes` is NULL or can be
    // written. The conditions of `hugekit_changes_first` hold on for the epoch's memory, and they are those of
    // `since`.
    answer(unsafe {
        give(changes, "changes", || {
            let (epoch, builder) = (handle(epoch, "epoch")?, builder(&versioned::read(options)?)?);
            Ok(hugekit_changes::new(builder.since(epoch.0.end("epoch")?)?))
        })
    })
}

/// Takes a snapshot of the bytes of a region that were written since the epoch began, and stores
/// its handle in `*changes`. If `epoch` is NULL, all bytes are in the snapshot. The epoch is
/// consumed, and must still be freed. A region has one epoch at a time, the last one. Pinned ranges
/// count as written.
///
/// Fails as `hugekit_region_fork` does, and with `HUGEKIT_STATUS_CONFLICT` if the epoch is not the
/// last epoch of the region.
///
/// # Safety
/// `region` is NULL or a region. `epoch` is NULL or an epoch. `options` is NULL or such a
/// structure. `changes` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_region_changes(
    region: *const hugekit_region,
    epoch: *const hugekit_epoch,
    options: *const hugekit_fork_options,
    changes: *mut *mut hugekit_changes,
) -> hugekit_status {
    // SAFETY: `region` and `epoch` are NULL or handles that are not freed meanwhile, `options` is NULL or such a
    // structure, and `changes` is NULL or can be written.
    answer(unsafe {
        give(changes, "changes", || {
            let (region, options) = (handle(region, "region")?, versioned::read(options)?);
            let builder = fork_builder(&region.region, &options)?;
            let taken = match epoch.as_ref() {
                Some(epoch) => Changes::since(builder, epoch.0.end("epoch")?)?,
                None => Changes::first(builder)?,
            };
            Ok(hugekit_changes::new(taken))
        })
    })
}

/// Returns the length of the whole state in bytes. 0 for NULL, and if the changes are consumed.
///
/// # Safety
/// `changes` is NULL or changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_len(changes: *const hugekit_changes) -> usize {
    // SAFETY: `changes` is NULL or a handle that is not freed meanwhile.
    unsafe { handle(changes, "changes") }.and_then(hugekit_changes::len).unwrap_or(0)
}

/// Stores the ranges that may have changed in `parts`, ascending, at most `room` of them, and the
/// number of all ranges in `*count`. The ranges are whole granules, except at the start and end of
/// the state.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if the changes are consumed.
///
/// # Safety
/// `changes` is NULL or changes. `parts` is NULL if `room` is 0, otherwise `room` parts can be
/// written to it. `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_parts(
    changes: *const hugekit_changes,
    parts: *mut hugekit_part,
    room: usize,
    count: *mut usize,
) -> hugekit_status {
    // SAFETY: `changes` is NULL or a handle that is not freed meanwhile. `parts` can be written for `room` of them, or
    // is NULL and `room` 0; `count` can be written.
    answer((|| unsafe {
        if parts.is_null() && room > 0 {
            return Err(Refusal::invalid("parts is NULL"));
        }
        let place = count.as_mut().ok_or_else(|| Refusal::invalid("count is NULL"))?;
        handle(changes, "changes")?.0.with("changes", |changes| {
            *place = changes.changed().count();
            for (index, Range { start, end }) in changes.changed().take(room).enumerate() {
                parts.add(index).write(hugekit_part { offset: start, len: end - start });
            }
            Ok(())
        })
    })())
}

/// Makes `len` bytes from `offset` on writable without a fault. Call this before a system call or a
/// device writes to these bytes. The bytes are copied aside, and count as written in the next
/// state.
///
/// Fails as `hugekit_snapshot_prepare_write` does.
///
/// # Safety
/// `changes` is NULL or changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_prepare_write(
    changes: *const hugekit_changes,
    offset: usize,
    len: usize,
) -> hugekit_status {
    let prepare = |changes: &Changes| Ok(changes.prepare_write(range(offset, len))?);
    // SAFETY: `changes` is NULL or a handle that is not freed meanwhile.
    let changes = unsafe { handle(changes, "changes") };
    answer(changes.and_then(|changes| changes.0.with("changes", prepare)))
}

/// A callback that receives `len` bytes of a state, from `offset` on. It returns 0 to continue, or
/// an errno to stop.
pub type hugekit_take = Option<
    unsafe extern "C-unwind" fn(
        offset: usize,
        bytes: *const c_void,
        len: usize,
        context: *mut c_void,
    ) -> i32,
>;

/// Calls `take` for the changed bytes in order, at most 2 MiB at a time. Stores in `*epoch` a
/// handle of the epoch that began when the snapshot was taken. `take` may be slow: no other thread
/// waits for it. The changes are consumed, also on an error, and must still be freed.
///
/// Fails with:
/// - `HUGEKIT_STATUS_SYSTEM` if `take` returned an errno, which `hugekit_last_errno` then returns.
/// - `HUGEKIT_STATUS_LOST` if writers changed more than the snapshot may hold, or if the memory was
///   unmapped.
/// - `HUGEKIT_STATUS_INVALID` if the changes were consumed before.
///
/// After an error there is no epoch.
///
/// # Safety
/// `changes` is NULL or changes. `epoch` can be written. `take` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_write(
    changes: *const hugekit_changes,
    take: hugekit_take,
    context: *mut c_void,
    epoch: *mut *mut hugekit_epoch,
) -> hugekit_status {
    // SAFETY: `changes` is NULL or a handle that is not freed meanwhile. `epoch` is NULL or can be written, and `take`
    // may be called with `context`.
    answer(unsafe {
        give(epoch, "epoch", || {
            let take = take.ok_or_else(|| Refusal::invalid("take is NULL"))?;
            let changes = handle(changes, "changes")?.end()?;
            let epoch = changes.deliver(|offset, bytes| {
                match take(offset, bytes.as_ptr().cast(), bytes.len(), context) {
                    0 => Ok(()),
                    errno => Err(std::io::Error::from_raw_os_error(errno)),
                }
            })?;
            Ok(hugekit_epoch::new(epoch))
        })
    })
}

/// Frees the handle. Changes that were not consumed make no epoch. Does nothing for NULL. In a
/// forked child the call frees only the handle.
///
/// # Safety
/// `changes` is NULL, or changes that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_changes_free(changes: *mut hugekit_changes) {
    // SAFETY: `changes` is NULL or a handle that the library gave, and no thread uses it any more.
    drop(unsafe { status::take_handle(changes) });
}

/// Makes `len` bytes from `offset` on writable without a fault between two states, as
/// `hugekit_changes_prepare_write` does.
///
/// # Safety
/// `epoch` is NULL or an epoch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_epoch_prepare_write(
    epoch: *const hugekit_epoch,
    offset: usize,
    len: usize,
) -> hugekit_status {
    let prepare = |epoch: &Epoch| Ok(epoch.prepare_write(range(offset, len))?);
    // SAFETY: `epoch` is NULL or a handle that is not freed meanwhile.
    let epoch = unsafe { handle(epoch, "epoch") };
    answer(epoch.and_then(|epoch| epoch.0.with("epoch", prepare)))
}

/// Returns the number of bytes of the granules that are written all the time. Writes to these
/// granules cost no faults, and the granules count as changed in the next state. 0 for NULL, and if
/// the epoch is consumed.
///
/// # Safety
/// `epoch` is NULL or an epoch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_epoch_unwatched(epoch: *const hugekit_epoch) -> usize {
    // SAFETY: `epoch` is NULL or a handle that is not freed meanwhile.
    let epoch = unsafe { handle(epoch, "epoch") };
    let unwatched = |epoch: &Epoch| Ok(epoch.unwatched());
    epoch.and_then(|epoch| epoch.0.with("epoch", unwatched)).unwrap_or(0)
}

/// Frees the handle. If the epoch was not consumed, the library stops recording writes. Does
/// nothing for NULL. In a forked child the call frees only the handle.
///
/// # Safety
/// `epoch` is NULL, or an epoch that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_epoch_free(epoch: *mut hugekit_epoch) {
    // SAFETY: `epoch` is NULL or a handle that the library gave, and no thread uses it any more.
    drop(unsafe { status::take_handle(epoch) });
}
