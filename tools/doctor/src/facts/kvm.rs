//! Whether this process can run virtual machines.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use hugekit_machine::{Error, Root};

/// `_IO(0xAE, 0x00)`. By hand: one number, for which the crates of KVM would be linked into every
/// face.
const KVM_GET_API_VERSION: libc::Ioctl = 0xAE00;

/// Opens `/dev/kvm` and returns the version of its interface; 12 is the only one in use.
///
/// # Errors
/// The device does not exist, may not be opened, or is no KVM.
pub(crate) fn api_version(root: &Root) -> Result<i32, Error> {
    let path = root.path("/dev/kvm");
    version_of(&path).map_err(|source| Error::Unreadable { path, source })
}

fn version_of(device: &Path) -> io::Result<i32> {
    let device = File::options().read(true).write(true).open(device)?;
    // SAFETY: the ioctl takes its argument by value, which must be 0, and follows no pointer.
    match unsafe { libc::ioctl(device.as_raw_fd(), KVM_GET_API_VERSION, 0) } {
        -1 => Err(io::Error::last_os_error()),
        version => Ok(version),
    }
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    #[test]
    fn absent_and_impostor_are_told_apart() {
        let machine = Files::new().unwrap();
        assert!(api_version(&Root::at(machine.path())).unwrap_err().is_not_found());
        machine.file("/dev/kvm", "");
        let error = api_version(&Root::at(machine.path())).unwrap_err();
        assert!(!error.is_not_found() && error.to_string().contains("dev/kvm"), "{error}");
    }
}
