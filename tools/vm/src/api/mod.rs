#![doc = include_str!("README.md")]

mod answer;
mod pending;
mod socket;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

pub use answer::Answer;
pub use pending::Pending;

/// The longest time in which a VMM must accept a connection, read a request, or answer it.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Connects to a VMM's socket. Reads and writes of the connection do not block.
///
/// # Errors
/// An error if no process listens at the socket, or if the VMM does not accept the connection
/// within 60 s.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    socket::connect(socket, LONGEST_WAIT)
}

/// Sends a request with a JSON body, or without one.
///
/// # Errors
/// An error if no process listens at the socket, or if the VMM does not read the request within 60
/// s.
pub fn send(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> io::Result<Pending> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    send_text(socket, &text)
}

/// Sends a request from its complete text.
///
/// # Errors
/// The errors of [`send`].
pub fn send_text(socket: &Path, text: &str) -> io::Result<Pending> {
    let stream = connect(socket)?;
    socket::write_all(&stream, text.as_bytes(), LONGEST_WAIT)?;
    Ok(Pending::new(stream, LONGEST_WAIT))
}
