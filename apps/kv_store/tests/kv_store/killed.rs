//! Servers that are killed at any moment, while clients write and saves run, against a log of all
//! requests.
//!
//! The state after a kill has to be one moment of the log. It has the first requests of each client,
//! with all that were acknowledged before the last completed save began. No request in it was sent
//! after one that is missing was acknowledged. `HUGEKIT_KILLS` is the number of kills.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use hugekit_testing::checks;
use hugekit_testing::trials::Checks;
use redis::Value;

use crate::server::{Client, Killed, Server};

const CLIENTS: usize = 3;
/// Of each client.
const KEYS: usize = 400;
/// Images are frequent here, so that some are killed, too.
const OPTIONS: &str = "--memory 128MiB --chain-deltas 3";

/// The keys of a client, with the numbers of their values. A number is written once.
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
fn write(mut connection: Client, client: usize, first: u64) -> Log {
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
fn save(mut connection: Client) -> Option<Instant> {
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
fn kill(server: &mut Server, after: Duration, first: u64) -> (Vec<Log>, Option<Instant>) {
    let connections = [(); CLIENTS].map(|()| server.client()).into_iter().enumerate();
    let saver = server.client();
    thread::scope(|scope| {
        let write = |(client, connection)| scope.spawn(move || write(connection, client, first));
        let writers: Vec<_> = connections.map(write).collect();
        let saver = scope.spawn(move || save(saver));
        thread::sleep(after);
        server.process = None;
        let logs = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (logs, saver.join().unwrap())
    })
}

/// The state of each client, each byte of which is compared.
fn found(client: &mut Client) -> [State; CLIENTS] {
    let states: [State; CLIENTS] = std::array::from_fn(|number| {
        let keys = (0..KEYS).map(|key| format!("{number}:{key}"));
        let there = keys.filter_map(|key| client.get(&key).map(|bytes| (key, bytes)));
        there.map(|(key, bytes)| (key.clone(), number_of(&key, &bytes))).collect()
    });
    let count = states.iter().map(State::len).sum::<usize>();
    assert_eq!(client.ask("DBSIZE"), Value::Int(count as i64));
    states
}

/// After how many requests the keys of a client were as they are found: the fewest and the most.
fn cuts(before: &State, log: &[Sent], found: &State) -> [usize; 2] {
    let (mut state, mut matching) = (before.clone(), Vec::new());
    for cut in 0..=log.len() {
        if state == *found {
            matching.push(cut);
        }
        match log.get(cut) {
            Some(Sent { key, number: Some(number), .. }) => state.insert(key.clone(), *number),
            Some(Sent { key, number: None, .. }) => state.remove(key),
            None => None,
        };
    }
    assert!(!matching.is_empty(), "the keys of a client were never as they are");
    [matching[0], matching[matching.len() - 1]]
}

fn is_one_moment(before: &[State], logs: &[Log], saved: Option<Instant>, found: &[State]) {
    let clients = before.iter().zip(logs).zip(found);
    let cuts: Vec<_> = clients.map(|((before, log), found)| cuts(before, log, found)).collect();
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
    let (mut server, mut random) = (Server::start(OPTIONS), fastrand::Rng::new());
    eprintln!("seed {}", random.get_seed());
    let (mut states, mut next) = (<[State; CLIENTS]>::default(), 1);
    let (mut completed, mut longest) = (0, 700_000);
    for kill_number in 1.. {
        let after = Duration::from_micros(random.u64(1000..longest));
        let (logs, saved) = kill(&mut server, after, next);
        completed += usize::from(saved.is_some());
        if random.u8(..3) == 0 {
            // Killed while it loads, perhaps.
            let _child = Killed(server.command(OPTIONS).stderr(Stdio::null()).spawn().unwrap());
            thread::sleep(Duration::from_micros(random.u64(..60_000)));
        }
        server.restart(OPTIONS);
        let found = found(&mut server.client());
        is_one_moment(&states, &logs, saved, &found);
        next += logs.iter().map(Vec::len).max().unwrap_or(0) as u64;
        states = found;
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
