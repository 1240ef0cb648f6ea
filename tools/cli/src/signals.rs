//! Signals that end a command which runs until then.

use std::io;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A stream that is readable when such a signal has come.
pub(crate) fn ending() -> io::Result<UnixStream> {
    let (came, sent) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, sent.try_clone()?)?;
    }
    Ok(came)
}
