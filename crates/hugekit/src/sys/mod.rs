//! Everything asked of the kernel: one typed function per system call or ioctl, with its preconditions.
