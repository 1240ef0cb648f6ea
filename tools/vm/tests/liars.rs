//! VMMs that do not do what they are asked.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};

use hugekit_vm::cloud_hypervisor::{ReadyMemory, Restore, RestoreError, Snapshot};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Bytes of the guest's memory, and of the head of each request.
const MEMORY: u64 = 4 << 20;
const HEAD: usize = 16;

/// Requests before the last one: the beginning, one slot of memory, configuration, state.
const STEPS: usize = 4;

const OK: [u8; HEAD] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn snapshot(folder: &Path) -> Snapshot {
    let manager = json!({
        "memory_ranges": {"data": [{"gpa": 0, "length": MEMORY}]},
        "guest_ram_mappings": [{"slot": 0, "gpa": 0, "size": MEMORY, "zone_id": "mem0"}],
    });
    let state = json!({
        "snapshots": {"memory-manager": {"snapshot_data": {"state": manager.to_string()}}},
        "snapshot_data": {"state": json!({"common_cpuid": []}).to_string()},
    });
    let config = json!({"memory": {"size": MEMORY}});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("state.json"), state.to_string()).unwrap();
    std::fs::write(folder.join("memory-ranges"), vec![7; MEMORY as usize]).unwrap();
    Snapshot::open(folder).unwrap()
}

/// A VMM that carries out so many requests, answers the next one with these bytes, and hangs up.
fn vmm(folder: &Path, steps: usize, last: &'static [u8]) -> JoinHandle<()> {
    let api = UnixListener::bind(folder.join("api")).unwrap();
    thread::spawn(move || {
        let (mut call, url) = request(&api);
        let receiver = UnixListener::bind(url).unwrap();
        let (mut peer, _) = receiver.accept().unwrap();
        for _ in 0..steps {
            skip_request(&mut peer);
            peer.write_all(&OK).unwrap();
        }
        skip_request(&mut peer);
        let _ = peer.write_all(last);
        let _ = call.write_all(b"HTTP/1.1 500 \r\nContent-Length: 5\r\n\r\nwords");
    })
}

/// The next request of the API, and the path in it. Connections without a request only ask who
/// listens.
fn request(api: &UnixListener) -> (UnixStream, String) {
    loop {
        let (mut call, _) = api.accept().unwrap();
        if let Some(url) = url(&mut call) {
            return (call, url);
        }
    }
}

/// The path in the request of the API, if there is one.
fn url(call: &mut UnixStream) -> Option<String> {
    let mut text = String::new();
    while !text.ends_with('}') {
        let mut byte = [0];
        if call.read(&mut byte).unwrap() == 0 {
            return None;
        }
        text.push(byte[0].into());
    }
    let body: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    Some(body["receiver_url"].as_str().unwrap().strip_prefix("unix:").unwrap().to_owned())
}

fn skip_request(peer: &mut UnixStream) {
    let mut head = [0; HEAD];
    peer.read_exact(&mut head).unwrap();
    let len = u64::from_le_bytes(head[8..].try_into().unwrap());
    peer.read_exact(&mut vec![0; len as usize]).unwrap();
}

/// The error after so many requests, of which a VMM answers the next with these bytes.
fn error(steps: usize, last: &'static [u8]) -> RestoreError {
    let folder = TempDir::new().unwrap();
    let snapshot = snapshot(folder.path());
    let memory = ReadyMemory::load(&snapshot).unwrap();
    let vmm = vmm(folder.path(), steps, last);
    let sent = Restore::new(&snapshot).send(&folder.path().join("api"), &memory);
    vmm.join().unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    sent.unwrap_err()
}

