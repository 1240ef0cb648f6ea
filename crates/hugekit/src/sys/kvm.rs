//! `/dev/kvm`, as far as knowing that it answers.
#![allow(unsafe_code)]

use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::ioctl::{Opcode, ioctl, opcode};

use super::injection::{Call, pass};
use super::ioctl::IntegerToInteger;

const KVM_GET_API_VERSION: Opcode = opcode::none(0xAE, 0x00);

/// Opens the device and asks for the version of its interface, which has been 12 since Linux 2.6.22.
pub(crate) fn api_version(device: &Path) -> io::Result<i32> {
    pass(Call::Open)?;
    let device = open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    pass(Call::KvmGetApiVersion)?;
    // SAFETY: KVM_GET_API_VERSION is `_IO`: its argument must be 0 and is not followed.
    unsafe { ioctl(device, IntegerToInteger::<KVM_GET_API_VERSION>::new(0)) }
}
