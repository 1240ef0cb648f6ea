//! A connection whose calls have time limits. The standard calls wait for ever for a VMM that does
//! not accept a connection or does not read a request.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Connects, and makes the connection nonblocking.
pub(crate) fn connect(path: &Path, longest: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A connect(2) to a Unix socket whose queue is full waits as long as a send(2).
    set_socket_timeout(&socket, Timeout::Send, Some(longest))?;
    rustix::net::connect(&socket, &address).map_err(|errno| match errno {
        Errno::AGAIN => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the VMM accepted no connection for {} s", longest.as_secs_f64()),
        ),
        errno => errno.into(),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

pub(crate) fn write_all(mut to: &UnixStream, mut text: &[u8], longest: Duration) -> io::Result<()> {
    let until = Instant::now() + longest;
    while !text.is_empty() {
        match to.write(text) {
            Ok(count) => text = &text[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !await_until(to, PollFlags::OUT, until)? {
                    let words = format!("the VMM read no request for {} s", longest.as_secs_f64());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, words));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns true if a descriptor became ready in time.
pub(crate) fn await_until(fd: impl AsFd, flags: PollFlags, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&fd, flags)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{bind, listen, socket};

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn vmm_that_accepts_nothing_is_not_awaited_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api");
        let listener: OwnedFd = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let mut queued = Vec::new();
        let refused = loop {
            match connect(&path, SOON) {
                Ok(stream) => queued.push(stream),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.to_string(), "the VMM accepted no connection for 0.02 s");
    }

    #[test]
    fn vmm_that_reads_nothing_is_not_awaited_for_ever() {
        let (to, _reader) = UnixStream::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let refused = write_all(&to, &vec![b'a'; 64 << 20], SOON).unwrap_err();
        assert_eq!(refused.to_string(), "the VMM read no request for 0.02 s");
    }

    #[test]
    fn long_request_comes_whole() {
        let (to, mut from) = UnixStream::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let text = vec![b'a'; 8 << 20];
        let reader = std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::sink()));
        write_all(&to, &text, Duration::from_secs(60)).unwrap();
        drop(to);
        assert_eq!(reader.join().unwrap().unwrap(), 8 << 20);
    }
}
