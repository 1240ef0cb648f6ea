//! Listening at a socket, by one process at a time. The name of the socket stays after a process
//! was killed, but its lock does not.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use hugekit_sys::input::path_of;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest number of attempts to lock, and the pause between attempts. A killed process, or a
/// child of it, keeps the lock until the kernel has ended the process.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The highest number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The reason why a process cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another process listens at the socket.
    #[error("another process listens there")]
    InUse,
    /// The lock file belongs to another user, who could hold the lock for ever.
    #[error("{} belongs to user {user}, and the lock of a socket must be of the user who listens", lock.display())]
    OtherUser {
        /// The path of the lock file.
        lock: PathBuf,
        /// The owner of the lock file.
        user: u32,
    },
    /// The socket or its lock cannot be made.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Raises the limit of descriptors of this process as far as permitted, and returns the limit. Each
/// client needs some descriptors.
pub fn raise_descriptor_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.or(current).unwrap_or(u64::MAX)
}

/// The right to listen at a socket: a lock on the file `SOCKET.lock`. The file is never removed,
/// because two processes could lock a removed file and its successor.
#[derive(Debug)]
pub struct SocketLock {
    socket: PathBuf,
    _file: File,
}

impl SocketLock {
    /// Locks the socket of this name. The call tries for two seconds.
    ///
    /// # Errors
    /// [`ListenError`] if another process listens, or if the lock cannot be made.
    pub fn new(socket: &Path) -> Result<Self, ListenError> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = options.custom_flags(flags.bits().cast_signed()).open(&name);
        // In a folder for all users, the kernel lets nobody open another user's file to make it.
        let owner = fs::symlink_metadata(&name).map(|found| found.uid());
        let own = rustix::process::geteuid().as_raw();
        if let Ok(user) = owner
            && user != own
        {
            return Err(ListenError::OtherUser { lock: name.into(), user });
        }
        let file = opened?;
        for _ in 0..LOCK_TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { socket: absolute(socket), _file: file }),
                Err(Errno::WOULDBLOCK) => sleep(LOCK_PAUSE),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        Err(ListenError::InUse)
    }

    /// Returns the name of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// A listening socket. Calls on it do not wait. A drop removes its name.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    lock: SocketLock,
}

impl Listener {
    /// Listens at a socket of this type. `mode` sets the users that may connect. A socket of the
    /// same name that a killed process has left is removed; any other file is not.
    ///
    /// # Errors
    /// The kernel's error if the socket cannot be made, or `AlreadyExists` if another kind of file
    /// has its name.
    pub fn new(lock: SocketLock, kind: SocketType, mode: u32) -> io::Result<Self> {
        let path = lock.socket();
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let listener = Self { socket, lock };
        // No connection is accepted before: the mask of this process decides until then.
        set_mode(listener.lock.socket(), mode)?;
        listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.lock.socket());
    }
}

/// Sets the mode of the socket that was just made, and of no other file that may have its name by
/// now.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = socket.metadata()?;
    if !found.file_type().is_socket() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("another process has replaced the socket"));
    }
    fs::set_permissions(path_of(&socket), fs::Permissions::from_mode(mode))
}

/// Returns the absolute path, so that a socket has one name in all processes, unless that name is
/// too long for a socket.
fn absolute(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let whole = folder.ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    let fits = |path: &PathBuf| SocketAddrUnix::new(path).is_ok();
    whole.filter(fits).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn listen_at(path: &Path) -> Result<Listener, ListenError> {
        Ok(Listener::new(SocketLock::new(path)?, SocketType::STREAM, 0o600)?)
    }

    #[test]
    fn second_process_at_a_socket_is_refused_and_a_later_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let first = listen_at(&path).unwrap();
        assert!(matches!(listen_at(&path), Err(ListenError::InUse)));
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        listen_at(&path).unwrap();
    }

    #[test]
    fn socket_has_one_name_however_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let path = real.join("a.sock");
        assert_eq!(absolute(&real.join("link/a.sock")), path);
        assert_eq!(absolute(&path), path);
        let long = real.join("x".repeat(100));
        assert_eq!(absolute(&long), long);
        let here = std::env::current_dir().unwrap().canonicalize().unwrap().join("a");
        if SocketAddrUnix::new(&here).is_ok() {
            assert_eq!(absolute("a".as_ref()), here);
        }
    }

    #[test]
    fn file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        let Err(ListenError::Io(refused)) = listen_at(&path) else { panic!("it was replaced") };
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
