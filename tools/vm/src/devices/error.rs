//! Reasons why a clone or a child cannot get its devices. After such an error, no clone has run.

use std::io;
use std::path::PathBuf;

use hugekit_sys::Remedy;

/// The reason why a clone or a child cannot get a device. `device` names the device and its part of
/// the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Two VMs would use the same part of the host.
    #[error("{second} would use {device}, as {first} does{}", Remedy(self.remedy()))]
    Shared {
        /// The VM that uses the part.
        first: String,
        /// The VM that would also use the part.
        second: String,
        /// The device.
        device: String,
        /// The option that gives each VM a part of its own, if there is one.
        option: Option<&'static str>,
    },
    /// An option names a device that the VM does not have.
    #[error("{option}: the VM has no such device {name:?}; it has: {names:?}{}", Remedy(self.remedy()))]
    Unknown {
        /// The option.
        option: &'static str,
        /// The name.
        name: String,
        /// The devices that the option supports.
        names: String,
    },
    /// There is no such network device. Firecracker would make a device without a connection.
    #[error("{vm} has no tap for {device} in the network namespace of its VMM{}", Remedy(self.remedy()))]
    NoTap {
        /// The VM.
        vm: String,
        /// The device.
        device: String,
    },
    /// The part of the host cannot be found.
    #[error("{vm} cannot have {device}{}", Remedy(self.remedy()))]
    NotFound {
        /// The VM.
        vm: String,
        /// The device.
        device: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The name of the VM's file now refers to another file.
    #[error("the VM has not opened the file that is now the one of {device}{}", Remedy(self.remedy()))]
    Replaced {
        /// The device.
        device: String,
    },
    /// Another process has the file open for writing.
    #[error("process {pid} can write the file of {device}{}", Remedy(self.remedy()))]
    Written {
        /// The device.
        device: String,
        /// The process.
        pid: i32,
    },
    /// The file was written to after the VM was saved.
    #[error("the file of {device} was written after the state was saved{}", Remedy(self.remedy()))]
    Changed {
        /// The device.
        device: String,
    },
    /// The VMM was not found among the processes.
    #[error("the process of the VMM cannot be examined")]
    Vmm(#[source] io::Error),
    /// A file for a disk cannot be made.
    #[error("cannot make the disk {}{}", path.display(), Remedy(self.remedy()))]
    Disk {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl DeviceError {
    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Shared { option: Some("--net"), .. } => {
                Some("give each its own tap: --net DEVICE=tap{}")
            }
            Self::Shared { option: Some("--vsock"), .. } => {
                Some("give each its own socket: --vsock vsock-{}.sock")
            }
            Self::Shared { option: Some("--disk"), .. } => {
                Some("give each its own copy: --disk DISK=disk-{}.img")
            }
            Self::Shared { .. } => {
                Some("make the device read-only before the VM is saved, or restore one VM only")
            }
            Self::Unknown { .. } => Some("name devices by their names in GET /vm/config"),
            Self::NoTap { .. } => {
                Some("make it, and connect it: ip tuntap add NAME mode tap; or name another: --net")
            }
            Self::NotFound { .. } => Some("put the file or the folder where the VM had it"),
            Self::Replaced { .. } => Some("give the file that the VM uses its name back"),
            Self::Written { .. } => {
                Some("end that process; while it runs, the file may be that of a later moment")
            }
            Self::Changed { .. } => Some(
                "put the disk of that moment in its place; if it is this disk, and only its time is \
                 newer: touch --reference=STATE DISK",
            ),
            Self::Disk { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                Some("name a file that does not exist")
            }
            Self::Disk { .. } | Self::Vmm(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_refused_device_has_its_remedy_once() {
        let (vm, device) = (|| "child 1".to_owned(), || "disk data (/d)".to_owned());
        let shared = |option| DeviceError::Shared {
            first: "the VM".to_owned(),
            second: vm(),
            device: device(),
            option,
        };
        let (option, name, names) = ("--net", vm(), device());
        for error in [
            shared(None),
            shared(Some("--net")),
            shared(Some("--vsock")),
            shared(Some("--disk")),
            DeviceError::Unknown { option, name, names },
            DeviceError::NoTap { vm: vm(), device: device() },
            DeviceError::NotFound {
                vm: vm(),
                device: device(),
                source: io::ErrorKind::NotFound.into(),
            },
            DeviceError::Replaced { device: device() },
            DeviceError::Written { device: device(), pid: 7 },
            DeviceError::Changed { device: device() },
            DeviceError::Disk { path: "/d".into(), source: io::ErrorKind::AlreadyExists.into() },
        ] {
            let remedy = error.remedy().map(str::to_owned);
            assert!(remedy.is_some(), "{error}");
            prints_remedy_once(error, remedy);
        }
    }
}
