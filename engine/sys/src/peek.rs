//! Reads of this process's memory that its owner may unmap or forbid meanwhile, by
//! `process_vm_readv`(2). This call returns an error if a load would end the process. It copies as
//! fast as `memcpy` (`docs/decisions/0014-snapshot.md`).
#![allow(unsafe_code)]

use std::ops::Range;

use rustix::io;

use super::injection::{Call, pass};
use super::last_error;

/// The highest number of pieces of one copy.
pub const PIECES: usize = 3;

/// Copies pieces of the memory at `source` to the same offsets of `destination`, in the order of
/// the pieces. Async-signal-safe.
///
/// # Errors
/// `EFAULT` if a byte cannot be read or written. The content of the destination is then
/// unspecified.
///
/// # Panics
/// If there are more than [`PIECES`].
///
/// # Safety
/// `destination` is valid for writes of all pieces, and no other thread accesses it.
pub unsafe fn copy(
    destination: *mut u8,
    source: usize,
    pieces: impl IntoIterator<Item = Range<usize>>,
) -> io::Result<()> {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut local, mut remote) = ([nothing; PIECES], [nothing; PIECES]);
    let (mut count, mut bytes) = (0, 0);
    for piece in pieces {
        let from = std::ptr::with_exposed_provenance_mut::<u8>(source + piece.start);
        remote[count] = libc::iovec { iov_base: from.cast(), iov_len: piece.len() };
        let to = destination.wrapping_add(piece.start);
        local[count] = libc::iovec { iov_base: to.cast(), iov_len: piece.len() };
        count += 1;
        bytes += piece.len();
    }
    let process = rustix::process::getpid().as_raw_pid();
    let (local, remote, count) = (local.as_ptr(), remote.as_ptr(), count as libc::c_ulong);
    pass(Call::ProcessVmReadv)?;
    // SAFETY: writes to the destination, which is the caller's to give; what cannot be read is an answer.
    let copied = unsafe { libc::process_vm_readv(process, local, count, remote, count, 0) };
    last_error(copied < 0)?;
    if copied as usize == bytes { Ok(()) } else { Err(io::Errno::FAULT) }
}

/// Returns true if a byte can be read. Async-signal-safe.
pub fn is_readable(address: usize) -> bool {
    let mut byte = 0_u8;
    // SAFETY: one byte is written.
    unsafe { copy(&raw mut byte, address, std::iter::once(0..1)) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "qemu, which tests this CPU, lacks process_vm_readv(2)"
    )]
    fn what_cannot_be_read_is_an_answer() {
        let source = [1_u8, 2, 3, 4, 5];
        let mut copied = [0_u8; 5];
        let address = source.as_ptr().expose_provenance();
        // SAFETY: the array is as long as the pieces reach.
        unsafe { copy(copied.as_mut_ptr(), address, [3..5, 0..2]).unwrap() };
        assert_eq!(copied, [1, 2, 0, 4, 5]);
        assert!(is_readable(address) && !is_readable(8));
        // SAFETY: the piece 0..5 lies within the array, which has five bytes.
        let refused = unsafe { copy(copied.as_mut_ptr(), 4096, std::iter::once(0..5)) };
        assert_eq!(refused, Err(io::Errno::FAULT));
    }
}
