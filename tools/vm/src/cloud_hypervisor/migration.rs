//! A VM is sent to a VMM that has none: the VMM believes that it receives the VM from another VMM
//! of the same host.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::api::Answer;
use serde_json::json;

use crate::cloud_hypervisor::error::RestoreError;
use crate::cloud_hypervisor::memory::ReadyMemory;
use crate::cloud_hypervisor::protocol::{Command, Failure, Receiver};
use crate::cloud_hypervisor::snapshot::Snapshot;
use crate::cloud_hypervisor::start::await_listener;

const RECEIVE: &str = "vm.receive-migration";

/// Restores a VM.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is restored until `send`"]
pub struct Restore<'a> {
    snapshot: &'a Snapshot,
    is_resumed: bool,
}

/// A VM that was restored.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// From the request to the VMM until the VM was complete.
    pub took: Duration,
}

impl<'a> Restore<'a> {
    /// Begins to migrate a snapshot. The VM stays paused.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, is_resumed: false }
    }

    /// Sets whether the VM runs as soon as it is complete.
    pub fn resume(self, is_resumed: bool) -> Self {
        Self { is_resumed, ..self }
    }

    /// Sends the VM to the Cloud Hypervisor whose API listens at this socket, or will do so within
    /// ten seconds. It must have no VM. During the restore it listens at `SOCKET.restore-NUMBER`.
    ///
    /// # Errors
    /// [`RestoreError`]. The VMM has no VM then.
    pub fn send(&self, socket: &Path, memory: &ReadyMemory) -> Result<Restored, RestoreError> {
        let of_api = |source| RestoreError::Api { socket: socket.to_owned(), source };
        let receiver = ReceiverSocket::new(socket).map_err(of_api)?;
        let since = Instant::now();
        let url = format!("unix:{}", receiver.path.display());
        let path = format!("/api/v1/{RECEIVE}");
        let body = json!({"receiver_url": url});
        let call = || crate::api::send(socket, "PUT", &path, Some(&body));
        let call = await_listener(call, || false).map_err(of_api)?;
        let connect = || UnixStream::connect(&receiver.path);
        let sent = match await_listener(connect, || call.is_answered()) {
            Ok(stream) => self.walk(stream, memory),
            Err(error) => Err((Command::Start, error.into())),
        };
        let answer = call.wait();
        match sent {
            Ok(()) => is_success(answer.map_err(of_api)?)?,
            Err((command, failure)) => return Err(explained(command, failure, answer)),
        }
        Ok(Restored { took: since.elapsed() })
    }

    fn walk(&self, stream: UnixStream, memory: &ReadyMemory) -> Result<(), (Command, Failure)> {
        let of = |command| move |failure: Failure| (command, failure);
        let receiver = Receiver::new(stream).map_err(Failure::from);
        let mut to = receiver.map_err(of(Command::Start))?;
        to.send(Command::Start, &[]).map_err(of(Command::Start))?;
        for (slot, file) in memory.slots() {
            to.send_memory(slot, file).map_err(of(Command::MemoryFd))?;
        }
        let config = memory.config(self.snapshot).to_string();
        let end = if self.is_resumed { Command::Complete } else { Command::CompletePaused };
        let rest: [(_, &[u8]); 3] = [
            (Command::Config, config.as_bytes()),
            (Command::State, &self.snapshot.state),
            (end, &[]),
        ];
        rest.into_iter()
            .try_for_each(|(command, payload)| to.send(command, payload).map_err(of(command)))
    }
}

fn is_success(answer: Answer) -> Result<(), RestoreError> {
    match answer.is_success() {
        true => Ok(()),
        false => Err(refused(answer)),
    }
}

fn refused(answer: Answer) -> RestoreError {
    RestoreError::Refused { request: RECEIVE, status: answer.status, answer: answer.body }
}

/// Returns the error, in the words of the VMM's API if it has any.
fn explained(command: Command, failure: Failure, answer: io::Result<Answer>) -> RestoreError {
    let what = command.subject();
    match (failure, answer) {
        (_, Ok(answer)) if command == Command::Start => refused(answer),
        (_, Ok(answer)) => RestoreError::Rejected { what, answer: answer.body },
        (Failure::Broken(source), Err(_)) => RestoreError::Broken { what, source },
        (Failure::Rejected, Err(source)) => RestoreError::Broken { what, source },
    }
}

/// The path at which the VMM listens during the restore. No other process can know it before.
#[derive(Debug)]
struct ReceiverSocket {
    path: PathBuf,
}

impl ReceiverSocket {
    fn new(api: &Path) -> io::Result<Self> {
        let mut path = OsString::from(std::path::absolute(api)?);
        let number = getrandom::u64().map_err(io::Error::other)?;
        path.push(format!(".restore-{number:016x}"));
        Ok(Self { path: path.into() })
    }
}

impl Drop for ReceiverSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
