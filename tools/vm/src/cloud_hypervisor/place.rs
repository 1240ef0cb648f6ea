//! A folder that this process and the VMM both reach, perhaps by different paths, because the VMM
//! may have another root or other mounts.
//!
//! The VMM listens in this folder during the restore. For a clone of an image, the folder also
//! contains a *link*: a symbolic link that the VM's configuration names as the file of its memory.
//! During the restore the link leads to the image. After it, the link leads to `/dev/zero`, so a
//! reboot finds the same memory as a new VM.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use hugekit_sys::input::path_of;
use libc::ucred;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, openat2,
    readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::vmm::hidden::{Hidden, Planned, unguessable};

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Folders in which each user may make a folder.
const OF_ALL: [&str; 2] = ["/tmp", "/var/tmp"];

/// The longest path of a socket, because `sun_path` ends with a zero byte.
const LONGEST_SOCKET: usize = 107;

/// The common folder.
#[derive(Debug)]
pub(crate) struct Place {
    folder: OwnedFd,
    /// The path of the folder for the VMM.
    path: PathBuf,
    /// Set if the folder was made for this restore. It is then removed with it, unless a link stays
    /// in it.
    _made: Option<Hidden>,
}

impl Place {
    /// Returns the folder of the VMM's API, if the VMM reaches it by a known path.
    pub(crate) fn of_api(api: &Path, vmm: Option<ucred>) -> io::Result<Option<Self>> {
        let folder = folder_of(api)?;
        let here = open(CWD, &folder, ResolveFlags::empty())?;
        let Some(root) = root_of(vmm) else {
            return Ok(Some(Self { folder: here, path: folder, _made: None }));
        };
        let own = fstat(&here)?;
        let is_this = |path: &PathBuf| {
            let there = open(root.as_fd(), path, ResolveFlags::IN_ROOT).and_then(fstat);
            there.is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino))
        };
        let paths = [Some(folder.clone()), below_a_root(&folder)];
        let path = paths.into_iter().flatten().find(is_this);
        Ok(path.map(|path| Self { folder: here, path, _made: None }))
    }

    /// Makes a folder that belongs to the VMM's user, at a path that the VMM reaches.
    pub(crate) fn new(vmm: Option<ucred>) -> io::Result<Self> {
        let root = root_of(vmm);
        let mut refused = io::Error::from(Errno::NOENT);
        for parent in OF_ALL {
            let opened = match &root {
                Some(root) => open(root.as_fd(), Path::new(parent), ResolveFlags::IN_ROOT),
                None => open(CWD, Path::new(parent), ResolveFlags::empty()),
            };
            match opened
                .map_err(io::Error::from)
                .and_then(|folder| Self::made_in(folder, parent, vmm))
            {
                Ok(made) => return Ok(made),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn made_in(parent: OwnedFd, path: &str, vmm: Option<ucred>) -> io::Result<Self> {
        let planned = Planned::within(parent, "hugekit-restore", &[])?;
        let path = Path::new(path).join(planned.name());
        let made = planned.make()?;
        if let Some(vmm) = vmm.filter(|_| geteuid().is_root()) {
            give(made.as_fd(), OsStr::new(""), vmm)?;
        }
        Ok(Self { folder: made.as_fd().try_clone_to_owned()?, path, _made: Some(made) })
    }

    /// Returns the path of the folder, or of a name in the folder, for the VMM.
    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a short path for this process.
    pub(crate) fn path_here(&self, name: &OsStr) -> PathBuf {
        short(self.folder.as_fd(), name)
    }

    /// Returns true if the VMM can listen at this name.
    pub(crate) fn fits(&self, name: &OsStr) -> bool {
        self.path_of(name).as_os_str().len() <= LONGEST_SOCKET
    }

    pub(crate) fn remove(&self, name: &OsStr) {
        let _ = unlinkat(&self.folder, name, AtFlags::empty());
    }
}

/// A name in a place at which the VMM finds the image, and later empty memory.
#[derive(Debug)]
pub(crate) struct Link<'a> {
    place: &'a Place,
    name: OsString,
    is_kept: bool,
}

impl<'a> Link<'a> {
    /// The memory of a new VM, if the VMM maps it privately.
    pub(crate) const EMPTY: &'static str = "/dev/zero";

    /// Makes the link of the VMM with this API. A link that an earlier VMM has left is used again.
    pub(crate) fn new(place: &'a Place, api: &Path) -> io::Result<Self> {
        let mut name = api.file_name().unwrap_or(OsStr::new("api")).to_owned();
        name.push(".memory");
        match readlinkat(&place.folder, &name, Vec::new()) {
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let link = Self { place, name, is_kept: false };
        // Whether links can be made here shows before the VMM is asked.
        link.lead_to(Path::new(Self::EMPTY), None)?;
        Ok(link)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.place.path_of(&self.name)
    }

    /// Changes the target of the link atomically. Root gives the link to the VMM's user, because in
    /// `/tmp` this user could not follow it otherwise.
    pub(crate) fn lead_to(&self, target: &Path, vmm: Option<ucred>) -> io::Result<()> {
        let new = OsString::from(format!(".hk-{}", unguessable()?));
        symlinkat(target, &self.place.folder, &new)?;
        let given = match vmm.filter(|_| geteuid().is_root()) {
            Some(vmm) => give(self.place.folder.as_fd(), &new, vmm),
            None => Ok(()),
        };
        let moved = given
            .and_then(|()| Ok(renameat(&self.place.folder, &new, &self.place.folder, &self.name)?));
        moved.inspect_err(|_| self.place.remove(&new))
    }

    /// Keeps the link as long as the VMM may need it. Returns its path.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path()
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.place.remove(&self.name);
        }
    }
}