#[test]
fn every_step_may_be_refused() {
    let refused = error(0, &[2; HEAD]);
    assert!(matches!(refused, RestoreError::Refused { status: 500, .. }), "{refused:?}");
    for (steps, expected) in ["memory", "configuration", "state", "completion"].iter().enumerate() {
        match error(steps + 1, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) {
            RestoreError::Rejected { what, answer } => {
                assert_eq!((what, answer.as_str()), (*expected, "words"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn vmm_that_hangs_up_or_answers_half_is_an_error() {
    for last in [&[][..], &[1, 0, 0], &[0xff; HEAD]] {
        for steps in 1..=STEPS {
            let error = error(steps, last);
            assert!(matches!(error, RestoreError::Rejected { .. }), "{error:?}");
        }
    }
}

#[test]
fn api_that_refuses_at_the_end_is_an_error() {
    let error = error(STEPS, &OK);
    assert!(matches!(error, RestoreError::Refused { status: 500, .. }), "{error:?}");
}

/// Another program, or another version, listens at the socket.
#[test]
fn api_that_answers_nonsense_is_an_error_with_the_nonsense() {
    for (text, words) in [
        ("garbage\r\n\r\n", "not an HTTP answer"),
        ("HTTP/1.1 204 \r\n\r\n", "not found here"),
        ("HTTP/1.1 404 \r\n\r\n", "404"),
        ("", "hung up"),
    ] {
        let folder = TempDir::new().unwrap();
        let snapshot = snapshot(folder.path());
        let memory = ReadyMemory::load(&snapshot).unwrap();
        let api = UnixListener::bind(folder.path().join("api")).unwrap();
        let vmm = thread::spawn(move || request(&api).0.write_all(text.as_bytes()).unwrap());
        let refused = Restore::new(&snapshot).send(&folder.path().join("api"), &memory);
        vmm.join().unwrap();
        let refused = refused.unwrap_err();
        let chain = format!("{refused} {:?}", std::error::Error::source(&refused));
        assert!(chain.contains(words) && refused.remedy().is_some(), "{text}: {chain}");
    }
}

/// A VMM that may not listen beside its API.
#[test]
fn vmm_that_may_not_write_to_the_folder_listens_in_a_new_one() {
    let folder = TempDir::new().unwrap();
    let snapshot = snapshot(folder.path());
    let memory = ReadyMemory::load(&snapshot).unwrap();
    let api = UnixListener::bind(folder.path().join("api")).unwrap();
    let vmm = thread::spawn(move || {
        let (mut call, first) = request(&api);
        let words = "Error binding to UNIX socket: Permission denied";
        let length = words.len();
        write!(call, "HTTP/1.1 500 \r\nContent-Length: {length}\r\n\r\n{words}").unwrap();
        let (mut call, second) = request(&api);
        let receiver = UnixListener::bind(&second).unwrap();
        let (mut peer, _) = receiver.accept().unwrap();
        for _ in 0..=STEPS {
            skip_request(&mut peer);
            peer.write_all(&OK).unwrap();
        }
        call.write_all(b"HTTP/1.1 204 \r\n\r\n").unwrap();
        (first, second)
    });
    Restore::new(&snapshot).send(&folder.path().join("api"), &memory).unwrap();
    let (first, second) = vmm.join().unwrap();
    assert!(first.starts_with(folder.path().to_str().unwrap()), "{first}");
    let made = Path::new(&second).parent().unwrap();
    assert!(made.starts_with("/tmp") && !made.exists(), "{second}");
}

#[test]
fn vmm_that_may_listen_nowhere_is_an_error_with_its_words() {
    let folder = TempDir::new().unwrap();
    let snapshot = snapshot(folder.path());
    let memory = ReadyMemory::load(&snapshot).unwrap();
    let api = UnixListener::bind(folder.path().join("api")).unwrap();
    let vmm = thread::spawn(move || {
        for _ in 0..2 {
            let (mut call, _) = request(&api);
            let words = "HTTP/1.1 500 \r\nContent-Length: 28\r\n\r\nError binding to UNIX socket";
            call.write_all(words.as_bytes()).unwrap();
        }
    });
    let refused = Restore::new(&snapshot).send(&folder.path().join("api"), &memory);
    vmm.join().unwrap();
    let refused = refused.unwrap_err();
    assert!(matches!(refused, RestoreError::Place { .. }), "{refused:?}");
    assert!(refused.remedy().unwrap().contains("folder of its API socket"));
}

/// A VMM whose path leads somewhere else waits for a sender, and does not answer.
#[test]
fn socket_that_is_not_found_here_is_not_waited_for_longer_than_for_a_start() {
    let folder = TempDir::new().unwrap();
    let snapshot = snapshot(folder.path());
    let memory = ReadyMemory::load(&snapshot).unwrap();
    let api = UnixListener::bind(folder.path().join("api")).unwrap();
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    let vmm = thread::spawn(move || {
        let call = request(&api);
        let _ = ended.recv();
        drop(call);
    });
    let refused = Restore::new(&snapshot).send(&folder.path().join("api"), &memory);
    drop(ends);
    vmm.join().unwrap();
    let refused = refused.unwrap_err();
    assert!(matches!(refused, RestoreError::Unreachable { .. }), "{refused:?}");
    assert!(refused.remedy().unwrap().contains("end the VMM"));
}
