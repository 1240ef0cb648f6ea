//! A request to a VMM, which must succeed.

use std::io;
use std::path::Path;

use hugekit_vm::api::send;
use serde_json::Value;

/// Sends a request, and returns the body of its answer. An answer other than 2xx is an error with the
/// VMM's words.
pub(crate) fn request(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<String> {
    let answer = send(socket, method, path, body)?.wait()?;
    if answer.is_success() {
        return Ok(answer.body);
    }
    Err(io::Error::other(format!("{method} {path}: {}: {}", answer.status, answer.body)))
}