/// Returns a path by which this process connects to a socket whose path may be too long for
/// `sun_path`. The returned folder must stay open.
pub(crate) fn connectable(socket: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    if socket.as_os_str().len() <= LONGEST_SOCKET {
        return Ok((socket.to_owned(), None));
    }
    let folder = open(CWD, &folder_of(socket)?, ResolveFlags::empty())?;
    let name = socket.file_name().ok_or(Errno::INVAL)?;
    Ok((short(folder.as_fd(), name), Some(folder)))
}

/// Returns the path at which a process opens its own descriptor of the file that `file` is.
pub(crate) fn own_path(pid: i32, file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let own = fstat(file)?;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let there = statat(CWD, entry.path(), AtFlags::empty());
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)) {
            return Ok(Path::new("/proc/self/fd").join(entry.file_name()));
        }
    }
    Err(Errno::NOENT.into())
}

/// Returns true if a process finds `/dev/zero`. A root of its own may lack it.
pub(crate) fn has_empty_memory(vmm: Option<ucred>) -> bool {
    let Some(root) = root_of(vmm) else { return true };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = openat2(root, Link::EMPTY, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let found = opened.and_then(fstat);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice)
}

fn short(folder: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    Path::new(&path_of(folder)).join(name)
}

fn folder_of(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    Ok(path.parent().ok_or(Errno::INVAL)?.to_owned())
}

fn open(at: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    openat2(at, path, FOLDER, Mode::empty(), resolve)
}

/// Returns the root of the process that listens at the API. `None` if the root is not known.
/// Reasons are: another process, which has ended, passed the socket on; the process belongs to a
/// user whose files are not visible; or it is in a PID namespace in which it has no number for this
/// process.
fn root_of(vmm: Option<ucred>) -> Option<OwnedFd> {
    let pid = vmm?.pid;
    open(CWD, Path::new(&format!("/proc/{pid}/root")), ResolveFlags::empty()).ok()
}

/// Returns the rest of a path such as `/proc/7/root/run`, by which a process reaches another root.
fn below_a_root(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components();
    let words: Vec<_> = parts.by_ref().take(4).collect();
    let is_root =
        words.len() == 4 && words[1].as_os_str() == "proc" && words[3].as_os_str() == "root";
    is_root.then(|| [Component::RootDir].into_iter().chain(parts).collect())
}

fn give(folder: BorrowedFd<'_>, name: &OsStr, vmm: ucred) -> io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let (user, group) = (Uid::from_raw(vmm.uid), Gid::from_raw(vmm.gid));
    Ok(chownat(folder, name, Some(user), Some(group), flags)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use hugekit_sys::seqpacket::peer;

    use super::*;

    /// Returns the credentials of this process, as of a VMM.
    fn own() -> Option<ucred> {
        let (one, _other) = UnixStream::pair().unwrap();
        Some(peer(one).unwrap())
    }

    #[test]
    fn socket_with_a_long_path_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let place = Place::of_api(&deep.join("api"), own()).unwrap().unwrap();
        let _listener = UnixListener::bind(place.path_here(OsStr::new("api"))).unwrap();
        assert!(UnixStream::connect(deep.join("api")).is_err());
        let (path, _folder) = connectable(&deep.join("api")).unwrap();
        UnixStream::connect(path).unwrap();
        assert!(!place.fits(OsStr::new("s")));
        let other = Place::new(own()).unwrap();
        assert!(other.fits(OsStr::new("s")));
        let path = other.path().to_owned();
        assert!(path.is_dir());
        drop(other);
        assert!(!path.exists());
    }

    #[test]
    fn link_leads_to_the_image_and_then_to_empty_memory() {
        let folder = tempfile::tempdir().unwrap();
        let api = folder.path().join("api");
        let place = Place::of_api(&api, None).unwrap().unwrap();
        let path = folder.path().join("api.memory");
        let link = Link::new(&place, &api).unwrap();
        assert_eq!(link.path(), path);
        link.lead_to(Path::new("/proc/self/fd/7"), own()).unwrap();
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("/proc/self/fd/7"));
        drop(link);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        Link::new(&place, &api).unwrap().keep();
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new(Link::EMPTY));
        Link::new(&place, &api).unwrap().keep();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "of a user").unwrap();
        Link::new(&place, &api).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"of a user");
    }

    #[test]
    fn descriptor_of_another_process_is_found_by_its_file() {
        let file = tempfile::tempfile().unwrap();
        let path = own_path(std::process::id() as i32, file.as_fd()).unwrap();
        assert_eq!(path, Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
        let closed = tempfile::tempdir().unwrap();
        let closed = std::fs::File::create_new(closed.path().join("f")).unwrap();
        own_path(1, closed.as_fd()).unwrap_err();
    }

    #[test]
    fn paths_below_another_root_are_the_vmms_own() {
        let rest = |path| below_a_root(Path::new(path));
        assert_eq!(rest("/proc/7/root/run/vm"), Some("/run/vm".into()));
        assert_eq!(rest("/proc/7/root"), Some("/".into()));
        assert_eq!((rest("/proc/7/cwd/run"), rest("/run/vm")), (None, None));
    }
}
