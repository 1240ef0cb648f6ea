//! Requests to Firecracker, whose answers are awaited while other work goes on.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::api::{Answer, connect, send, send_text};
use hugekit_sys::seqpacket;
use serde_json::{Value, json};

use crate::checkpoint::CheckpointError;

/// The request that resumes a VM; also the guard's, which cannot make one.
pub(crate) const RESUME: &str = "PATCH /vm HTTP/1.1\r\nHost: localhost\r\n\
    Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"state\": \"Resumed\"}";

/// The memory of a VM by its configuration, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfiguredMemory {
    /// Memory that the VM has from its start.
    pub bytes: u64,
    /// Memory that can be plugged in: a snapshot has room for all of it.
    pub pluggable: u64,
}

impl ConfiguredMemory {
    pub(crate) fn all(self) -> u64 {
        self.bytes + self.pluggable
    }
}

impl fmt::Display for ConfiguredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)?;
        if self.pluggable > 0 {
            write!(f, " and {} bytes that can be plugged in", self.pluggable)?;
        }
        Ok(())
    }
}

/// A VMM's socket.
#[derive(Debug)]
pub(crate) struct Api {
    socket: PathBuf,
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    request: String,
    sent: crate::api::Pending,
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
        let peer = || Ok(seqpacket::peer(connect(&self.socket)?)?.pid);
        match peer() {
            Ok(found) if found == pid => Ok(()),
            Ok(found) => Err(CheckpointError::OtherVmm { pid, found }),
            Err(source) => {
                let request = format!("connect to {}", self.socket.display());
                Err(CheckpointError::Api { request, source })
            }
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

    /// Returns whether the VM runs; an error if it has no state in which it can be saved.
    pub(crate) fn is_running(&self) -> Result<bool, CheckpointError> {
        let state = self.get("/", "state")?;
        match state.as_str() {
            Some("Running") => Ok(true),
            Some("Paused") => Ok(false),
            other => Err(CheckpointError::State { state: other.unwrap_or_default().to_owned() }),
        }
    }

    /// The memory that the VM was configured with.
    pub(crate) fn memory(&self) -> Result<ConfiguredMemory, CheckpointError> {
        let mebibytes = self.get("/machine-config", "mem_size_mib")?;
        // A VM without such memory, and an older version, answers with an error.
        let pluggable = match self.get("/hotplug/memory", "total_size_mib") {
            Ok(mebibytes) => mebibytes,
            Err(CheckpointError::Refused { .. }) => Value::from(0),
            Err(error) => return Err(error),
        };
        let bytes = |mebibytes: Value| mebibytes.as_u64().unwrap_or(0) << 20;
        Ok(ConfiguredMemory { bytes: bytes(mebibytes), pluggable: bytes(pluggable) })
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
        Pending::new("resume".to_owned(), send_text(&self.socket, RESUME))
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
        Pending::new(format!("{method} {path}"), send(&self.socket, method, path, body))
    }
}

impl Pending {
    fn new(
        request: String,
        sent: io::Result<crate::api::Pending>,
    ) -> Result<Self, CheckpointError> {
        match sent {
            Ok(sent) => Ok(Self { request, sent }),
            Err(source) => Err(CheckpointError::Api { request, source }),
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.sent.as_fd()
    }

    /// The answer, if all of it has come.
    pub(crate) fn answer(&mut self) -> Result<Option<Answer>, CheckpointError> {
        let answer = self.sent.answer();
        answer.map_err(|source| CheckpointError::Api { request: self.request.clone(), source })
    }

    /// Waits for the answer.
    pub(crate) fn wait(self) -> Result<Answer, CheckpointError> {
        let Self { request, sent } = self;
        sent.wait().map_err(|source| CheckpointError::Api { request, source })
    }

    pub(crate) fn refused(&self, answer: &Answer) -> CheckpointError {
        refused(self.request.clone(), answer)
    }
}

fn refused(request: String, answer: &Answer) -> CheckpointError {
    CheckpointError::Refused { request, status: answer.status, answer: answer.body.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_the_resume_request_is_right() {
        let (head, body) = RESUME.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }
}
