//! A sent request without an answer yet.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::api::answer::Answer;
use crate::api::socket::await_until;

/// A sent request. Its descriptor is readable when a part of the answer has arrived, or when the
/// VMM has closed the connection.
#[derive(Debug)]
pub struct Pending {
    from: UnixStream,
    longest: Duration,
    until: Instant,
    text: Vec<u8>,
}

impl Pending {
    pub(crate) fn new(from: UnixStream, longest: Duration) -> Self {
        Self { from, longest, until: Instant::now() + longest, text: Vec::new() }
    }

    /// Returns the answer, if all of it has arrived.
    ///
    /// # Errors
    /// An error if the answer is malformed or incomplete, or if it has not arrived within 60 s
    /// after the request.
    pub fn answer(&mut self) -> io::Result<Option<Answer>> {
        let mut part = [0; 4096];
        loop {
            match self.from.read(&mut part) {
                Ok(0) => return Err(self.cut()),
                Ok(count) => self.text.extend(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if let Some(answer) = Answer::parse(&self.text)? {
                return Ok(Some(answer));
            }
        }
        if self.until <= Instant::now() { Err(self.late()) } else { Ok(None) }
    }

    /// Waits for the answer, at most 60 s from now.
    ///
    /// # Errors
    /// An error if the answer is malformed or incomplete, or does not arrive.
    pub fn wait(mut self) -> io::Result<Answer> {
        self.until = Instant::now() + self.longest;
        loop {
            if let Some(answer) = self.answer()? {
                return Ok(answer);
            }
            await_until(&self.from, PollFlags::IN, self.until)?;
        }
    }

    /// Returns true if a part of the answer has arrived, or if the VMM has closed the connection.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        await_until(&self.from, PollFlags::IN, Instant::now()).unwrap_or(true)
    }

    fn cut(&self) -> io::Error {
        let words = match self.text.len() {
            0 => "the VMM hung up without an answer".to_owned(),
            bytes => format!("the VMM hung up after {bytes} bytes of its answer"),
        };
        io::Error::new(io::ErrorKind::UnexpectedEof, words)
    }

    fn late(&self) -> io::Error {
        let (seconds, bytes) = (self.longest.as_secs_f64(), self.text.len());
        let words = format!("no complete answer after {seconds} s: {bytes} bytes have come");
        io::Error::new(io::ErrorKind::TimedOut, words)
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Returns the answer to a request from a VMM that sends this and does not hang up.
    fn waited(text: &str, longest: Duration) -> io::Result<Answer> {
        let (from, mut vmm) = UnixStream::pair()?;
        from.set_nonblocking(true)?;
        vmm.write_all(text.as_bytes())?;
        Pending::new(from, longest).wait()
    }

    #[test]
    fn answer_that_does_not_come_whole_is_an_error() {
        let soon = Duration::from_millis(20);
        let none = waited("", soon).unwrap_err();
        assert_eq!(none.to_string(), "no complete answer after 0.02 s: 0 bytes have come");
        let half = waited("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", soon).unwrap_err();
        assert!(half.to_string().ends_with("42 bytes have come"), "{half}");
    }

    #[test]
    fn wrong_answer_is_not_waited_for() {
        let wrong = waited("nonsense\r\n\r\n", Duration::from_secs(60)).unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn vmm_that_hangs_up_is_told_with_the_bytes_that_came() {
        for (text, words) in [("", "without an answer"), ("HTTP/1.1 200", "after 12 bytes")] {
            let (from, mut vmm) = UnixStream::pair().unwrap();
            from.set_nonblocking(true).unwrap();
            let pending = Pending::new(from, Duration::from_secs(60));
            assert!(!pending.is_answered());
            vmm.write_all(text.as_bytes()).unwrap();
            drop(vmm);
            assert!(pending.is_answered());
            let cut = pending.wait().unwrap_err().to_string();
            assert!(cut.contains(words), "{cut}");
        }
    }

    #[test]
    fn answer_in_pieces_is_put_together() {
        let (from, mut vmm) = UnixStream::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut pending = Pending::new(from, Duration::from_secs(60));
        assert_eq!(pending.answer().unwrap(), None);
        vmm.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").unwrap();
        assert_eq!(pending.answer().unwrap(), None);
        vmm.write_all(b"ngth: 4\r\n\r\nbody").unwrap();
        let whole = Answer { status: 200, body: "body".to_owned() };
        assert_eq!(pending.answer().unwrap(), Some(whole));
    }
}
