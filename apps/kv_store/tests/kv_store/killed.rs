//! Servers that are killed at any moment, while clients write and saves run, against a log of what was acknowledged.
//!
//! What is there after the kill has to be one moment of the log: of each client a number of its requests from the first
//! on, all that were acknowledged before the last completed save began among them, and none that was sent after one that is
//! missing was acknowledged. `HUGEKIT_KILLS` says how often; a handful unless said.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Check;
use crate::client::{Client, request};
use crate::server::{Server, folder};

const USUAL: usize = 6;
/// The longest that a test waits for a save.
const LONGEST: Duration = Duration::from_secs(60);
const CLIENTS: usize = 3;
/// Of each client.
const KEYS: usize = 400;

/// Images are frequent beside deltas here, so that some are killed, too.
const ARGUMENTS: [&str; 4] = ["--memory", "128MiB", "--chain-deltas", "3"];

/// Keys and numbers of their values. A number is written once.
type State = BTreeMap<String, u64>;

/// One request, which sets a key or deletes it.
struct Sent {
    key: String,
    number: Option<u64>,
    at: Instant,
    acknowledged: Option<Instant>,
}

/// Bytes that follow from the key and the number.
fn value(key: &str, number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number ^ key.len() as u64);
    let bits = random.usize(..10);
    let len = random.usize(..1 << bits);
    let mut value = format!("{key} {number} ").into_bytes();
    value.extend((0..len).map(|_| random.u8(..)));
    value
}

/// The number of a value, all of whose bytes were written together.
fn number_of(key: &str, bytes: &[u8]) -> u64 {
    let number = bytes.split(|&byte| byte == b' ').nth(1).expect("a number");
    let number = std::str::from_utf8(number).unwrap().parse().unwrap();
    assert!(bytes == value(key, number), "{key} has bytes that were never written");
    number
}

fn connect(port: u16) -> Option<Client> {
    TcpStream::connect(("127.0.0.1", port)).ok().map(|stream| Client(BufReader::new(stream)))
}

/// The first line of an answer; `None` if the server is gone before that.
fn ask(client: &mut Client, words: &[&[u8]]) -> Option<String> {
    client.0.get_mut().write_all(&request(words)).ok()?;
    let mut line = String::new();
    client.0.read_line(&mut line).ok()?;
    line.ends_with('\n').then_some(line)
}

/// Whether a save is running, and whether the last one went well.
fn saving(client: &mut Client) -> Option<(bool, bool)> {
    let line = ask(client, &[b"INFO"])?;
    let len: usize = line[1..].trim().parse().unwrap();
    let mut text = vec![0; len + 2];
    client.0.read_exact(&mut text).ok()?;
    let text = String::from_utf8(text).unwrap();
    let running = text.contains("rdb_bgsave_in_progress:1");
    Some((running, text.contains("rdb_last_bgsave_status:ok")))
}

/// Writes until the server is gone.
fn write(port: u16, client: usize, first: u64) -> Vec<Sent> {
    let (mut random, mut log) = (fastrand::Rng::with_seed(first), Vec::new());
    let Some(mut connection) = connect(port) else { return log };
    for number in first.. {
        let key = format!("{client}:{}", random.usize(..KEYS));
        let (bytes, is_set) = (value(&key, number), random.u8(..8) > 0);
        let words: &[&[u8]] = match is_set {
            true => &[b"SET", key.as_bytes(), &bytes],
            false => &[b"DEL", key.as_bytes()],
        };
        let at = Instant::now();
        let answer = ask(&mut connection, words);
        let acknowledged = answer.as_ref().map(|_| Instant::now());
        log.push(Sent { key, number: is_set.then_some(number), at, acknowledged });
        match answer {
            None => return log,
            Some(answer) => assert!(!answer.starts_with('-'), "{answer}"),
        }
    }
    unreachable!("numbers suffice")
}

