//! The parts of the host that VMs use, identified independently of their names: VMMs may be in
//! other namespaces, and a file may have several names.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hugekit_machine::Root;
use hugekit_machine::processes::{self, ProcessFolder};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};

use crate::devices::{Device, DeviceError, OwnDevices};
use crate::vmm::Owner;

/// A part of the host that only one VM may use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// A tap in a network namespace.
    Tap { network: OsString, name: String },
    /// A socket in a folder, identified by the folder's device and inode.
    Socket { folder: (u64, u64), name: OsString },
    /// A file, identified by its device and inode.
    File(u64, u64),
    /// A block device, identified by its number.
    BlockDevice(u64),
}

impl Part {
    fn of_file(found: &Metadata) -> Self {
        match found.file_type().is_block_device() {
            true => Self::BlockDevice(found.rdev()),
            false => Self::File(found.dev(), found.ino()),
        }
    }
}

/// A VMM, and the network that it saw before it got a VM. (Firecracker makes a missing tap.)
#[derive(Debug)]
pub(crate) struct Host {
    /// The name of the VM in errors.
    name: String,
    process: ProcessFolder,
    network: OsString,
    /// `None` if this process may not see the taps.
    taps: Option<Vec<String>>,
}

/// The moment at which a VM was saved. Its disks must be of the same moment.
#[derive(Debug)]
pub(crate) struct Savepoint {
    /// The time of the state file.
    pub(crate) saved: SystemTime,
}

impl Host {
    pub(crate) fn of(name: String, vmm: i32) -> io::Result<Self> {
        let process = ProcessFolder::open(vmm)?;
        let network = process.link("ns/net").unwrap_or_default();
        let taps = process.read("net/dev").ok().map(|text| interfaces(&text));
        Ok(Self { name, process, network, taps })
    }

    /// Returns the user as whom the VMM opens files.
    pub(crate) fn owner(&self) -> io::Result<Owner> {
        Owner::of(&self.process)
    }

