//! Everything asked of the kernel: one typed function per system call or ioctl, with its preconditions.
//!
//! What rustix has is called through rustix; the rest are those it lacks.

pub(crate) mod fork_mark;
pub(crate) mod futex;
mod ioctl;
pub(crate) mod kvm;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod memory;
pub(crate) mod mempolicy;
pub(crate) mod own;
pub(crate) mod pagemap;
pub(crate) mod peek;
pub(crate) mod process;
pub(crate) mod signal;
pub(crate) mod thread;
pub(crate) mod userfaultfd;
