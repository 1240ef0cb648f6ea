//! Copying memory that its owner may unmap or forbid meanwhile. Loads stream, and end the process where there is
//! nothing to load; the kernel's copy (`sys/peek.rs`) answers, and does not stream. So the bytes are loaded by a
//! copy that our handlers of SIGBUS and SIGSEGV *abandon*, as long as those are in force and the thread takes
//! these signals, and the kernel is asked where they are not, and what is to be said of a copy that was abandoned.
#![allow(unsafe_code)]

use std::ops::Range;

use rustix::io;

use super::in_place;
use hugekit_bulk::arch::abandonable;
use hugekit_bulk::sweep::Reach;
use hugekit_bulk::{Reuse, copy_routine_for};
use hugekit_sys::peek;

/// Shorter copies are the kernel's: to look at the handlers takes three system calls.
const LEAST: usize = 64 << 10;

/// Has copies be abandoned where they fault, if this process's handlers can be had.
pub fn prepare() {
    if !abandonable::prepare() {
        return;
    }
    if let Err(refused) = in_place::install_handlers() {
        hugekit_sys::events::info!("the kernel copies what may be unmapped: {refused}");
    }
}

/// Copies pieces of the memory at `source` to the same offsets of `destination`, in the order in which they
/// come. Each by the routine that is the choice for its length, far from where a thread goes on or near it.
/// Async-signal-safe.
///
/// # Errors
/// `EFAULT` if some of it cannot be read, or not be written; what was written is lost then.
///
/// # Panics
/// If there are more than [`peek::PIECES`].
///
/// # Safety
/// `destination` is valid for writes of all pieces, and no other thread uses it.
pub unsafe fn copy(
    destination: *mut u8,
    source: usize,
    pieces: impl Iterator<Item = (Range<usize>, Reach)> + Clone,
) -> io::Result<()> {
    let is_long = pieces.clone().map(|(piece, _)| piece.len()).sum::<usize>() >= LEAST;
    if is_long && in_place::abandons_copies() {
        let copied = pieces.clone().all(|(piece, reach)| {
            let routine = copy_routine_for(piece.len(), reach);
            let from = std::ptr::with_exposed_provenance(source + piece.start);
            // SAFETY: the piece of `destination` may be written, and no other thread uses it; faults at the source are
            // abandoned. A profile, and what is learned, names only routines that are available.
            unsafe {
                abandonable::copy(destination.wrapping_add(piece.start), from, piece.len(), routine)
            }
        });
        if copied {
            return Ok(());
        }
    }
    // SAFETY: all pieces of `destination` may be written, and no other thread uses them.
    unsafe { peek::copy(destination, source, pieces.map(|(piece, _)| piece)) }
}

/// Bytes that no thread uses soon are far from where one goes on.
pub fn reach_of(reuse: Reuse) -> Reach {
    if reuse == Reuse::None { Reach::Far } else { Reach::Near }
}
