//! A real redis-server or valkey-server, which only the tour can reach.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use super::fork::Program;
use super::process::{TourProcess, ends_with_the_tour};
use super::stop::TourStop;
use crate::demo::helper::Wrong;

const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// Bytes of a value: with the server's own, a base page.
const VALUE: usize = 4000;

/// Requests that are sent before their answers are read: the answers fit the socket's buffer.
const TOGETHER: usize = 32;

/// A server that takes longer to start, or to answer, is not used.
const PATIENCE: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(5);

/// Which of them is on PATH.
pub(super) fn installed() -> Option<&'static str> {
    let path = std::env::var_os("PATH")?;
    let is_there =
        |name: &&str| std::env::split_paths(&path).any(|folder| is_program(&folder.join(name)));
    NAMES.into_iter().find(is_there)
}

fn is_program(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Killed when dropped.
pub(super) struct Redis {
    process: TourProcess,
    answers: BufReader<UnixStream>,
    keys: usize,
    /// Times that a byte of each value was written.
    written: u8,
}

impl Redis {
    /// Without data. Its folder is removed as soon as it is connected: a save of it forks and then fails, so nothing is
    /// written to a disk.
    pub(super) fn start(name: &str, stop: &TourStop) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("no folder for its socket")?;
        let mut command = Command::new(name);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.args(["--disable-thp", "no", "--stop-writes-on-bgsave-error", "no"]);
        command.arg("--unixsocket").arg(folder.path().join("socket"));
        command.arg("--dir").arg(folder.path());
        let mut process = TourProcess::start(ends_with_the_tour(&command)?)?;
        let stream = connected(&mut process, &folder, stop)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { process, answers: BufReader::new(stream), keys: 0, written: 0 })
    }

    /// Sets keys until their values have `bytes` bytes.
    pub(super) fn fill(&mut self, bytes: usize, stop: &TourStop) -> anyhow::Result<()> {
        self.keys = bytes / VALUE;
        self.for_all(stop, |key| request(&[b"SET", &name(key), &value(key, 0)]), |_, _| Ok(()))
    }

    /// Sends a request about each key, and reads the answers.
    fn for_all(
        &mut self,
        stop: &TourStop,
        request: impl Fn(usize) -> Vec<u8>,
        check: impl Fn(usize, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for first in (0..self.keys).step_by(TOGETHER) {
            stop.check()?;
            let some = first..(first + TOGETHER).min(self.keys);
            let requests: Vec<u8> = some.clone().flat_map(&request).collect();
            self.answers.get_mut().write_all(&requests)?;
            for key in some {
                check(key, &self.answer(stop)?)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, words: &[&[u8]], stop: &TourStop) -> anyhow::Result<Vec<u8>> {
        self.answers.get_mut().write_all(&request(words))?;
        self.answer(stop)
    }

    /// Returns the bytes of a string, a status or a number.
    fn answer(&mut self, stop: &TourStop) -> anyhow::Result<Vec<u8>> {
        if self.answers.buffer().is_empty() {
            let answers = stop.wait_for(self.answers.get_ref(), Some(PATIENCE))?;
            ensure!(answers, "it does not answer");
        }
        let mut line = Vec::new();
        self.answers.read_until(b'\n', &mut line).context("it does not answer")?;
        let line = line.strip_suffix(b"\r\n").context("it has closed the connection")?;
        let (kind, rest) = line.split_first().context("it answers with an empty line")?;
        match kind {
            b'+' | b':' => Ok(rest.to_vec()),
            b'$' => {
                let len: usize =
                    String::from_utf8_lossy(rest).parse().context("it has no such key")?;
                ensure!(len <= 1 << 20, "its answer has {len} bytes");
                let mut bytes = vec![0; len + 2];
                self.answers.read_exact(&mut bytes)?;
                bytes.truncate(len);
                Ok(bytes)
            }
            _ => bail!("it answers {}", String::from_utf8_lossy(line)),
        }
    }

    fn figure(&mut self, name: &str, stop: &TourStop) -> anyhow::Result<u64> {
        let info = self.ask(&[b"INFO"], stop)?;
        let info = String::from_utf8_lossy(&info);
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value
            .and_then(|value| value.trim().parse().ok())
            .with_context(|| format!("INFO has no {name}"))
    }
}

impl Program for Redis {
    /// It writes to all of its data before each fork, which takes a second.
    const FORKS: usize = 3;

    fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn fork(&mut self, stop: &TourStop) -> anyhow::Result<Duration> {
        self.written += 1;
        let byte = [self.written];
        let set = |key| request(&[b"SETRANGE", &name(key), b"0", &byte]);
        self.for_all(stop, set, |_, _| Ok(()))?;
        self.ask(&[b"BGSAVE"], stop)?;
        let since = Instant::now();
        while self.figure("rdb_bgsave_in_progress", stop)? > 0 {
            ensure!(since.elapsed() < PATIENCE, "its save does not end");
            stop.rest(PAUSE)?;
        }
        Ok(Duration::from_micros(self.figure("latest_fork_usec", stop)?))
    }

    fn check(&mut self, stop: &TourStop) -> anyhow::Result<()> {
        let written = self.written;
        let get = |key| request(&[b"GET", &name(key)]);
        self.for_all(stop, get, |key, found| {
            if found == value(key, written) {
                return Ok(());
            }
            Err(Wrong(format!("the value of key {key} has changed")).into())
        })
    }
}

/// Its folder is removed.
fn connected(
    process: &mut TourProcess,
    folder: &TempDir,
    stop: &TourStop,
) -> anyhow::Result<UnixStream> {
    let since = Instant::now();
    loop {
        match UnixStream::connect(folder.path().join("socket")) {
            Ok(stream) => return Ok(stream),
            Err(error) if since.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => stop.rest(PAUSE)?,
        }
        if let Some(error) = process.has_ended() {
            return Err(error);
        }
    }
}

/// In the protocol RESP.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend(format!("${}\r\n", word.len()).into_bytes());
        request.extend(*word);
        request.extend(b"\r\n");
    }
    request
}

fn name(key: usize) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

/// Returns the value of a key after its first byte was written.
fn value(key: usize, written: u8) -> Vec<u8> {
    let mut value = (key as u64 + 1).to_ne_bytes().repeat(VALUE / size_of::<u64>());
    value[0] = written;
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_the_words_with_their_lengths() {
        assert_eq!(request(&[b"GET", b"key:7"]), b"*2\r\n$3\r\nGET\r\n$5\r\nkey:7\r\n");
        assert_eq!(value(0, 3).len(), VALUE);
    }
}
