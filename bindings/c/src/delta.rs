//! Deltas: what has changed, in a file.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::FromRawFd;
use std::slice;
use std::sync::{Mutex, PoisonError};

use engine::snapshot::{Changes, Epoch};
use hugekit_delta::{Chain, StateId, apply};

use crate::epoch::{hugekit_changes, hugekit_epoch};
use crate::status::{self, Answer, Refusal, answer, give, handle, hugekit_status};
use crate::versioned::{OutParameter, Versioned};
use crate::work::check_range;

/// The number of a state of a chain. Two states with the same number have the same bytes. All
/// zeroes means no state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct hugekit_state {
    pub number: [u8; 16],
}

impl From<StateId> for hugekit_state {
    fn from(state: StateId) -> Self {
        Self { number: state.to_bytes() }
    }
}

/// The result of a save. Set `size` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_saved {
    /// `sizeof(hugekit_saved)`.
    pub size: usize,
    /// The state.
    pub state: hugekit_state,
    /// Bytes of the blocks of 4 KiB that have changed.
    pub changed: u64,
    /// Bytes that were written to the file.
    pub written: u64,
    /// 1 if the delta contains the whole state, so it can be applied without another; else 0.
    pub is_full: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_saved {
    const NAME: &str = "hugekit_saved";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

/// States of some memory, saved one after the other as changes. To find the changes, it keeps a tag
/// of each block of 4 KiB, in 24 bytes of memory. It keeps at most 64 of the files open that earlier
/// states were saved to. Made by `hugekit_chain_new`.
pub struct hugekit_chain(Mutex<Chain>);

/// Makes a chain of states of `length` bytes and stores its handle in `*chain`. Its first state is
/// saved in full.
///
/// # Safety
/// `chain` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_chain_new(
    length: usize,
    chain: *mut *mut hugekit_chain,
) -> hugekit_status {
    let made = || Ok(hugekit_chain(Mutex::new(Chain::new(length as u64))));
    // SAFETY: `chain` is NULL or can be written, and `give` refuses NULL.
    answer(unsafe { give(chain, "chain", made) })
}

/// Frees the chain. Does nothing for NULL.
///
/// # Safety
/// NULL, or a chain that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_chain_free(chain: *mut hugekit_chain) {
    // SAFETY: `chain` is NULL or came from `hugekit_chain_new`, and no thread uses it any more.
    drop(unsafe { status::take_handle(chain) });
}

/// Writes the changed blocks of 4 KiB to an open file as a delta. Stores a handle of the epoch in
/// `*epoch`, and the result in `*saved`, which may be NULL. The changes are consumed, and must
/// still be freed.
///
/// The call neither closes nor synchronises the descriptor: the state is saved only after the
/// caller has synchronised it. If an earlier file was removed or written to, its blocks are written
/// again: all bytes of them that were written in memory are in the next delta then.
///
/// The first state is saved in full, so it needs changes of all bytes: from
/// `hugekit_changes_first`, or from `hugekit_region_changes` without an epoch. The state after a
/// failed call needs them too, because there is no epoch then; the chain continues from the last
/// state that was saved.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if the chain's states have another length, if a first state
/// is not complete, or if the changes are consumed already; with `HUGEKIT_STATUS_SYSTEM` if the
/// file fails; with `HUGEKIT_STATUS_LOST` if the snapshot is lost. There is no epoch then.
///
/// # Safety
/// `chain` is NULL or a chain. `changes` is NULL or changes. The descriptor stays open during the
/// call. `saved` is NULL or can be written. `epoch` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_chain_save(
    chain: *const hugekit_chain,
    changes: *const hugekit_changes,
    descriptor: c_int,
    saved: *mut hugekit_saved,
    epoch: *mut *mut hugekit_epoch,
) -> hugekit_status {
    // SAFETY: `chain` and `changes` are NULL or handles that are not freed meanwhile. `saved` is NULL or can be
    // written for the size that it states. The descriptor stays open until the call returns. `epoch` is NULL or can be
    // written, and `give` refuses NULL.
    answer(unsafe {
        give(epoch, "epoch", || {
            let (chain, changes) = (handle(chain, "chain")?, handle(changes, "changes")?);
            let mut chain = chain.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (place, file) = (OutParameter::new(saved)?, file(descriptor)?);
            let (length, given) = (chain.length(), changes.len()?);
            if length != given as u64 {
                return Err(Refusal::invalid(format_args!(
                    "the chain is of {length} bytes, the changes of {given}"
                )));
            }
            let (saved, epoch) = save(&mut chain, changes.end()?, &file)?;
            place.fill(&saved);
            Ok(hugekit_epoch::new(epoch))
        })
    })
}

fn save(chain: &mut Chain, changes: Changes, file: &File) -> Answer<(hugekit_saved, Epoch)> {
    let mut saving = chain.save_changes(file)?;
    let epoch = changes.deliver(|offset, bytes| saving.put(offset as u64, bytes))?;
    let saved = saving.finish()?;
    let answer = hugekit_saved {
        size: size_of::<hugekit_saved>(),
        state: saved.state.into(),
        changed: saved.changed,
        written: saved.written,
        is_full: u32::from(saved.is_full),
        reserved: 0,
    };
    Ok((answer, epoch))
}

/// Applies a delta from an open file to `len` bytes of memory: changes them from the state `*base`
/// to the delta's state, and stores the number of that in `*state`, which may be NULL. `base` is
/// NULL or all zeroes for a full delta.
///
/// The whole delta is read and checked before a byte of memory changes. It begins at the
/// descriptor's position and is read twice, so it must be a regular file. The call does not close
/// the descriptor.
///
/// Fails with `HUGEKIT_STATUS_INVALID` for a delta that is damaged, truncated, of another base or
/// of another length, and the error names the place; with `HUGEKIT_STATUS_SYSTEM` if the file
/// cannot be read.
///
/// # Safety
/// `memory` can be written, and during the call no other thread accesses it. The descriptor stays
/// open. `base` is NULL or such a structure. `state` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_delta_apply(
    memory: *mut c_void,
    len: usize,
    base: *const hugekit_state,
    descriptor: c_int,
    state: *mut hugekit_state,
) -> hugekit_status {
    // SAFETY: `memory` is a range (`check_range`) that can be written and that no other thread accesses meanwhile.
    // `base` is NULL or such a structure, `state` is NULL or can be written, and the descriptor stays open until the
    // call returns.
    answer((|| unsafe {
        check_range("memory", memory, len)?;
        let target = slice::from_raw_parts_mut(memory.cast::<u8>(), len);
        let base = base.as_ref().and_then(|base| StateId::from_bytes(base.number).ok());
        let reached = apply(target, base, &mut &*file(descriptor)?)?;
        if let Some(state) = state.as_mut() {
            *state = reached.into();
        }
        Ok(())
    })())
}

/// # Safety
/// The descriptor stays open as long as this is used.
unsafe fn file(descriptor: c_int) -> Answer<ManuallyDrop<File>> {
    if descriptor < 0 {
        return Err(Refusal::invalid(format_args!("{descriptor} is no descriptor")));
    }
    // SAFETY: the descriptor stays open as long as the file is used, and `ManuallyDrop` never closes it.
    Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) }))
}
