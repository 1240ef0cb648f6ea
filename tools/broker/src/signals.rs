//! Signals that end the broker, as something to wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Readable when a signal came. The signals mean what they meant before when this value is gone.
#[derive(Debug)]
pub(crate) struct Signals {
    came: UnixStream,
    registered: Vec<SigId>,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let (came, sent) = UnixStream::pair()?;
        let register = |signal| signal_hook::low_level::pipe::register(signal, sent.try_clone()?);
        let registered = [SIGTERM, SIGINT, SIGHUP].into_iter().map(register);
        Ok(Self { came, registered: registered.collect::<io::Result<_>>()? })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for &id in &self.registered {
            signal_hook::low_level::unregister(id);
        }
    }
}
