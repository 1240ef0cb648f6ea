//! The API of the VMM: one HTTP/1.1 request over a Unix socket, whose answer comes when the request
//! is done.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

/// How long a VMM that was just started may take until it listens.
const LONGEST_START: Duration = Duration::from_secs(10);

/// How long the answer may take after the VM is complete.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Longer answers are no VMM's.
const LONGEST_ANSWER: u64 = 1 << 16;

/// A status of HTTP and the words with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    pub words: String,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A request that was sent and is not yet answered.
#[derive(Debug)]
pub(crate) struct Call {
    stream: UnixStream,
}

impl Call {
    /// Sends a request. A socket that does not exist yet is waited for.
    pub(crate) fn put(socket: &Path, path: &str, body: &Value) -> io::Result<Self> {
        let mut stream = connect(socket, || false)?;
        stream.set_read_timeout(Some(LONGEST_WAIT))?;
        stream.set_write_timeout(Some(LONGEST_WAIT))?;
        let body = body.to_string();
        let len = body.len();
        let request = format!(
            "PUT /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        Ok(Self { stream })
    }

    /// Whether the answer has come, or the VMM has hung up.
    pub(crate) fn is_answered(&self) -> bool {
        let stream = self.stream.as_fd();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Waits for the answer.
    pub(crate) fn answer(self) -> io::Result<Answer> {
        read_answer(&mut BufReader::new(self.stream.take(LONGEST_ANSWER)))
    }
}

/// Connects to a socket that will soon be listened at, unless there is no more reason to.
pub(crate) fn connect(socket: &Path, is_over: impl Fn() -> bool) -> io::Result<UnixStream> {
    let until = Instant::now() + LONGEST_START;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if !is_early(&error) || is_over() || Instant::now() > until => {
                return Err(error);
            }
            Err(_) => sleep(BETWEEN_TRIES),
        }
    }
}

/// Whether the other side may only not be there yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn read_answer(from: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("not an HTTP answer: {line:?}")))?;
    let mut len = 0;
    loop {
        line.clear();
        from.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                len = value.trim().parse().map_err(io::Error::other)?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut words = Vec::new();
    from.take(len).read_to_end(&mut words)?;
    Ok(Answer { status, words: String::from_utf8_lossy(&words).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_its_status_and_words() {
        let ok = Answer { status: 204, words: String::new() };
        assert_eq!(read_answer(&mut &b"HTTP/1.1 204 \r\nServer: x\r\n\r\n"[..]).unwrap(), ok);
        let mut refused = &b"HTTP/1.1 500 \r\ncontent-length: 5\r\n\r\nwrong and more"[..];
        let answer = read_answer(&mut refused).unwrap();
        assert_eq!((answer.status, answer.words.as_str()), (500, "wrong"));
        assert!(!answer.is_success());
        for nonsense in ["nonsense", "", "HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n"] {
            assert!(read_answer(&mut nonsense.as_bytes()).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn socket_that_no_process_will_listen_at_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        assert!(connect(&folder.path().join("none"), || true).is_err());
    }
}
