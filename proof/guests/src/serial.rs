//! A guest's serial port, as pipes or a socket of its VMM: a request goes in, and its answer comes
//! out between other output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::request::Request;

/// Hexadecimal digits of an answer.
const DIGITS: usize = 16;

/// The longest wait for an answer, by default.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Both directions.
#[derive(Debug)]
pub struct Serial {
    to: File,
    from: File,
    /// Bytes that were read and are not yet an answer.
    read: Vec<u8>,
}

impl Serial {
    /// Makes a connection to a child that was started with both as pipes.
    pub(crate) fn of(child: &mut Child) -> Self {
        let to = child.stdin.take().expect("standard input is a pipe");
        let from = child.stdout.take().expect("standard output is a pipe");
        Self { to: OwnedFd::from(to).into(), from: OwnedFd::from(from).into(), read: Vec::new() }
    }

    /// Makes a connection to a VMM whose standard input and output are these files, such as named pipes.
    #[must_use]
    pub fn of_files(to: File, from: File) -> Self {
        Self { to, from, read: Vec::new() }
    }

    /// Makes a connection to a VMM that listens for one.
    pub(crate) fn of_socket(stream: UnixStream) -> io::Result<Self> {
        let from = OwnedFd::from(stream.try_clone()?).into();
        Ok(Self { to: OwnedFd::from(stream).into(), from, read: Vec::new() })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: Request) -> io::Result<u64> {
        self.ask_within(request, LONGEST_WAIT)
    }

    /// Does the same as [`ask`](Self::ask), but waits no longer than `wait`.
    pub fn ask_within(&mut self, request: Request, wait: Duration) -> io::Result<u64> {
        self.send(request)?;
        self.answer_within(wait)
    }

    /// Sends a request; [`answer_within`](Self::answer_within) waits for its answer.
    pub fn send(&mut self, request: Request) -> io::Result<()> {
        self.to.write_all(&request.to_bytes())?;
        self.to.flush()
    }

    /// Waits for the answer to a request that was sent.
    pub fn answer_within(&mut self, wait: Duration) -> io::Result<u64> {
        self.await_within(wait, "answer", Self::answer)
    }

    /// Waits for a line that begins with these words, and returns it. What was read before is left out.
    pub fn line_within(&mut self, words: &str, wait: Duration) -> io::Result<String> {
        self.await_within(wait, words, |serial| {
            while let Some(end) = serial.read.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = serial.read.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                if line.starts_with(words) {
                    return Some(line);
                }
            }
            None
        })
    }

    /// Reads until something is found in all that was read.
    fn await_within<T>(
        &mut self,
        wait: Duration,
        name: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> io::Result<T> {
        let until = Instant::now() + wait;
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let read = String::from_utf8_lossy(&self.read);
                let message = format!("no {name} within {wait:?}; read so far: {read:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            self.read_more(left)?;
        }
    }

    fn read_more(&mut self, wait: Duration) -> io::Result<()> {
        let time = Timespec::try_from(wait).map_err(io::Error::other)?;
        let from = self.from.as_fd();
        if poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&time))? == 0 {
            return Ok(());
        }
        let mut bytes = [0; 4096];
        let count = rustix::io::read(from, &mut bytes)?;
        if count == 0 {
            let read = String::from_utf8_lossy(&self.read);
            return Err(io::Error::other(format!("the VMM has ended; it said: {read:?}")));
        }
        self.read.extend(&bytes[..count]);
        Ok(())
    }

    /// The first answer that was read whole.
    fn answer(&mut self) -> Option<u64> {
        let start = self.read.iter().position(|&byte| byte == b'~')? + 1;
        let digits = self.read.get(start..=start + DIGITS)?;
        let number = std::str::from_utf8(&digits[..DIGITS]).ok();
        let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        self.read.drain(..=start + DIGITS);
        number
    }
}
