//! All kernel calls: one typed function for each system call or ioctl, with its preconditions.
//!
//! If rustix has a call, the function uses rustix. Otherwise it makes the call itself.
#![warn(clippy::incompatible_msrv)]
#![allow(
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    reason = "every error here is the answer of the kernel"
)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "hugekit runs on Linux only: it is built on memfd_create(2), userfaultfd(2) and Linux's huge pages"
);

pub mod apart;
pub mod byte_lock;
pub mod data_runs;
pub mod file_stamp;
pub mod fork_mark;
pub mod free_blocks;
pub mod handler_thread;
pub mod headroom;
pub mod injection;
pub mod input;
mod ioctl;
pub mod mapped_page;
pub mod mapping;
pub mod memfd;
pub mod memory;
pub mod mempolicy;
pub mod new_file;
pub mod other_process;
pub mod page_cache;
pub mod pagemap;
pub mod peek;
pub mod poll;
pub mod private_file;
pub mod private_folder;
pub mod private_pages;
pub mod process;
pub mod seqpacket;
pub mod signal;
pub mod thread;
pub mod userfaultfd;

pub mod backing;
pub mod cpu_set;
pub mod error_kind;
pub mod events;
pub mod huge_page;
mod remedy;
pub mod sync;

pub use self::error_kind::{ErrorKind, error_chain, system_error};
pub use self::headroom::HeapShortage;
pub use self::huge_page::HUGE_PAGE_BYTES;
pub use self::remedy::Remedy;

use rustix::io;

/// Converts the result of a call of libc that has just returned: `errno` if the call failed.
fn last_error(refused: bool) -> io::Result<()> {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if refused { Err(io::Errno::from_raw_os_error(errno())) } else { Ok(()) }
}
