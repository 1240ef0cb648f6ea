//! Files that a VMM writes while the VM is paused, and that this process reads. The files are in
//! memory, because Firecracker also syncs them during the pause.
//!
//! The VMM opens the files by a path. A path in this process's `/proc` works if both processes
//! belong to one user and are in the same namespaces. Otherwise a folder is made within the VMM's
//! root, in a tmpfs if there is one, and given to the VMM's user. This is needed for a VMM of
//! another user, in a container, or in a jail.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use hugekit_machine::processes::ProcessFolder;
use rustix::fs::{MemfdFlags, Mode, OFlags, ResolveFlags, memfd_create, openat2};
use rustix::process::{DumpableBehavior, dumpable_behavior};

use crate::checkpoint::error::CheckpointError;
use crate::vmm::hidden::{Hidden, LeftOver, Planned};
use crate::vmm::{Owner, Process};

/// The highest length of a state in bytes. No VM has longer states.
pub(crate) const LONGEST_STATE: u64 = 256 << 20;

pub(crate) const STATE: &str = "vmstate";
pub(crate) const MEMORY: &str = "memory";

/// Folders of the VMM's root in which its user may write. Folders in memory come first.
const FOLDERS: [&str; 5] = ["/dev/shm", "/run", "/tmp", "/var/tmp", "/"];

/// A planned handover of files, before anything is made.
#[derive(Debug)]
pub(crate) enum PlannedHandover {
    Proc,
    Folders { pid: i32, vmm: Owner, planned: Vec<(&'static str, Planned)> },
}

/// The way of the handover.
#[derive(Debug)]
pub(crate) struct Handover(Option<InVmm>);

/// A folder, and its path for the VMM.
#[derive(Debug)]
struct InVmm {
    folder: Hidden,
    path: PathBuf,
}

/// A file in memory, for processes of this user.
#[derive(Debug)]
pub(crate) struct UnnamedFile {
    file: File,
    path: PathBuf,
}

/// A file that the VMM writes.
#[derive(Debug)]
pub(crate) enum HandedFile<'a> {
    Memory(UnnamedFile),
    Folder { folder: &'a Hidden, name: &'static str, path: PathBuf },
}

impl PlannedHandover {
    /// Plans the handover from a VMM.
    ///
    /// # Errors
    /// [`CheckpointError::Handover`] if this process may not see the VMM's root.
    pub(crate) fn of(process: &Process) -> Result<Self, CheckpointError> {
        let pid = process.pid();
        Self::of_folder(process.folder())
            .map_err(|source| CheckpointError::Handover { pid, source })
    }

    fn of_folder(vmm: &ProcessFolder) -> io::Result<Self> {
        let owner = Owner::of(vmm)?;
        if opens_our_proc(vmm, owner) {
            return Ok(Self::Proc);
        }
        let root = vmm.file("root")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = |folder: &&'static str| -> Option<(&'static str, Planned)> {
            let resolve = ResolveFlags::IN_ROOT;
            let opened = openat2(&root, *folder, flags, Mode::empty(), resolve).ok()?;
            Some((folder, Planned::within(opened, "hugekit-checkpoint", &[STATE, MEMORY]).ok()?))
        };
        Ok(Self::Folders {
            pid: vmm.pid(),
            vmm: owner,
            planned: FOLDERS.iter().filter_map(within).collect(),
        })
    }

    pub(crate) fn left_overs(&self) -> io::Result<Vec<LeftOver>> {
        match self {
            Self::Proc => Ok(Vec::new()),
            Self::Folders { planned, .. } => {
                planned.iter().map(|(_, planned)| planned.left_over()).collect()
            }
        }
    }

    /// Makes the folder to which the VMM writes.
    ///
    /// # Errors
    /// [`CheckpointError::Handover`] if no folder can be made.
    pub(crate) fn make(self) -> Result<Handover, CheckpointError> {
        let Self::Folders { pid, vmm, planned } = self else { return Ok(Handover(None)) };
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for (above, planned) in planned {
            let path = Path::new(above).join(planned.name());
            match planned.make().and_then(|folder| given_to(vmm, folder)) {
                Ok(folder) => return Ok(Handover(Some(InVmm { folder, path }))),
                Err(error) => refused = error,
            }
        }
        Err(CheckpointError::Handover { pid, source: refused })
    }
}

fn given_to(owner: Owner, folder: Hidden) -> io::Result<Hidden> {
    owner.give(&folder)?;
    Ok(folder)
}

