//! Servers that are killed while clients write and saves run, against a log of all transactions: when a
//! save has begun, and at any moment.
//!
//! Each transaction adds one to a number of all clients, and one to a number of its client. So the
//! state after a kill names its moment: it has to have all transactions up to there, and no other. The
//! last completed save began at that moment or before it.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use hugekit_testing::checks;
use hugekit_testing::processes::{Killed, happens};
use hugekit_testing::seed::random;
use hugekit_testing::trials::Checks;
use redis::Value;

use crate::server::{Client, Model, Server};

/// Kills at random moments.
const KILLS: u32 = 100;
const CLIENTS: usize = 3;
/// Of each client.
const KEYS: usize = 400;
/// Images are frequent here, so that some are killed, too.
const OPTIONS: &str = "--memory 128MiB --chain-deltas 3";

/// A transaction that sets a key, or deletes it.
struct Sent {
    key: String,
    value: Option<Vec<u8>>,
    /// The number of transactions of all clients so far, if it was acknowledged.
    moment: Option<u64>,
}

/// The transactions of a client, in order.
type Log = Vec<Sent>;

/// Writes until the server is gone. Values have any length, most of them short.
fn write(Client(mut connection): Client, name: usize, mut random: Rng, log: &mut Log) {
    loop {
        let key = format!("{name}:{}", random.usize(..KEYS));
        let bits = random.usize(..10);
        let bytes = (0..random.usize(..1 << bits)).map(|_| random.u8(..)).collect();
        let value: Option<Vec<u8>> = (random.u8(..8) > 0).then_some(bytes);
        let mut request = redis::pipe();
        request.atomic().cmd("INCR").arg("moment").cmd("INCR").arg(name).ignore();
        match &value {
            Some(value) => request.cmd("SET").arg(&key).arg(value).ignore(),
            None => request.cmd("DEL").arg(&key).ignore(),
        };
        let reply = request.query::<(u64,)>(&mut connection);
        assert!(reply.as_ref().err().is_none_or(redis::RedisError::is_io_error), "{reply:?}");
        let moment = reply.ok().map(|(moment,)| moment);
        log.push(Sent { key, value, moment });
        if moment.is_none() {
            return;
        }
    }
}

/// Saves until the server is gone, and counts the saves that have begun. Returns a moment that the last
/// completed save has.
fn save(mut client: Client, count: &AtomicU64) -> Option<u64> {
    let (mut began, mut completed) = (None, None);
    loop {
        let Some(Value::BulkString(info)) = client.try_ask(&["INFO"]) else { return completed };
        let info = String::from_utf8(info).unwrap();
        assert!(info.contains("rdb_last_bgsave_status:ok"));
        if info.contains("rdb_bgsave_in_progress:1") {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        completed = began;
        let Some(moment) = client.number("moment") else { return completed };
        let started = client.try_ask(&["BGSAVE"]);
        assert!(matches!(started, Some(Value::SimpleString(_)) | None), "{started:?}");
        began = started.map(|_| moment);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills a server with clients when `wait` returns, which gets the number of saves that have begun.
/// Returns a moment that the last completed save has.
fn kill(
    server: &mut Server,
    random: &mut Rng,
    logs: &mut [Log; CLIENTS],
    wait: impl FnOnce(&AtomicU64),
) -> Option<u64> {
    let connections = [(); CLIENTS].map(|()| server.client());
    let (saver, saves) = (server.client(), AtomicU64::new(0));
    thread::scope(|scope| {
        for (name, (client, log)) in connections.into_iter().zip(logs).enumerate() {
            let random = random.fork();
            scope.spawn(move || write(client, name, random, log));
        }
        let saver = scope.spawn(|| save(saver, &saves));
        wait(&saves);
        server.process = None;
        saver.join().unwrap()
    })
}

/// Compares each byte. The logs lose the transactions that the server has lost.
fn is_one_moment(client: &mut Client, logs: &mut [Log; CLIENTS], saved: Option<u64>) {
    let moment = client.number("moment").unwrap();
    assert!(saved.is_none_or(|saved| saved <= moment), "a transaction that was saved is lost");
    let (mut state, mut all) = (Model::new(), 0);
    for (name, log) in logs.iter_mut().enumerate() {
        let count = client.number(&name.to_string()).unwrap();
        all += count;
        let mut lost = log.split_off(count as usize).into_iter().filter_map(|sent| sent.moment);
        let mut there = log.iter().filter_map(|sent| sent.moment);
        assert!(there.all(|at| at <= moment) && lost.all(|at| at > moment), "moments are mixed");
        for Sent { key, value, .. } in log {
            match value {
                Some(value) => state.insert(key.clone(), value.clone()),
                None => state.remove(key),
            };
        }
        state.extend((count > 0).then(|| (name.to_string(), count.to_string().into_bytes())));
    }
    assert_eq!(all, moment);
    state.extend((all > 0).then(|| ("moment".to_owned(), all.to_string().into_bytes())));
    client.holds(&state);
}

/// The first save is a full one, and those after it are deltas.
fn server_killed_when_a_save_has_begun_loses_at_most_this_save() {
    let (mut server, mut random) = (Server::start(OPTIONS), random());
    let mut logs = [const { Log::new() }; CLIENTS];
    for number in 2..=3 {
        let saved = kill(&mut server, &mut random, &mut logs, |saves| {
            assert!(happens(|| saves.load(Ordering::Relaxed) >= number), "no save begins");
        });
        assert!(saved.is_some(), "no save was completed");
        server.restart(OPTIONS);
        is_one_moment(&mut server.client(), &mut logs, saved);
    }
}

fn server_killed_at_any_moment_loses_at_most_the_last_delta() {
    let (mut server, mut random) = (Server::start(OPTIONS), random());
    let (mut logs, mut completed) = ([const { Log::new() }; CLIENTS], 0);
    for _ in 0..KILLS {
        let moment = Duration::from_micros(random.u64(1000..700_000));
        let saved = kill(&mut server, &mut random, &mut logs, |_| thread::sleep(moment));
        completed += usize::from(saved.is_some());
        if random.u8(..3) == 0 {
            // Killed while it loads, perhaps.
            let _child = Killed(server.command(OPTIONS).stderr(Stdio::null()).spawn().unwrap());
            thread::sleep(Duration::from_micros(random.u64(..60_000)));
        }
        server.restart(OPTIONS);
        is_one_moment(&mut server.client(), &mut logs, saved);
    }
    assert!(completed > 0, "no save was completed");
}

pub(crate) const CHECKS: Checks = checks![
    server_killed_when_a_save_has_begun_loses_at_most_this_save,
    "[nightly: it kills at random moments] "
        server_killed_at_any_moment_loses_at_most_the_last_delta,
];
