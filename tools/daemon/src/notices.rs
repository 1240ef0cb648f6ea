//! Notices to the service manager that started this process: `sd_notify(3)`.
//!
//! The library `sd-notify` is not used, because it waits for room in the manager's queue as long as
//! the manager is frozen.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The notices that the service manager has not received yet.
#[derive(Debug)]
pub struct Notices {
    manager: Option<(UnixDatagram, SocketAddr)>,
    pending: Option<&'static str>,
}

impl Default for Notices {
    fn default() -> Self {
        Self::new()
    }
}

impl Notices {
    /// Connects to the socket in `NOTIFY_SOCKET`. Without one, notices are dropped.
    #[must_use]
    pub fn new() -> Self {
        Self { manager: manager().ok().flatten(), pending: None }
    }

    /// Sends a notice, now or by a later [`retry`](Self::retry).
    pub fn send(&mut self, notice: &'static str) {
        self.pending = Some(notice);
        self.retry();
    }

    /// Sends notices that could not be sent before, if there is room now.
    pub fn retry(&mut self) {
        let (Some(notice), Some((socket, address))) = (self.pending, &self.manager) else { return };
        match socket.send_to_addr(notice.as_bytes(), address) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.pending = None,
        }
    }

    /// Returns true if a notice waits for room.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.manager.is_some() && self.pending.is_some()
    }
}

fn manager() -> io::Result<Option<(UnixDatagram, SocketAddr)>> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(Some((socket, address)))
}