/// Saves until the server is gone. Returns when the last save that was completed had begun, at the latest.
fn save(port: u16, is_completed: &AtomicBool) -> Option<Instant> {
    let (mut completed, mut connection) = (None, connect(port)?);
    loop {
        let began = Instant::now();
        let Some(answer) = ask(&mut connection, &[b"BGSAVE"]) else { return completed };
        assert!(answer.starts_with("+Background"), "{answer}");
        loop {
            match saving(&mut connection) {
                None => return completed,
                Some((true, _)) => thread::sleep(Duration::from_millis(1)),
                Some((false, went_well)) => {
                    assert!(went_well);
                    completed = Some(began);
                    is_completed.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
    }
}

/// When a server is killed.
struct Kill {
    after: Duration,
    /// Not before a save was completed, which a busy machine may take long for.
    needs_save: bool,
}

/// A server that is killed, with the requests that its clients sent.
fn run_and_kill(server: Server, kill: &Kill, first: u64) -> (Vec<Vec<Sent>>, Option<Instant>) {
    let (port, is_completed) = (server.port, &AtomicBool::new(false));
    thread::scope(|scope| {
        let writers: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || write(port, client, first))).collect();
        let saver = scope.spawn(move || save(port, is_completed));
        thread::sleep(kill.after);
        let began = Instant::now();
        while kill.needs_save && !is_completed.load(Ordering::Relaxed) && began.elapsed() < LONGEST
        {
            thread::sleep(Duration::from_millis(1));
        }
        server.kill();
        let logs = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (logs, saver.join().unwrap())
    })
}

/// What the server holds, every byte of it looked at.
fn held(client: &mut Client) -> State {
    let mut state = State::new();
    for key in (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |key| format!("{client}:{key}"))) {
        if let Some(bytes) = client.get(&key) {
            let number = number_of(&key, &bytes);
            state.insert(key, number);
        }
    }
    assert_eq!(client.integer("DBSIZE") as usize, state.len());
    state
}

/// After how many requests of one client its keys were as they are found: the fewest and the most.
fn cuts(client: usize, before: &State, log: &[Sent], found: &State) -> Option<[usize; 2]> {
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
        if let Some(sent) = log.get(cut) {
            match sent.number {
                Some(number) => state.insert(sent.key.clone(), number),
                None => state.remove(&sent.key),
            };
        }
    }
    Some([*matching.first()?, *matching.last()?])
}

fn is_one_moment(before: &State, logs: &[Vec<Sent>], saved: Option<Instant>, found: &State) {
    let cuts: Vec<[usize; 2]> = logs
        .iter()
        .enumerate()
        .map(|(client, log)| {
            cuts(client, before, log, found)
                .unwrap_or_else(|| panic!("client {client}'s keys never were as they are"))
        })
        .collect();
    for (log, &[_, most]) in logs.iter().zip(&cuts) {
        let is_saved =
            |sent: &Sent| saved.is_some_and(|at| sent.acknowledged.is_some_and(|then| then < at));
        let lost = log[most..].iter().filter(|sent| is_saved(sent)).count();
        assert_eq!(lost, 0, "requests that were saved are lost");
        let Some(missing) = log.get(most).and_then(|sent| sent.acknowledged) else { continue };
        for (other, &[fewest, _]) in logs.iter().zip(&cuts) {
            let is_later = |sent: &Sent| sent.at > missing;
            assert!(!other[..fewest].iter().any(is_later), "two moments are mixed");
        }
    }
}

/// Starts a server and kills it while it loads, perhaps.
fn kill_while_it_starts(folder: &Path, after: Duration) {
    let mut child = Server::command(folder, &ARGUMENTS).stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn server_killed_at_any_moment_loses_at_most_the_last_delta() {
    let kills = std::env::var("HUGEKIT_KILLS").ok().and_then(|kills| kills.parse().ok());
    let (folder, mut random) = (folder(), fastrand::Rng::new());
    eprintln!("seed {}", random.get_seed());
    let (mut state, mut next, mut completed) = (State::new(), 1_u64, 0);
    let kills = kills.unwrap_or(USUAL);
    for round in 1..=kills {
        let server = Server::start_with(folder.path(), &ARGUMENTS);
        let after = Duration::from_micros(random.u64(1000..700_000));
        let kill = Kill { after, needs_save: round == kills && completed == 0 };
        let (logs, saved) = run_and_kill(server, &kill, next);
        completed += usize::from(saved.is_some());
        if random.u8(..3) == 0 {
            kill_while_it_starts(folder.path(), Duration::from_micros(random.u64(..60_000)));
        }
        let server = Server::start_with(folder.path(), &ARGUMENTS);
        let found = held(&mut server.client());
        is_one_moment(&state, &logs, saved, &found);
        let sent = logs.iter().map(Vec::len).max().unwrap_or(0);
        (state, next) = (found, next + sent as u64);
        server.kill();
    }
    assert!(completed > 0, "no save was completed in any round");
}

pub(crate) const SAVING: &[Check] = &[(
    "server_killed_at_any_moment_loses_at_most_the_last_delta",
    server_killed_at_any_moment_loses_at_most_the_last_delta,
)];
