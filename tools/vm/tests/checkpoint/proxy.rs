//! A proxy of Firecracker's API: a test sees each request, and acts before or after it at that very
//! moment.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::scene::LONGEST_WAIT;

/// What is done with a request: an answer instead of the VMM's, or `None` to forward it.
pub(crate) type Act = Box<dyn FnMut(&str, &dyn Fn(&str) -> String) -> Option<String> + Send>;

/// Also takes a stock snapshot in the same pause, after each request for a snapshot.
pub(crate) fn also_saving_to(stock: &Path) -> Act {
    let body = serde_json::json!({
        "snapshot_type": "Full", "snapshot_path": stock.with_extension("state"),
        "mem_file_path": stock,
    });
    let take = request("PUT", "/snapshot/create", &body.to_string());
    Box::new(move |request, forward| {
        let answer = forward(request);
        if request.starts_with("PUT /snapshot/create") {
            assert!(forward(&take).contains("204"));
        }
        Some(answer)
    })
}

/// Holds back the answer that the VM runs again.
pub(crate) fn holding_resume() -> (Act, Receiver<()>, Sender<()>) {
    holding("Resumed")
}

/// Holds back the answer to the first request with these words, which the VMM has carried out. Also
/// returns the end that hears of that, and the end that lets the answer pass.
pub(crate) fn holding(words: &'static str) -> (Act, Receiver<()>, Sender<()>) {
    let (comes, came) = channel();
    let (go_on, goes_on) = channel();
    let mut is_first = true;
    let hold: Act = Box::new(move |request, forward| {
        let answer = forward(request);
        if request.contains(words) && std::mem::take(&mut is_first) {
            comes.send(()).unwrap();
            goes_on.recv_timeout(LONGEST_WAIT).unwrap();
        }
        Some(answer)
    });
    (hold, came, go_on)
}

/// Forwards one request after the other until it is dropped.
pub(crate) struct Proxy {
    pub(crate) socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start(to: &Path, mut act: Act) -> Self {
        let socket = to.with_extension("proxy");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (to, stopped) = (to.to_owned(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => serve(stream, &to, &mut act),
                    Err(_) => std::thread::sleep(Duration::from_micros(200)),
                }
            }
        });
        Self { socket, stop, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let done = thread.join();
            assert!(done.is_ok() || std::thread::panicking(), "the proxy has panicked");
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn serve(mut from: UnixStream, to: &Path, act: &mut Act) {
    from.set_nonblocking(false).unwrap();
    from.set_read_timeout(Some(LONGEST_WAIT)).unwrap();
    let request = read_message(&mut from);
    let forward = |request: &str| send(to, request);
    let answer = act(&request, &forward).unwrap_or_else(|| forward(&request));
    let _ = from.write_all(answer.as_bytes());
}

/// Sends a request to an API; the answer, which is empty if the VMM has ended.
pub(crate) fn send(to: &Path, request: &str) -> String {
    let Ok(mut stream) = UnixStream::connect(to) else { return String::new() };
    stream.set_read_timeout(Some(LONGEST_WAIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    read_message(&mut stream)
}

/// A request with a JSON body.
pub(crate) fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Head and body of a request or an answer.
fn read_message(from: &mut UnixStream) -> String {
    let mut text = String::new();
    let mut part = [0; 4096];
    while !is_whole(&text) {
        match from.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(count) => text.push_str(std::str::from_utf8(&part[..count]).unwrap()),
        }
    }
    text
}

fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    body.len() >= length.map_or(0, |length| length.trim().parse().unwrap())
}
