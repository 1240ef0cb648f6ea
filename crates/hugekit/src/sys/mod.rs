//! Everything asked of the kernel: one typed function per system call or ioctl, with its preconditions.
//!
//! What rustix has is called through rustix; the ioctls below are those it lacks.

mod ioctl;
pub(crate) mod kvm;
pub(crate) mod process;
pub(crate) mod userfaultfd;
