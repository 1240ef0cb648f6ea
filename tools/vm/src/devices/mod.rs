//! Devices of a VM that use a part of the host: a tap, a socket, a file. Two VMs that use the same
//! part disturb each other, and a disk that both write is destroyed. So each clone or child gets
//! parts of its own, or is refused before a clone runs.

mod error;
mod host;
mod new_disks;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use error::DeviceError;
pub(crate) use host::{Host, Savepoint, check};
pub(crate) use new_disks::{DisksInPause, NewDisks};

/// A device, and the VMM's name for its part of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Net {
        id: String,
        tap: String,
    },
    /// The VMM makes the socket.
    Vsock {
        socket: PathBuf,
    },
    /// Another file can replace this file while the VM is paused.
    Disk {
        id: String,
        file: PathBuf,
        is_written: bool,
    },
    /// Persistent memory, whose file cannot be replaced.
    Pmem {
        id: String,
        file: PathBuf,
        is_written: bool,
    },
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net { id, tap } => write!(f, "network device {id} ({tap})"),
            Self::Vsock { socket } => write!(f, "the vsock ({})", socket.display()),
            Self::Disk { id, file, .. } => write!(f, "disk {id} ({})", file.display()),
            Self::Pmem { id, file, .. } => write!(f, "persistent memory {id} ({})", file.display()),
        }
    }
}

impl Device {
    /// Returns true if the VM writes to a file.
    pub(crate) fn has_written_file(&self) -> bool {
        match self {
            Self::Disk { is_written, .. } | Self::Pmem { is_written, .. } => *is_written,
            Self::Net { .. } | Self::Vsock { .. } => false,
        }
    }
}

/// Parts of the host for a clone or a child, instead of its VM's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnDevices {
    /// The tap for each network device, by the device's name in the VM's configuration. The tap
    /// must exist.
    pub net: BTreeMap<String, String>,
    /// The socket of the vsock device, which must not exist yet.
    pub vsock: Option<PathBuf>,
    /// The new file for each disk that the VM writes, by the disk's name. The file becomes a copy
    /// of the VM's disk, and shares blocks with it if the file system supports this.
    pub disks: BTreeMap<String, PathBuf>,
}

impl OwnDevices {
    /// Returns the device with its own part of the host, if there is one.
    pub(crate) fn in_place_of(&self, device: &Device) -> Device {
        let mut own = device.clone();
        match &mut own {
            Device::Net { id, tap } => {
                if let Some(own) = self.net.get(id) {
                    tap.clone_from(own);
                }
            }
            Device::Vsock { socket } => {
                if let Some(own) = &self.vsock {
                    socket.clone_from(own);
                }
            }
            Device::Disk { .. } | Device::Pmem { .. } => {}
        }
        own
    }

    /// Checks that the VM has each named device.
    pub(crate) fn check_names(&self, devices: &[Device]) -> Result<(), DeviceError> {
        let check = |option, wanted: &str, names: &[&str]| match names.contains(&wanted) {
            true => Ok(()),
            false => {
                let names = names.join(", ");
                Err(DeviceError::Unknown { option, name: wanted.to_owned(), names })
            }
        };
        let names = |name: fn(&Device) -> Option<&str>| devices.iter().filter_map(name).collect();
        let (nets, disks): (Vec<_>, Vec<_>) = (names(net_name), names(disk_name));
        self.net.keys().try_for_each(|id| check("--net", id, &nets))?;
        self.disks.keys().try_for_each(|id| check("--disk", id, &disks))?;
        let has_vsock = devices.iter().any(|device| matches!(device, Device::Vsock { .. }));
        match &self.vsock {
            Some(socket) if !has_vsock => {
                let name = socket.display().to_string();
                Err(DeviceError::Unknown { option: "--vsock", name, names: String::new() })
            }
            _ => Ok(()),
        }
    }
}

fn net_name(device: &Device) -> Option<&str> {
    match device {
        Device::Net { id, .. } => Some(id),
        _ => None,
    }
}

/// Returns the name of a disk that must be copied. A disk that the VM only reads needs no copy.
fn disk_name(device: &Device) -> Option<&str> {
    match device {
        Device::Disk { id, is_written: true, .. } => Some(id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_vm_has_not_are_refused_with_those_that_it_has() {
        let disk =
            |id: &str, is_written| Device::Disk { id: id.into(), file: "/d".into(), is_written };
        let net = Device::Net { id: "eth0".into(), tap: "tap0".into() };
        let devices = [disk("root", false), disk("data", true), net.clone()];
        let own = |net: &str, disk: &str| OwnDevices {
            net: [(net.to_owned(), "tap1".to_owned())].into(),
            disks: [(disk.to_owned(), "/e".into())].into(),
            ..OwnDevices::default()
        };
        own("eth0", "data").check_names(&devices).unwrap();
        let refused = |own: OwnDevices| own.check_names(&devices).unwrap_err().to_string();
        assert!(refused(own("eth1", "data")).contains("eth0"));
        // It is read only.
        assert!(refused(own("eth0", "root")).contains("data"));
        let vsock = OwnDevices { vsock: Some("/v".into()), ..OwnDevices::default() };
        assert!(refused(vsock).contains("--vsock"));
        let placed = own("eth0", "data").in_place_of(&net);
        assert_eq!(placed, Device::Net { id: "eth0".into(), tap: "tap1".into() });
    }
}
