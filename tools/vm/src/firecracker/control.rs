//! Requests to Firecracker's API.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::api::send;
use crate::devices::Device;
use crate::firecracker::{devices, regions, state_file};
use crate::vmm::{ConfiguredMemory, Control, ControlError, Load, LoadMemory, NO_MAPPING, Request};

const RESUME: &str = "PATCH /vm HTTP/1.1\r\nHost: localhost\r\n\
    Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"state\": \"Resumed\"}";

/// A folder as the path of the memory file: Firecracker then saves the state, and answers with an
/// error.
const FOLDER: &str = "/";

/// A Firecracker process, by the socket of its API.
#[derive(Debug)]
pub(crate) struct Firecracker {
    socket: PathBuf,
}

impl Firecracker {
    pub(crate) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Returns the value of a field of an answer.
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

    fn devices(&self) -> Result<Vec<Device>, ControlError> {
        let answer = self.send("GET", "/vm/config", None)?.wait()?;
        // A VMM that is no Firecracker may have no such request.
        if !answer.is_success() || answer.body.is_empty() {
            return Ok(Vec::new());
        }
        devices::all(&answer.body)
            .map_err(|_| ControlError::refused("GET /vm/config".to_owned(), &answer))
    }

    fn set_disk(&self, id: &str, file: &Path) -> Result<(), ControlError> {
        let body = json!({"drive_id": id, "path_on_host": file});
        self.send("PATCH", &format!("/drives/{id}"), Some(&body))?.succeed().map(drop)
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
        body.insert("resume_vm".to_owned(), json!(false));
        body.extend(devices::overrides(from.own));
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

/// Returns a step for the user, if Firecracker's message of a refused load is known.
fn remedy_of_load(answer: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|words| answer.contains(words));
    if has(&["vsock_override", "network_overrides"]) {
        Some(
            "use the release of Firecracker that saved it, if it is 1.12 or later for --net and 1.16 or \
             later for --vsock; an older one restores one clone, once the VM has ended",
        )
    } else if has(&["Open tap device failed"]) {
        Some("end the process that uses the tap, or name others: --net DEVICE=tap{}")
    } else if has(&["VsockUnixBackend"]) {
        Some(
            "end the VM that listens there and remove the socket, or name others: --vsock vsock-{}.sock",
        )
    } else if has(&[NO_MAPPING]) {
        Some("restore it from its memory file, which is copied for each VM: --memory FILE --copy")
    } else if has(&["userfaultfd"]) {
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
        let field = "unknown field `vsock_override`, expected one of `snapshot_path`";
        assert!(remedy_of_load(field).is_some_and(|remedy| remedy.contains("1.16")));
        let tap = "Open tap device failed: Resource busy (os error 16)";
        assert!(remedy_of_load(tap).is_some_and(|remedy| remedy.contains("--net")));
        let vsock = "VsockUnixBackend: Error binding to the host-side Unix socket: Address in use";
        assert!(remedy_of_load(vsock).is_some_and(|remedy| remedy.contains("--vsock")));
        assert_eq!(remedy_of_load("CpuTemplate"), None);
    }

    #[test]
    fn length_of_the_resume_request_is_right() {
        let (head, body) = RESUME.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }
}
