//! Deltas: the changes of a state, in a file.
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

/// The ID of a state of a chain. Two states with the same ID have the same bytes. All zeroes mean
/// no state.
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
    /// The ID of the state.
    pub state: hugekit_state,
    /// Bytes of the changed blocks of 4 KiB.
    pub changed: u64,
    /// Bytes that were written to the file.
    pub written: u64,
    /// 1 if the delta contains the whole state, so that it can be applied to any memory; otherwise
    /// 0.
    pub is_full: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_saved {
    const NAME: &str = "hugekit_saved";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

/// A chain of deltas: states of some memory, saved one after the other as changes. To find changes,
/// the chain keeps a tag of each block of 4 KiB, in 24 bytes of memory. The chain keeps at most 64
/// files of earlier states open. Made by `hugekit_chain_new`.
pub struct hugekit_chain(Mutex<Chain>);

/// Makes a chain of states of `length` bytes and stores its handle in `*chain`. The first state is
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
/// `chain` is NULL, or a chain that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_chain_free(chain: *mut hugekit_chain) {
    // SAFETY: `chain` is NULL or came from `hugekit_chain_new`, and no thread uses it any more.
    drop(unsafe { status::take_handle(chain) });
}

/// Writes the changed blocks of 4 KiB to an open file as a delta. Stores a handle of the epoch in
/// `*epoch`, and the result in `*saved`, which may be NULL. The changes are consumed, and must
/// still be freed.
///
/// The call neither closes nor synchronises the descriptor: the state is durable only after the
/// caller has synchronised the descriptor. If an earlier file was removed or written to, the next
/// delta contains all blocks of that file in which a byte was written in memory.
///
/// The first state is saved in full, so it needs changes of all bytes: from
/// `hugekit_changes_first`, or from `hugekit_region_changes` without an epoch. The state after a
/// failed call also needs changes of all bytes, because the failed call makes no epoch. The chain
/// then continues from the last saved state.
///
/// Fails with:
/// - `HUGEKIT_STATUS_INVALID` if the chain's states have another length, if a first state is not
///   complete, or if the changes are consumed already.
/// - `HUGEKIT_STATUS_SYSTEM` if writing to the file fails.
/// - `HUGEKIT_STATUS_LOST` if the snapshot is lost.
///
/// After an error there is no epoch.
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

/// Applies a delta from an open file to `len` bytes of memory: changes the memory from the state
/// `*base` to the delta's state, and stores the ID of the new state in `*state`, which may be NULL.
/// For a full delta, `base` is NULL or all zeroes.
///
/// The whole delta is read and checked before a byte of memory changes. The delta begins at the
/// descriptor's position and is read twice, so the file must be a regular file. The call does not
/// close the descriptor.
///
/// Fails with `HUGEKIT_STATUS_INVALID` for a delta that is damaged, truncated, of another base or
/// of another length; the error contains the offset. Fails with `HUGEKIT_STATUS_SYSTEM` if the file
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
