//! The broker's socket, and its folder.

use std::fs;
use std::io;
use std::path::Path;

use hugekit_daemon::{ListenError, Listener, SocketLock};
use rustix::net::SocketType;

use crate::error::BrokerError;

/// Listens for users that may connect: for all users if the broker is root's, otherwise only for
/// its own user.
pub(crate) fn listen_at(socket: &Path) -> Result<Listener, BrokerError> {
    let refused = |source| BrokerError::Socket { socket: socket.to_owned(), source };
    make_folder_of(socket).map_err(refused)?;
    let lock = SocketLock::new(socket).map_err(|error| match error {
        ListenError::Io(source) => refused(source),
        other @ ListenError::OtherUser { .. } => refused(io::Error::other(other)),
        _ => BrokerError::Running { socket: socket.to_owned() },
    })?;
    let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    Listener::new(lock, SocketType::SEQPACKET, mode).map_err(refused)
}

/// Makes the folder of a socket, but not the folders above it, so that a mistyped path is refused.
fn make_folder_of(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