/// Returns true if a VMM can open descriptors of this process by `/proc`. Another user may not, and
/// in other namespaces the path has another meaning.
fn opens_our_proc(vmm: &ProcessFolder, owner: Owner) -> bool {
    let own = ProcessFolder::own();
    let is_ours = |name: &str| {
        let own = own.as_ref().ok().and_then(|own| own.link(name).ok());
        own.is_some_and(|own| vmm.link(name).is_ok_and(|link| link == own))
    };
    let root = |path: &str| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    owner == Owner::of_this_process()
        && dumpable_behavior() == Ok(DumpableBehavior::Dumpable)
        && ["ns/user", "ns/pid", "ns/mnt"].into_iter().all(is_ours)
        && root("/").is_some_and(|own| root(&format!("/proc/{}/root/", vmm.pid())) == Some(own))
}

impl Handover {
    /// Makes an empty file.
    pub(crate) fn file(&self, name: &'static str) -> io::Result<HandedFile<'_>> {
        match &self.0 {
            None => Ok(HandedFile::Memory(UnnamedFile::new()?)),
            Some(InVmm { folder, path }) => {
                Ok(HandedFile::Folder { folder, name, path: path.join(name) })
            }
        }
    }
}

impl UnnamedFile {
    pub(crate) fn new() -> io::Result<Self> {
        let file = File::from(memfd_create(c"hugekit-checkpoint", MemfdFlags::CLOEXEC)?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        Ok(Self { file, path })
    }

    /// Returns the path by which other processes open the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes to the empty file.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)
    }
}

impl HandedFile<'_> {
    /// Returns the path by which the VMM opens the file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Memory(file) => file.path(),
            Self::Folder { path, .. } => path,
        }
    }

    /// Opens the file for reading.
    pub(crate) fn open(&self) -> io::Result<File> {
        match self {
            Self::Memory(UnnamedFile { file, .. }) => file.try_clone(),
            Self::Folder { folder, name, .. } => folder.open(name),
        }
    }

    fn len(&self) -> u64 {
        let found = match self {
            Self::Memory(UnnamedFile { file, .. }) => file.metadata(),
            Self::Folder { .. } => self.open().and_then(|file| file.metadata()),
        };
        found.map_or(0, |found| found.len())
    }

    /// Returns true if the VMM has begun to write. It has then saved the state of all devices.
    pub(crate) fn is_begun(&self) -> bool {
        self.len() > 0
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        match self {
            Self::Memory(UnnamedFile { file, .. }) => file.set_len(0),
            Self::Folder { folder, name, .. } => {
                folder.remove(name);
                Ok(())
            }
        }
    }

    /// Returns all bytes, if they are a complete state.
    pub(crate) fn whole_state(
        &self,
        is_whole: impl FnOnce(&[u8]) -> bool,
    ) -> Result<Vec<u8>, CheckpointError> {
        let unreadable = |_| CheckpointError::StateFile;
        let file = self.open().map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        if len > LONGEST_STATE {
            return Err(CheckpointError::StateFile);
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).map_err(unreadable)?;
        if is_whole(&bytes) { Ok(bytes) } else { Err(CheckpointError::StateFile) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(state: &[u8]) -> bool {
        state == b"a state"
    }

    #[test]
    fn state_is_whole_with_its_checksum_only() {
        let state = HandedFile::Memory(UnnamedFile::new().unwrap());
        assert!(state.whole_state(is_whole).is_err() && !state.is_begun());
        let bytes = b"a state".to_vec();
        std::fs::write(state.path(), &bytes[1..]).unwrap();
        assert!(state.whole_state(is_whole).is_err() && state.is_begun());
        std::fs::write(state.path(), &bytes).unwrap();
        assert_eq!(state.whole_state(is_whole).unwrap(), bytes);
        state.clear().unwrap();
        assert!(state.whole_state(is_whole).is_err());
    }

    #[test]
    fn file_in_a_folder_is_read_as_one_in_memory_and_a_link_is_not() {
        let above = tempfile::tempdir().unwrap();
        let planned = Planned::new(above.path(), "hugekit-test", &[STATE]).unwrap();
        let name = planned.name().to_str().unwrap().to_owned();
        let path = above.path().join(name);
        let folder = planned.make().unwrap();
        let handover = Handover(Some(InVmm { folder, path: path.clone() }));
        let state = handover.file(STATE).unwrap();
        assert_eq!(state.path(), path.join(STATE));
        assert!(!state.is_begun() && state.whole_state(is_whole).is_err());
        let bytes = b"a state".to_vec();
        std::fs::write(state.path(), &bytes).unwrap();
        assert_eq!(state.whole_state(is_whole).unwrap(), bytes);
        state.clear().unwrap();
        std::os::unix::fs::symlink("/etc/hostname", state.path()).unwrap();
        assert!(!state.is_begun() && state.whole_state(is_whole).is_err());
        drop(handover);
        assert!(!path.exists());
    }

    #[test]
    fn this_process_opens_its_own_proc() {
        let own = ProcessFolder::own().unwrap();
        assert!(opens_our_proc(&own, Owner::of(&own).unwrap()));
        assert!(!opens_our_proc(&own, Owner::of_nobody()));
    }
}
