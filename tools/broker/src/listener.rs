//! The socket: one broker at a path, and no more.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::error::BrokerError;

/// A socket that is listened at. Its name goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Locked as long as the broker lives, however it ends: a name that is there without a lock is left of one that was
    /// killed.
    _lock: OwnedFd,
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The number of attempts to lock a path, and the pause between them.
const LOCK_TRIES: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl Listener {
    /// For users to connect to: for all of them where this is root's, and else for this user.
    pub(crate) fn new(path: &Path) -> Result<Self, BrokerError> {
        let refused = |source: io::Error| BrokerError::Socket { socket: path.to_owned(), source };
        make_folder_of(path).map_err(refused)?;
        let lock = lock(path)?;
        match fs::symlink_metadata(path) {
            Ok(found) if is_socket(&found) => fs::remove_file(path).map_err(refused)?,
            Ok(_) => return Err(refused(io::ErrorKind::AlreadyExists.into())),
            Err(_) => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = || -> Result<OwnedFd, Errno> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        };
        let socket = made().map_err(|errno| refused(errno.into()))?;
        let listener = Self { socket, path: path.to_owned(), _lock: lock };
        let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        // No connection is accepted before: the mask of this process decides until then.
        rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|e| refused(e.into()))?;
        listen(&listener.socket, BACKLOG).map_err(|errno| refused(errno.into()))?;
        Ok(listener)
    }
}

impl Listener {
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The folder of a socket, but not the folders above it: a path with a mistake in it is refused.
fn make_folder_of(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn is_socket(found: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())
}

/// Two brokers that are started at once are told apart by this lock, not by the name of the socket. The file stays: one
/// that was removed could be locked by two.
fn lock(path: &Path) -> Result<OwnedFd, BrokerError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let refused =
        |errno: Errno| BrokerError::Socket { socket: path.to_owned(), source: errno.into() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file =
        rustix::fs::open(Path::new(&name), flags, Mode::from_raw_mode(0o600)).map_err(refused)?;
    // A process that a killed broker was starting has the lock for a moment.
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(refused(errno)),
        }
    }
    Err(BrokerError::Running { socket: path.to_owned() })
}
