//! userfaultfd(2): ways to open one, and the handshake that says what the kernel can do.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, major, open};
use rustix::io;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use super::ioctl::IntegerToInteger;
use super::process;

const USERFAULTFD_IOC_NEW: Opcode = opcode::none(0xAA, 0x00);
const UFFDIO_API: Opcode = opcode::read_write::<UffdioApi>(0xAA, 0x3F);
const UFFD_API: u64 = 0xAA;

/// Major number of the kernel's miscellaneous devices.
const MISC_MAJOR: u32 = 10;

/// Asks for faults of user code only (Linux 5.11), which needs no privilege.
const UFFD_USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// Opens one that serves every fault, those of system calls and of KVM included.
pub(crate) fn new_whole() -> io::Result<OwnedFd> {
    new(UserfaultfdFlags::empty())
}

/// Opens one that serves faults of user code only.
pub(crate) fn new_user_mode_only() -> io::Result<OwnedFd> {
    new(UFFD_USER_MODE_ONLY)
}

/// Whether asking is harmless; a system-call filter may answer with a signal that ends the process.
pub(crate) fn may_be_asked_for() -> bool {
    // SAFETY: opening and closing a descriptor are two system calls, which take no lock of this process.
    let survives = unsafe { process::survives(|| drop(new_user_mode_only())) };
    survives.unwrap_or(false)
}

fn new(flags: UserfaultfdFlags) -> io::Result<OwnedFd> {
    // SAFETY: a fresh descriptor has no memory registered; it affects none before that is done.
    unsafe { userfaultfd(flags | UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }
}

/// Opens one through the device node (Linux 6.1), whose file permissions decide who may.
pub(crate) fn new_from_device(device: &Path) -> io::Result<OwnedFd> {
    let device = open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    if major(fstat(&device)?.st_rdev) != MISC_MAJOR {
        return Err(io::Errno::NOTTY);
    }
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: USERFAULTFD_IOC_NEW is `_IO`: its argument is the flags, by value.
    let new = unsafe { IntegerToInteger::<USERFAULTFD_IOC_NEW>::new(flags.bits() as usize) };
    // SAFETY: the device is a miscellaneous one, and of these only userfaultfd's answers requests of group 0xAA.
    let descriptor = unsafe { ioctl(&device, new)? };
    // SAFETY: on success the ioctl returns a descriptor that it has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Shakes hands without asking for any feature; the kernel answers with all it has, as the bits of
/// `UFFD_FEATURE_*`. A descriptor can do this once.
pub(crate) fn features(descriptor: impl AsFd) -> io::Result<u64> {
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `struct uffdio_api`, which `UffdioApi` mirrors.
    unsafe { ioctl(descriptor, Updater::<UFFDIO_API, _>::new(&mut api))? };
    Ok(api.features)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_the_kernels() {
        assert_eq!(USERFAULTFD_IOC_NEW, 0xAA00);
        assert_eq!(UFFDIO_API, 0xC018_AA3F);
    }

    #[test]
    fn a_device_that_is_none_is_an_error() {
        assert_eq!(new_from_device(Path::new("/dev/null")).unwrap_err(), io::Errno::NOTTY);
    }
}
