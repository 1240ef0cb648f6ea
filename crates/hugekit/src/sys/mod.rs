//! Everything asked of the kernel: one typed function per system call or ioctl, with its preconditions.
//!
//! What rustix has is called through rustix; the rest are those it lacks.

pub(crate) mod apart;
pub(crate) mod byte_lock;
pub(crate) mod fork_mark;
pub(crate) mod handler_thread;
pub(crate) mod headroom;
pub(crate) mod injection;
mod ioctl;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod memory;
pub(crate) mod mempolicy;
pub(crate) mod pagemap;
pub(crate) mod peek;
pub(crate) mod private_pages;
pub(crate) mod process;
pub(crate) mod seqpacket;
pub(crate) mod signal;
pub(crate) mod thread;
pub(crate) mod userfaultfd;

use rustix::io;

/// How a call of libc's ended, right after it: by its answer refused or not.
fn last_error(refused: bool) -> io::Result<()> {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if refused { Err(io::Errno::from_raw_os_error(errno())) } else { Ok(()) }
}
