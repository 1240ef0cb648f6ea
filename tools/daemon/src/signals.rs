//! Signals that end a daemon, as a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// SIGTERM, SIGINT and SIGHUP. The descriptor is readable after such a signal. A drop restores the
/// former actions.
#[derive(Debug)]
pub struct EndingSignals {
    came: UnixStream,
    registered: Vec<SigId>,
}

impl EndingSignals {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// The kernel's error if no descriptor is free.
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

/// Makes a write beyond the limit of file sizes (`RLIMIT_FSIZE`, `ulimit -f`) fail with EFBIG.
/// Without this, SIGXFSZ silently ends the process. Memory in files counts against the limit.
///
/// Programs that this process executes have the default action of the signal, because the signal is
/// caught, not ignored.
///
/// # Errors
/// The kernel's error if it refuses the handler.
pub fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