    /// Opens a path as the VMM would.
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        if path.is_absolute() {
            let root = self.process.file("root")?;
            return Ok(openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?.into());
        }
        let folder = self.process.file("cwd")?;
        Ok(openat(folder, path, flags, Mode::empty())?.into())
    }

    fn part(&self, device: &Device) -> io::Result<Part> {
        match device {
            Device::Net { tap, .. } => {
                Ok(Part::Tap { network: self.network.clone(), name: tap.clone() })
            }
            Device::Vsock { socket } => {
                let folder = match socket.parent() {
                    Some(above) if !above.as_os_str().is_empty() => above,
                    _ => Path::new("."),
                };
                let folder = self.open(folder, OFlags::PATH)?.metadata()?;
                let name = socket.file_name().unwrap_or(OsStr::new("")).to_owned();
                Ok(Part::Socket { folder: (folder.dev(), folder.ino()), name })
            }
            Device::Disk { file, .. } | Device::Pmem { file, .. } => {
                Ok(Part::of_file(&self.open(file, OFlags::PATH)?.metadata()?))
            }
        }
    }

    fn not_found(&self, device: &Device, source: io::Error) -> DeviceError {
        DeviceError::NotFound { vm: self.name.clone(), device: device.to_string(), source }
    }

    /// Opens the file of a device for reading, by its name.
    pub(crate) fn file_named(&self, device: &Device) -> Result<File, DeviceError> {
        let (Device::Vsock { socket: path }
        | Device::Disk { file: path, .. }
        | Device::Pmem { file: path, .. }) = device
        else {
            return Err(self.not_found(device, io::ErrorKind::InvalidInput.into()));
        };
        self.open(path, OFlags::NONBLOCK).map_err(|source| self.not_found(device, source))
    }

    /// Opens the file that the VMM has open for a disk, for reading.
    ///
    /// # Errors
    /// [`DeviceError::Replaced`] if the disk's name refers to another file.
    pub(crate) fn file_in_use(&self, disk: &Device) -> Result<File, DeviceError> {
        let opened = || {
            let part = self.part(disk)?;
            let is = |&number: &i32| {
                let found = std::fs::metadata(self.descriptor(number));
                found.is_ok_and(|found| Part::of_file(&found) == part)
            };
            Ok(self.process.numbers("fd")?.iter().any(is).then_some(part))
        };
        let opened = opened().map_err(|source| self.not_found(disk, source))?;
        let named = self.file_named(disk)?;
        let found = named.metadata().map_err(|source| self.not_found(disk, source))?;
        if opened == Some(Part::of_file(&found)) {
            return Ok(named);
        }
        Err(DeviceError::Replaced { device: disk.to_string() })
    }

    fn descriptor(&self, number: i32) -> PathBuf {
        format!("/proc/{}/fd/{number}", self.process.pid()).into()
    }

    /// Checks that a path refers to this file for the VMM, too.
    pub(crate) fn check_sees(&self, path: &Path, file: &File) -> io::Result<()> {
        let seen = Part::of_file(&self.open(path, OFlags::PATH)?.metadata()?);
        if seen == Part::of_file(&file.metadata()?) {
            return Ok(());
        }
        Err(io::Error::other("its VMM has other mounts or another root, and opens another file"))
    }

    /// Checks that a file that the VM writes has not changed since the VM was saved, and that no
    /// other process writes to it.
    pub(crate) fn check_saved(&self, device: &Device, at: &Savepoint) -> Result<(), DeviceError> {
        let unreadable = |source| self.not_found(device, source);
        let found = self.file_named(device)?.metadata().map_err(unreadable)?;
        if let Some(pid) = writer(&Part::of_file(&found), self.process.pid()) {
            return Err(DeviceError::Written { device: device.to_string(), pid });
        }
        let written = found.modified().map_err(unreadable)?;
        if found.is_file() && written > at.saved {
            return Err(DeviceError::Changed { device: device.to_string() });
        }
        Ok(())
    }

    fn check_tap(&self, device: &Device) -> Result<(), DeviceError> {
        match (device, &self.taps) {
            (Device::Net { tap, .. }, Some(taps)) if !taps.contains(tap) => {
                Err(DeviceError::NoTap { vm: self.name.clone(), device: device.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// Checks that no two VMs use the same part of the host. The VMs are the `children`, with these
/// devices or their own, and the `parent`, if it continues to run.
pub(crate) fn check<'a>(
    devices: &[Device],
    parent: Option<&'a Host>,
    children: impl Iterator<Item = (&'a OwnDevices, &'a Host)>,
) -> Result<(), DeviceError> {
    let mut used: Vec<(Part, &Host)> = Vec::new();
    if let Some(parent) = parent {
        for device in devices.iter().filter(|device| is_alone(device)) {
            used.push((
                parent.part(device).map_err(|source| parent.not_found(device, source))?,
                parent,
            ));
        }
        // Children open the file by its name.
        let files = devices.iter().filter(|device| matches!(device, Device::Disk { .. }));
        files.map(|device| parent.file_in_use(device)).try_for_each(|file| file.map(drop))?;
    }
    for (own, host) in children {
        own.check_names(devices)?;
        for device in devices {
            let device = &own.in_place_of(device);
            host.check_tap(device)?;
            let part = host.part(device).map_err(|source| host.not_found(device, source))?;
            let is_copied = matches!(device, Device::Disk { id, .. } if own.disks.contains_key(id));
            if is_copied || !is_alone(device) {
                continue;
            }
            if let Some((_, first)) = used.iter().find(|(used, _)| *used == part) {
                return Err(shared(first, host, device));
            }
            used.push((part, host));
        }
    }
    Ok(())
}

fn shared(first: &Host, second: &Host, device: &Device) -> DeviceError {
    let option = match device {
        Device::Net { .. } => Some("--net"),
        Device::Vsock { .. } => Some("--vsock"),
        Device::Disk { .. } => Some("--disk"),
        Device::Pmem { .. } => None,
    };
    let (first, second) = (first.name.clone(), second.name.clone());
    DeviceError::Shared { first, second, device: device.to_string(), option }
}

/// Returns true if only one VM may use the part of the host of a device.
fn is_alone(device: &Device) -> bool {
    matches!(device, Device::Net { .. } | Device::Vsock { .. }) || device.has_written_file()
}

/// Returns the names in `/proc/PID/net/dev`, which has two lines of headings and then `NAME:
/// FIGURES`.
fn interfaces(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
    text.lines().skip(2).filter_map(name).collect()
}

/// Returns a process other than `except` that has a file open for writing. Processes that this
/// process may not inspect are left out.
fn writer(part: &Part, except: i32) -> Option<i32> {
    let all = processes::numbers(&Root::default()).unwrap_or_default();
    let own = std::process::id() as i32;
    let writes = |&pid: &i32| {
        let Ok(process) = ProcessFolder::open(pid) else { return false };
        let numbers = process.numbers("fd").unwrap_or_default();
        let is_written = |number: i32| {
            let found = std::fs::metadata(format!("/proc/{pid}/fd/{number}"));
            found.is_ok_and(|found| Part::of_file(&found) == *part)
                && process.read(&format!("fdinfo/{number}")).is_ok_and(|info| is_for_writing(&info))
        };
        numbers.into_iter().any(is_written)
    };
    all.into_iter().filter(|&pid| pid != except && pid != own).find(writes)
}

/// Returns true if a descriptor is open for writing. The last two bits in the line `flags:\tOCTAL`
/// are the mode of access.
fn is_for_writing(info: &[u8]) -> bool {
    let text = String::from_utf8_lossy(info);
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use super::*;

    fn own(name: &str) -> Host {
        Host::of(name.to_owned(), std::process::id() as i32).unwrap()
    }

    fn disk(file: &Path, is_written: bool) -> Device {
        Device::Disk { id: "data".to_owned(), file: file.to_owned(), is_written }
    }

    #[test]
    fn file_with_two_names_is_one_and_may_be_read_by_two() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        fs::write(&one, "x").unwrap();
        fs::hard_link(&one, &other).unwrap();
        let (first, second, none) = (own("child 1"), own("child 2"), OwnDevices::default());
        let both = || [(&none, &first), (&none, &second)].into_iter();
        check(&[disk(&one, false)], None, both()).unwrap();
        let refused = check(&[disk(&one, true)], None, both()).unwrap_err();
        let names = matches!(&refused, DeviceError::Shared { first, second, option: Some("--disk"), .. }
            if first == "child 1" && second == "child 2");
        assert!(names, "{refused}");
        let part = |path: &Path| first.part(&disk(path, true)).unwrap();
        assert_eq!(part(&one), part(&other));
        let copied =
            OwnDevices { disks: [("data".to_owned(), other.clone())].into(), ..none.clone() };
        check(&[disk(&one, true)], None, [(&copied, &first), (&copied, &second)].into_iter())
            .unwrap();
        let gone = check(&[disk(&folder.path().join("gone"), false)], None, both()).unwrap_err();
        assert!(matches!(gone, DeviceError::NotFound { .. }), "{gone}");
    }

    #[test]
    fn sockets_in_one_folder_are_one_if_their_names_are() {
        let folder = tempfile::tempdir().unwrap();
        let vsock = |name: &str| Device::Vsock { socket: folder.path().join(name) };
        let (first, second) = (own("the VM"), own("child 1"));
        let with = |name: &str| OwnDevices {
            vsock: Some(folder.path().join(name)),
            ..OwnDevices::default()
        };
        let refused = check(&[vsock("v")], Some(&first), [(&with("v"), &second)].into_iter());
        assert!(matches!(refused, Err(DeviceError::Shared { option: Some("--vsock"), .. })));
        check(&[vsock("v")], Some(&first), [(&with("w"), &second)].into_iter()).unwrap();
    }

    #[test]
    fn tap_that_is_missing_is_named() {
        let (host, none) = (own("child 1"), OwnDevices::default());
        let net = |tap: &str| [Device::Net { id: "eth0".to_owned(), tap: tap.to_owned() }];
        check(&net("lo"), None, [(&none, &host)].into_iter()).unwrap();
        let refused = check(&net("no-such-tap"), None, [(&none, &host)].into_iter()).unwrap_err();
        assert!(matches!(&refused, DeviceError::NoTap { .. }), "{refused}");
        assert!(refused.to_string().contains("no-such-tap"));
        let twice = check(&net("lo"), None, [(&none, &host), (&none, &own("child 2"))].into_iter());
        assert!(matches!(twice, Err(DeviceError::Shared { option: Some("--net"), .. })));
        assert_eq!(interfaces(b"a\nb\n  lo: 1 2\n tap0:3\n"), ["lo", "tap0"]);
    }

    #[test]
    fn disk_that_was_written_or_replaced_since_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::write(&path, "x").unwrap();
        let opened = File::options().write(true).open(&path).unwrap();
        let (host, device) = (own("clone 1"), disk(&path, true));
        let written = opened.metadata().unwrap().modified().unwrap();
        let earlier = written - std::time::Duration::from_nanos(1);
        host.check_saved(&device, &Savepoint { saved: written }).unwrap();
        let refused = host.check_saved(&device, &Savepoint { saved: earlier });
        assert!(matches!(refused, Err(DeviceError::Changed { .. })), "{refused:?}");
        host.check_sees(&path, &opened).unwrap();
        host.file_in_use(&device).unwrap();
        assert!(host.check_sees(folder.path(), &opened).is_err());
        // Another process has it as its standard output.
        let mut other = Command::new("sleep")
            .arg("60")
            .stdout(opened.try_clone().unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let refused = host.check_saved(&device, &Savepoint { saved: written });
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(
            matches!(refused, Err(DeviceError::Written { pid, .. }) if pid == other.id() as i32)
        );
        fs::rename(&path, folder.path().join("moved")).unwrap();
        fs::write(&path, "x").unwrap();
        assert!(matches!(host.file_in_use(&device), Err(DeviceError::Replaced { .. })));
    }
}
