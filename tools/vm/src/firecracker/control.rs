//! Requests to Firecracker's API.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::api::send;
use crate::firecracker::{regions, state_file};
use crate::vmm::{ConfiguredMemory, Control, ControlError, Load, LoadMemory, Request};

const RESUME: &str = "PATCH /vm HTTP/1.1\r\nHost: localhost\r\n\
    Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"state\": \"Resumed\"}";

/// A folder as memory file: Firecracker saves the state, and then answers with an error.
const FOLDER: &str = "/";

/// A Firecracker, by the socket of its API.
#[derive(Debug)]
pub(crate) struct Firecracker {
    socket: PathBuf,
}

impl Firecracker {
    pub(crate) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The value of a field of an answer.
    fn get(&self, path: &str, field: &str) -> Result<Value, ControlError> {
        let answer = self.send("GET", path, None)?.succeed()?;
        let mut body = serde_json::from_str::<Value>(&answer.body).unwrap_or_default();
        match body.get_mut(field) {
            Some(value) => Ok(value.take()),
            None => Err(ControlError::refused(format!("GET {path}"), &answer)),
        }
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request, ControlError> {
        Request::new(format!("{method} {path}"), send(&self.socket, method, path, body))
    }
}

impl Control for Firecracker {
    fn socket(&self) -> &Path {
        &self.socket
    }

    fn is_running(&self) -> Result<bool, ControlError> {
        let state = self.get("/", "state")?;
        match state.as_str() {
            Some("Running") => Ok(true),
            Some("Paused") => Ok(false),
            other => Err(ControlError::State { state: other.unwrap_or_default().to_owned() }),
        }
    }

    fn memory(&self) -> Result<ConfiguredMemory, ControlError> {
        let mebibytes = self.get("/machine-config", "mem_size_mib")?;
        // A VM without such memory, and an older version, answers with an error.
        let pluggable = match self.get("/hotplug/memory", "total_size_mib") {
            Ok(mebibytes) => mebibytes,
            Err(ControlError::Refused { .. }) => Value::from(0),
            Err(error) => return Err(error),
        };
        let bytes = |mebibytes: Value| mebibytes.as_u64().unwrap_or(0) << 20;
        Ok(ConfiguredMemory { bytes: bytes(mebibytes), pluggable: bytes(pluggable) })
    }

    fn region_sizes(&self, bytes: u64) -> Vec<Vec<u64>> {
        regions::sizes(bytes)
    }

    fn vsock(&self) -> Result<Option<PathBuf>, ControlError> {
        match self.get("/vm/config", "vsock") {
            Ok(vsock) => Ok(vsock.get("uds_path").and_then(Value::as_str).map(PathBuf::from)),
            // A version that does not say so.
            Err(ControlError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn pause(&self) -> Result<(), ControlError> {
        self.send("PATCH", "/vm", Some(&json!({"state": "Paused"})))?.succeed().map(drop)
    }

    fn resume_text(&self) -> &'static str {
        RESUME
    }

    fn send_save_state(&self, state: &Path) -> Result<Request, ControlError> {
        self.send_save_all(state, Path::new(FOLDER))
    }

    fn send_save_all(&self, state: &Path, memory: &Path) -> Result<Request, ControlError> {
        let body = json!({
            "snapshot_type": "Full", "snapshot_path": state, "mem_file_path": memory,
        });
        self.send("PUT", "/snapshot/create", Some(&body))
    }

    fn is_whole_state(&self, state: &[u8]) -> bool {
        state_file::is_whole(state)
    }

    fn load(&self, from: &Load<'_>) -> Result<(), ControlError> {
        let mut body = from.others.clone();
        body.insert("snapshot_path".to_owned(), json!(from.state));
        let (kind, path) = match from.memory {
            LoadMemory::Supplied(socket) => ("Uffd", socket),
            LoadMemory::Mapped(file) => ("File", file),
        };
        let memory = json!({"backend_type": kind, "backend_path": path});
        body.insert("mem_backend".to_owned(), memory);
        body.insert("resume_vm".to_owned(), json!(from.resume));
        let loaded = self.send("PUT", "/snapshot/load", Some(&body.into()))?.succeed();
        loaded.map(drop).map_err(|error| match error {
            ControlError::Refused { request, status, answer, .. } => {
                let remedy = remedy_of_load(&answer);
                ControlError::Refused { request, status, answer, remedy }
            }
            error => error,
        })
    }
}

/// A step for the user, by the words with which Firecracker refuses to load a snapshot.
fn remedy_of_load(answer: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|words| answer.contains(words));
    if has(&["userfaultfd"]) {
        Some(
            "give the user of Firecracker read and write access to /dev/userfaultfd, by its group or an ACL",
        )
    } else if has(&["erialization", "bitcode", "bincode", "version"]) {
        Some(
            "restore it by the release of Firecracker that has saved it: formats of snapshots differ",
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_firecracker_have_their_remedies() {
        let userfaultfd =
            "Failed to UFFD object: Error accessing /dev/userfaultfd: Permission denied";
        assert!(remedy_of_load(userfaultfd).is_some_and(|remedy| remedy.contains("ACL")));
        for other_release in [
            "An error occurred during bitcode serialization: bitcode error",
            "An error occured with serialization/deserialization: LimitExceeded",
            "Invalid snapshot version: 8.0.0, expected 6.0.0",
        ] {
            let remedy = remedy_of_load(other_release);
            assert!(remedy.is_some_and(|remedy| remedy.contains("release")), "{other_release}");
        }
        assert_eq!(remedy_of_load("Open tap device failed"), None);
    }

    #[test]
    fn length_of_the_resume_request_is_right() {
        let (head, body) = RESUME.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }
}
