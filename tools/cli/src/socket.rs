//! The default sockets of brokers.

use std::path::PathBuf;

use hugekit_terminal::outcome::UsageError;

const OF_ALL: &str = "/run/hugekit/broker.sock";

/// Returns the socket at which a broker of this user listens.
pub(crate) fn to_listen_at() -> Result<PathBuf, UsageError> {
    if rustix::process::geteuid().is_root() {
        return Ok(OF_ALL.into());
    }
    let message = "XDG_RUNTIME_DIR is not set: name the socket by --socket";
    of_user().ok_or_else(|| UsageError(message.to_owned()))
}

/// Returns the socket that a client uses: this user's own broker if its socket exists, otherwise
/// the broker of all users.
pub(crate) fn to_ask() -> PathBuf {
    of_user().filter(|path| path.exists()).unwrap_or_else(|| OF_ALL.into())
}

fn of_user() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder).join("hugekit/broker.sock"))
}
