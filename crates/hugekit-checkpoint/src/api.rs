//! Firecracker's API: HTTP/1.1 requests over a Unix socket, whose answers are awaited while other
//! work goes on.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugekit_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::{Value, json};

use crate::error::CheckpointError;

/// How long an answer may take.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Longer answers are not Firecracker's.
const LONGEST_ANSWER: usize = 1 << 20;

/// The request that resumes a VM; also the guard's, which cannot make one.
pub(crate) const RESUME: &str = "PATCH /vm HTTP/1.1\r\nHost: localhost\r\n\
    Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"state\": \"Resumed\"}";

/// A VMM's socket.
#[derive(Debug)]
pub(crate) struct Api {
    socket: PathBuf,
}

/// An answer: status and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    from: UnixStream,
    request: String,
    until: Instant,
    text: Vec<u8>,
}

impl Api {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Checks that this process listens at the socket.
    pub(crate) fn check_is_of(&self, pid: i32) -> Result<(), CheckpointError> {
        let peer = || Ok(seqpacket::peer(UnixStream::connect(&self.socket)?)?.pid);
        match peer() {
            Ok(found) if found == pid => Ok(()),
            Ok(found) => Err(CheckpointError::OtherVmm { pid, found }),
            Err(source) => Err(CheckpointError::Api { request: "connect".to_owned(), source }),
        }
    }

    /// The value of a field of an answer.
    pub(crate) fn get(&self, path: &str, field: &str) -> Result<Value, CheckpointError> {
        let answer = self.send("GET", path, None)?.wait()?;
        let body = serde_json::from_str::<Value>(&answer.body).unwrap_or_default();
        match body.get(field) {
            Some(value) if answer.is_success() => Ok(value.clone()),
            _ => Err(refused(format!("GET {path}"), &answer)),
        }
    }

    pub(crate) fn pause(&self) -> Result<(), CheckpointError> {
        let answer = self.send("PATCH", "/vm", Some(&json!({"state": "Paused"})))?.wait()?;
        if answer.is_success() { Ok(()) } else { Err(refused("pause".to_owned(), &answer)) }
    }

    /// Restores a VM.
    pub(crate) fn load(&self, request: &Value) -> Result<(), CheckpointError> {
        let answer = self.send("PUT", "/snapshot/load", Some(request))?.wait()?;
        if answer.is_success() { Ok(()) } else { Err(refused("load".to_owned(), &answer)) }
    }

    pub(crate) fn send_resume(&self) -> Result<Pending, CheckpointError> {
        self.send_text("resume", RESUME)
    }

    /// Sends a request for a snapshot of the VM's state and memory.
    pub(crate) fn send_snapshot(
        &self,
        state: &Path,
        memory: &Path,
    ) -> Result<Pending, CheckpointError> {
        let body = json!({
            "snapshot_type": "Full", "snapshot_path": state, "mem_file_path": memory,
        });
        self.send("PUT", "/snapshot/create", Some(&body))
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Pending, CheckpointError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.send_text(&format!("{method} {path}"), &text)
    }

    fn send_text(&self, request: &str, text: &str) -> Result<Pending, CheckpointError> {
        let send = || {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_write_timeout(Some(LONGEST_WAIT))?;
            stream.write_all(text.as_bytes())?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let request = request.to_owned();
        match send() {
            Ok(from) => {
                let until = Instant::now() + LONGEST_WAIT;
                Ok(Pending { from, request, until, text: Vec::new() })
            }
            Err(source) => Err(CheckpointError::Api { request, source }),
        }
    }
}

impl Pending {
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// The answer, if all of it has come.
    pub(crate) fn answer(&mut self) -> Result<Option<Answer>, CheckpointError> {
        let read = self.read();
        read.map_err(|source| CheckpointError::Api { request: self.request.clone(), source })
    }

    /// Waits for the answer.
    pub(crate) fn wait(mut self) -> Result<Answer, CheckpointError> {
        loop {
            if let Some(answer) = self.answer()? {
                return Ok(answer);
            }
            let left = self.until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let _ = poll(&mut [PollFd::new(&self.from, PollFlags::IN)], left.as_ref());
        }
    }

    pub(crate) fn refused(&self, answer: &Answer) -> CheckpointError {
        refused(self.request.clone(), answer)
    }

    fn read(&mut self) -> io::Result<Option<Answer>> {
        let mut part = [0; 4096];
        loop {
            match self.from.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.text.extend(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if let Some(answer) = parse(&self.text)? {
                return Ok(Some(answer));
            }
            if self.text.len() > LONGEST_ANSWER {
                return Err(io::Error::other("the answer is too long"));
            }
        }
        if self.until <= Instant::now() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(None)
    }
}

fn refused(request: String, answer: &Answer) -> CheckpointError {
    CheckpointError::Refused { request, status: answer.status, answer: answer.body.clone() }
}

/// `None` if more is to come.
fn parse(text: &[u8]) -> io::Result<Option<Answer>> {
    let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&text[..end]);
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status =
        status.ok_or_else(|| io::Error::other(format!("not an HTTP answer: {first:?}")))?;
    let fields = lines.filter_map(|line| line.split_once(':'));
    let length = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.last().map_or(Ok(0), |(_, len)| len.trim().parse::<usize>());
    let length = length.map_err(io::Error::other)?.min(LONGEST_ANSWER);
    let body = text.get(end + 4..end + 4 + length);
    Ok(body.map(|body| Answer { status, body: String::from_utf8_lossy(body).into_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_its_status_and_body_when_all_has_come() {
        let text = b"HTTP/1.1 400 \r\ncontent-length: 5\r\n\r\nwrong and more";
        let wrong = Answer { status: 400, body: "wrong".to_owned() };
        assert_eq!(parse(text).unwrap(), Some(wrong));
        for cut in 0..text.len() - " and more".len() {
            assert_eq!(parse(&text[..cut]).unwrap(), None, "{cut}");
        }
        let empty = Answer { status: 204, body: String::new() };
        assert_eq!(parse(b"HTTP/1.1 204 \r\nServer: x\r\n\r\n").unwrap(), Some(empty));
        assert!(parse(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn length_of_the_resume_request_is_right() {
        let (head, body) = RESUME.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }
}
