//! Copies of memory that its owner may unmap or forbid meanwhile. Loads can stream, but end the
//! process at a missing page. The kernel's copy (`sys/peek.rs`) returns an error instead, but does
//! not stream. So the bytes are loaded by a copy that hugekit's handlers of SIGBUS and SIGSEGV
//! *abandon* at a fault, if these handlers are installed and the thread does not block the signals.
//! Otherwise, and after an abandoned copy, the kernel copies.
#![allow(unsafe_code)]

use std::ops::Range;

use rustix::io;

use super::in_place;
use hugekit_bulk::arch::abandonable;
use hugekit_bulk::sweep::Reach;
use hugekit_bulk::{Reuse, copy_routine_for};
use hugekit_sys::peek;

/// The length in bytes from which loads are used. Shorter copies are the kernel's, because checking
/// the handlers needs three system calls.
const LEAST: usize = 64 << 10;

/// Makes copies be abandoned at a fault, if this process's handlers can be installed.
pub fn prepare() {
    if !abandonable::prepare() {
        return;
    }
    if let Err(refused) = in_place::install_handlers() {
        hugekit_sys::events::info!("the kernel copies what may be unmapped: {refused}");
    }
}

/// Copies pieces of the memory at `source` to the same offsets of `destination`, in the order of
/// the pieces. Each piece is copied by the routine for its length and its reach. Async-signal-safe.
///
/// # Errors
/// `EFAULT` if a byte cannot be read or written. The content of the destination is then
/// unspecified.
///
/// # Panics
/// If there are more than [`peek::PIECES`].
///
/// # Safety
/// `destination` is valid for writes of all pieces, and no other thread accesses it.
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

/// Returns far for bytes that no thread uses soon, and near for all others.
pub fn reach_of(reuse: Reuse) -> Reach {
    if reuse == Reuse::None { Reach::Far } else { Reach::Near }
}
