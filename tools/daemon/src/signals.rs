//! Signals that end a process which runs until then, as a descriptor to wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// SIGTERM, SIGINT and SIGHUP. The descriptor is readable when one has come. When this value is gone, they act as before.
#[derive(Debug)]
pub struct EndingSignals {
    came: UnixStream,
    registered: Vec<SigId>,
}

impl EndingSignals {
    /// Catches the signals from here on.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn new() -> io::Result<Self> {
        let (came, sent) = UnixStream::pair()?;
        let register = |signal| signal_hook::low_level::pipe::register(signal, sent.try_clone()?);
        let registered = [SIGTERM, SIGINT, SIGHUP].into_iter().map(register);
        Ok(Self { came, registered: registered.collect::<io::Result<_>>()? })
    }
}

impl AsFd for EndingSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }
}

impl Drop for EndingSignals {
    fn drop(&mut self) {
        for &id in &self.registered {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Has a write behind the limit of file sizes (`RLIMIT_FSIZE`, `ulimit -f`) fail with EFBIG instead of
/// ending this process by SIGXFSZ, without a word. Memory in files counts for the limit.
///
/// Programs that this process becomes or starts have the signal's own action: it is caught, and not
/// ignored.
///
/// # Errors
/// The kernel refuses the handler.
pub fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
