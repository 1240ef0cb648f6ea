//! Sockets at which a VMM will soon listen.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest time until a VMM that was just started listens.
const LONGEST_START: Duration = Duration::from_secs(10);

const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Repeats a call that connects to such a socket, until `is_over`.
pub(crate) fn await_listener<T>(
    connect: impl Fn() -> io::Result<T>,
    is_over: impl Fn() -> bool,
) -> io::Result<T> {
    let until = Instant::now() + LONGEST_START;
    loop {
        match connect() {
            Err(error) if is_early(&error) && !is_over() && Instant::now() <= until => {
                sleep(BETWEEN_TRIES);
            }
            result => return result,
        }
    }
}

/// Returns true if the error only means that the other side may not listen yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn socket_that_no_process_will_listen_at_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none");
        assert!(await_listener(|| UnixStream::connect(&none), || true).is_err());
    }
}
