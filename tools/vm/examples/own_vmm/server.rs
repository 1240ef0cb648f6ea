//! The API: the five requests that hugekit sends.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::machine::{BYTES, Machine};

/// Before the socket.
pub(crate) const ARGUMENT: &str = "--api-sock";

struct Request {
    /// Method and path.
    line: String,
    body: Value,
}

/// Status and body.
type Answer = (u16, Value);

/// Answers until the process is killed.
pub(crate) fn serve(socket: &Path) -> Result<(), Box<dyn Error>> {
    let listener = UnixListener::bind(socket)?;
    let mut machine = None;
    loop {
        let (mut stream, _) = listener.accept()?;
        // A connection without a request was only to look who listens.
        let Some(request) = receive(&mut stream)? else { continue };
        let (status, body) = answer(&request, &mut machine)
            .unwrap_or_else(|error| (400, json!({"fault_message": error.to_string()})));
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} \r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes())?;
    }
}

fn answer(request: &Request, machine: &mut Option<Machine>) -> Result<Answer, Box<dyn Error>> {
    let body = &request.body;
    let path = |value: &Value| value.as_str().map(str::to_owned).ok_or("a path is missing");
    match (request.line.as_str(), machine) {
        ("GET /machine-config", _) => Ok((200, json!({"mem_size_mib": BYTES >> 20}))),
        ("GET /", None) => Ok((200, json!({"state": "Not started"}))),
        ("GET /", Some(machine)) => {
            let state = if machine.is_running() { "Running" } else { "Paused" };
            Ok((200, json!({"state": state, "end": machine.end()})))
        }
        ("PATCH /vm", Some(machine)) => {
            match body["state"].as_str() {
                Some("Paused") => machine.pause()?,
                _ => machine.resume(),
            }
            Ok((204, Value::Null))
        }
        ("PUT /snapshot/create", Some(machine)) => {
            machine.save(path(&body["snapshot_path"])?.as_ref())?;
            Err("the memory is saved by hugekit only".into())
        }
        ("PUT /snapshot/load", machine @ None) => {
            let (state, backend) = (path(&body["snapshot_path"])?, &body["mem_backend"]);
            let pager = path(&backend["backend_path"])?;
            let restored = machine.insert(Machine::restore(state.as_ref(), pager.as_ref())?);
            if body["resume_vm"] == true {
                restored.resume();
            }
            Ok((204, Value::Null))
        }
        (line, _) => Err(format!("cannot answer to {line:?} now").into()),
    }
}

fn receive(from: &mut UnixStream) -> Result<Option<Request>, Box<dyn Error>> {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let count = from.read(&mut part)?;
        if count == 0 {
            return Ok(None);
        }
        text.extend(&part[..count]);
        if let Some(request) = parse(&text)? {
            return Ok(Some(request));
        }
    }
}

/// `None` if more is to come.
fn parse(text: &[u8]) -> Result<Option<Request>, Box<dyn Error>> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(end) = head.parse(text)? else { return Ok(None) };
    let line = format!("{} {}", head.method.unwrap_or_default(), head.path.unwrap_or_default());
    let mut lengths = head.headers.iter().filter(|field| field.name == "Content-Length");
    let length = lengths.next().map_or(Ok("0"), |field| std::str::from_utf8(field.value))?;
    let Some(body) = text[end..].get(..length.parse()?) else { return Ok(None) };
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(body)? };
    Ok(Some(Request { line, body }))
}
