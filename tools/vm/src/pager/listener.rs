//! The socket: one pager at a path, and no more. Its name outlives a pager that is killed, and its
//! lock does not.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::pager::error::PagerError;

/// How often, and how far apart, the lock is tried: a pager that was killed has it until the kernel
/// has ended it.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    lock: Lock,
}

impl Listener {
    /// For this user's VMMs; with `for_others` any user can connect, and is told apart then.
    pub(crate) fn new(lock: Lock, for_others: bool) -> Result<Self, PagerError> {
        let path = lock.socket();
        let refused = |source: io::Error| PagerError::Socket { socket: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path).map_err(refused)?,
            Ok(_) => return Err(refused(io::ErrorKind::AlreadyExists.into())),
            Err(_) => {}
        }
        let socket = UnixListener::bind(path).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let mode = if for_others { 0o666 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(refused)?;
        Ok(Self { socket, lock })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next connection; `None` if there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((connection, _)) => Ok(Some(connection)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.lock.socket());
    }
}

/// The right to listen at a socket. No other pager does.
#[derive(Debug)]
pub(crate) struct Lock {
    socket: PathBuf,
    _file: File,
}

impl Lock {
    pub(crate) fn new(socket: &Path) -> Result<Self, PagerError> {
        let refused = |source| PagerError::Socket { socket: socket.to_owned(), source };
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&name).map_err(refused)?;
        for _ in 0..LOCK_TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { socket: absolute(socket), _file: file }),
                Err(Errno::WOULDBLOCK) => sleep(LOCK_PAUSE),
                Err(errno) => return Err(refused(errno.into())),
            }
        }
        Err(PagerError::Running { socket: socket.to_owned() })
    }

    /// The name that the socket is bound to.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

/// The same socket has one name in all pagers, unless that is too long for a socket.
fn absolute(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let whole = folder.ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    let fits = |path: &PathBuf| SocketAddrUnix::new(path).is_ok();
    whole.filter(fits).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_pager_at_a_socket_is_refused_and_a_later_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pager.sock");
        let listen = || Listener::new(Lock::new(&path)?, false);
        let first = listen().unwrap();
        assert!(matches!(listen(), Err(PagerError::Running { .. })));
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        listen().unwrap();
    }

    #[test]
    fn socket_has_one_name_however_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let path = real.join("pager.sock");
        assert_eq!(absolute(&real.join("link/pager.sock")), path);
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
        let refused = Listener::new(Lock::new(&path).unwrap(), false);
        assert!(matches!(refused, Err(PagerError::Socket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
