//! Servers that are killed at any moment, while clients write and saves run, against a log of all
//! requests.
//!
//! The state after a kill has to be one moment of the log. It has the first requests of each client,
//! with all that were acknowledged before the last completed save began. No request in it was sent
//! after one that is missing was acknowledged. `HUGEKIT_KILLS` is the number of kills.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::tempdir;

use crate::server::{Client, Server};
use crate::{Checks, checks};

const CLIENTS: usize = 3;
/// Of each client.
const KEYS: usize = 400;
/// Images are frequent here, so that some are killed, too.
const ARGUMENTS: [&str; 4] = ["--memory", "128MiB", "--chain-deltas", "3"];

/// Keys with the numbers of their values. A number is written once.
type State = BTreeMap<String, u64>;

/// A request that sets a key, or deletes it.
struct Sent {
    key: String,
    number: Option<u64>,
    at: Instant,
    acknowledged: Option<Instant>,
}

type Log = Vec<Sent>;

/// The bytes that are written with a number.
fn value(key: &str, number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number ^ key.len() as u64);
    let bits = random.usize(..10);
    let len = random.usize(..1 << bits);
    let mut value = format!("{key} {number} ").into_bytes();
    value.extend((0..len).map(|_| random.u8(..)));
    value
}

fn number_of(key: &str, bytes: &[u8]) -> u64 {
    let number = bytes.split(|&byte| byte == b' ').nth(1).expect("a number");
    let number = std::str::from_utf8(number).unwrap().parse().unwrap();
    assert!(bytes == value(key, number), "{key} has bytes that were never written together");
    number
}

/// Writes until the server is gone.
fn write(mut connection: Client<TcpStream>, client: usize, first: u64) -> Log {
    let (mut random, mut log) = (fastrand::Rng::with_seed(first), Vec::new());
    for number in first.. {
        let key = format!("{client}:{}", random.usize(..KEYS));
        let (bytes, is_set) = (value(&key, number), random.u8(..8) > 0);
        let words: &[&[u8]] = match is_set {
            true => &[b"SET", key.as_bytes(), &bytes],
            false => &[b"DEL", key.as_bytes()],
        };
        let at = Instant::now();
        let reply = connection.try_ask(words);
        let acknowledged = reply.as_ref().map(|_| Instant::now());
        log.push(Sent { key, number: is_set.then_some(number), at, acknowledged });
        assert!(matches!(reply, Some(Value::Okay | Value::Int(_)) | None), "{reply:?}");
        if reply.is_none() {
            break;
        }
    }
    log
}

/// Saves until the server is gone. Returns when the last completed save began.
fn save(mut connection: Client<TcpStream>) -> Option<Instant> {
    let (mut began, mut completed) = (Instant::now(), None);
    loop {
        let Some(Value::BulkString(info)) = connection.try_ask(&["INFO"]) else { return completed };
        let info = String::from_utf8(info).unwrap();
        assert!(info.contains("rdb_last_bgsave_status:ok"));
        if info.contains("rdb_bgsave_in_progress:1") {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        completed = (!info.contains("last_save_kind:none")).then_some(began);
        began = Instant::now();
        let started = connection.try_ask(&["BGSAVE"]);
        assert!(matches!(started, Some(Value::SimpleString(_)) | None), "{started:?}");
    }
}

/// Kills a server with clients. Returns the logs, and when the last completed save began.
fn kill(mut server: Server, after: Duration, first: u64) -> (Vec<Log>, Option<Instant>) {
    let connections = [(); CLIENTS].map(|()| server.client()).into_iter().enumerate();
    let saver = server.client();
    thread::scope(|scope| {
        let write = |(client, connection)| scope.spawn(move || write(connection, client, first));
        let writers: Vec<_> = connections.map(write).collect();
        let saver = scope.spawn(move || save(saver));
        thread::sleep(after);
        server.child.kill().unwrap();
        let logs = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (logs, saver.join().unwrap())
    })
}

/// The state of a server, each byte of which is compared.
fn found(client: &mut Client<TcpStream>) -> State {
    let keys = (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |key| format!("{client}:{key}")));
    let mut number = |key: String| client.get(&key).map(|bytes| (number_of(&key, &bytes), key));
    let state: State = keys.filter_map(&mut number).map(|(number, key)| (key, number)).collect();
    assert_eq!(client.ask("DBSIZE"), Value::Int(state.len() as i64));
    state
}

/// After how many requests the keys of a client were as they are found: the fewest and the most.
fn cuts(client: usize, before: &State, log: &[Sent], found: &State) -> [usize; 2] {
    let own = |state: &State| -> State {
        let prefix = format!("{client}:");
        let own = state.iter().filter(|(key, _)| key.starts_with(&prefix));
        own.map(|(key, &number)| (key.clone(), number)).collect()
    };
    let (mut state, found) = (own(before), own(found));
    let mut matching = Vec::new();
    for cut in 0..=log.len() {
        if state == found {
            matching.push(cut);
        }
        if let Some(Sent { key, number, .. }) = log.get(cut) {
            match number {
                Some(number) => state.insert(key.clone(), *number),
                None => state.remove(key),
            };
        }
    }
    assert!(!matching.is_empty(), "the keys of client {client} were never as they are");
    [matching[0], matching[matching.len() - 1]]
}

fn is_one_moment(before: &State, logs: &[Log], saved: Option<Instant>, found: &State) {
    let cuts: Vec<[usize; 2]> =
        logs.iter().enumerate().map(|(client, log)| cuts(client, before, log, found)).collect();
    for (log, &[_, most]) in logs.iter().zip(&cuts) {
        let is_saved =
            |sent: &Sent| sent.acknowledged.zip(saved).is_some_and(|(at, saved)| at < saved);
        assert!(!log[most..].iter().any(is_saved), "a request that was saved is lost");
        let Some(missing) = log.get(most).and_then(|sent| sent.acknowledged) else { continue };
        for (other, &[fewest, _]) in logs.iter().zip(&cuts) {
            let is_later = |sent: &Sent| sent.at > missing;
            assert!(!other[..fewest].iter().any(is_later), "two moments are mixed");
        }
    }
}

fn server_killed_at_any_moment_loses_at_most_the_last_delta() {
    let kills = std::env::var("HUGEKIT_KILLS").map_or(6, |kills| kills.parse().expect("a number"));
    let (folder, mut random) = (tempdir().unwrap(), fastrand::Rng::new());
    eprintln!("seed {}", random.get_seed());
    let (mut state, mut next, mut completed, mut longest) = (State::new(), 1, 0, 700_000);
    for kill_number in 1.. {
        let server = Server::start(folder.path(), &ARGUMENTS);
        let after = Duration::from_micros(random.u64(1000..longest));
        let (logs, saved) = kill(server, after, next);
        completed += usize::from(saved.is_some());
        if random.u8(..3) == 0 {
            // Killed while it loads, perhaps.
            let mut command = Server::command(folder.path(), &ARGUMENTS);
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_micros(random.u64(..60_000)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let server = Server::start(folder.path(), &ARGUMENTS);
        let found = found(&mut server.client());
        is_one_moment(&state, &logs, saved, &found);
        next += logs.iter().map(Vec::len).max().unwrap_or(0) as u64;
        state = found;
        if kill_number >= kills {
            if completed > 0 {
                break;
            }
            // On a busy machine a save takes longer.
            longest *= 2;
            assert!(kill_number < kills + 8, "no save was completed");
        }
    }
}

pub(crate) const CHECKS: Checks = checks![server_killed_at_any_moment_loses_at_most_the_last_delta];
