//! Saves while clients write, and saves that stop in the middle.

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redis::Value;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::server::{Client, Model, Server, model};
use crate::{Checks, checks};

fn number(client: &mut Client<TcpStream>, key: &str) -> Option<u64> {
    client.get(key).map(|number| String::from_utf8(number).unwrap().parse().unwrap())
}

/// The save has what was set before BGSAVE, nothing that was set after it, and each MSET whole.
fn bgsave_under_load_is_one_moment() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), &["--memory", "128MiB"]);
    let (mut random, mut client) = (fastrand::Rng::with_seed(7), server.client());
    let saved = model(&mut random, 20_000);
    client.set_all(&saved);
    let stop = AtomicBool::new(false);
    let (before, after) = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                client.ask(&format!("MSET n:1 {number} n:2 {number} n:3 {number} n:4 {number}"));
                client.ask(&format!("SET n:last {number}"));
            }
        });
        let before = std::iter::repeat_with(|| number(&mut client, "n:last")).find_map(|n| n);
        assert!(matches!(client.ask("BGSAVE"), Value::SimpleString(_)));
        let after = number(&mut client, "n:last");
        for (key, value) in model(&mut random, 20_000) {
            match random.u8(..4) {
                0 => drop(client.ask(&format!("DEL {key}"))),
                _ => client.set(&key, &value),
            }
        }
        assert_eq!(client.end_of_save(), "ok");
        stop.store(true, Ordering::Relaxed);
        (before.unwrap(), after.unwrap())
    });
    drop(server);
    let server = Server::start(folder.path(), &["--memory", "128MiB"]);
    let mut client = server.client();
    let found = ["n:1", "n:2", "n:3", "n:4", "n:last"].map(|key| number(&mut client, key).unwrap());
    assert!(found[..4].iter().all(|&number| number == found[0]), "{found:?}");
    assert!(found[4] == found[0] || found[4] + 1 == found[0], "{found:?}");
    assert!((before..=after + 1).contains(&found[0]), "{before} {found:?} {after}");
    assert_eq!(client.ask("DEL n:1 n:2 n:3 n:4 n:last"), Value::Int(5));
    client.holds(&saved);
}

/// Begins a save whose file is a pipe: the save stops in the middle until the pipe is read.
fn stop_in_the_middle(folder: &Path, client: &mut Client<TcpStream>) -> File {
    let pipe = folder.join("dump.hkv.part");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(matches!(client.ask("BGSAVE"), Value::SimpleString(_)));
    File::open(&pipe).unwrap()
}

/// Entries of 25 to 4000 bytes, all written again and again, in memory for few more: writers have to
/// write what the save has still to read.
fn set_beside_a_save_that_stops_copies_what_was() {
    let folder = tempdir().unwrap();
    for (memory, rounds) in [("64MiB", 2), ("12MiB", 8)] {
        let server = Server::start(folder.path(), &["--memory", memory]);
        let (mut random, mut client) = (fastrand::Rng::with_seed(5), server.client());
        let sizes = [1, 500, 3000];
        let mut entries = || -> Model {
            let value = |key| (format!("key:{key}"), vec![random.u8(..); sizes[random.usize(..3)]]);
            (0..3000).map(value).collect()
        };
        let saved = entries();
        client.set_all(&saved);
        let mut pipe = stop_in_the_middle(folder.path(), &mut client);
        assert!(client.error("BGSAVE").contains("already in progress"));
        assert!(client.error("SAVE").contains("already in progress"));
        let mut held = Model::new();
        client.ask("FLUSHALL");
        for _ in 0..rounds {
            held.extend(entries());
            client.set_all(&held);
        }
        let mut image = Vec::new();
        pipe.read_to_end(&mut image).unwrap();
        // A pipe cannot be synchronised with a disk.
        assert_eq!(client.end_of_save(), "err");
        client.holds(&held);
        drop(server);
        fs::write(folder.path().join("dump.hkv"), image).unwrap();
        Server::start(folder.path(), &["--memory", memory]).client().holds(&saved);
        fs::remove_file(folder.path().join("dump.hkv")).unwrap();
    }
}

fn save_of_keys_that_expire_leaves_them_out() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), &["--memory", "16MiB"]);
    let mut client = server.client();
    client.ask("SET later 1 EX 10000");
    client.ask("SET soon 1 PX 20");
    client.ask("SET unseen 1 PX 20");
    while client.get("soon").is_some() {}
    assert_eq!((client.ask("TTL soon"), client.ask("INCR soon")), (Value::Int(-2), Value::Int(1)));
    // No client has looked at `unseen`.
    assert_eq!(client.ask("DBSIZE"), Value::Int(3));
    client.save();
    drop(server);
    let server = Server::start(folder.path(), &["--memory", "16MiB"]);
    assert_eq!(server.client().ask("DBSIZE"), Value::Int(2));
    assert!(matches!(server.client().ask("TTL later"), Value::Int(9_000..=10_000)));
}

/// SHUTDOWN and SIGTERM save, SHUTDOWN NOSAVE does not.
fn end_of_each_kind_saves_as_it_is_asked() {
    let folder = tempdir().unwrap();
    let start = || Server::start(folder.path(), &["--memory", "16MiB"]);
    for (end, value, found) in
        [("SHUTDOWN", "1", "1"), ("SHUTDOWN NOSAVE", "2", "1"), ("", "3", "3")]
    {
        let mut server = start();
        server.client().set("a", value.as_bytes());
        assert!(Server::refused(folder.path(), &[]).contains("in use by another server"));
        match end {
            "" => kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap(),
            end => server.client().send(&end.split(' ').collect::<Vec<_>>()).unwrap(),
        }
        assert!(server.child.wait().unwrap().success());
        assert_eq!(start().client().get("a"), Some(found.as_bytes().to_vec()));
    }
}

pub(crate) const CHECKS: Checks = checks![
    bgsave_under_load_is_one_moment,
    end_of_each_kind_saves_as_it_is_asked,
    save_of_keys_that_expire_leaves_them_out,
    set_beside_a_save_that_stops_copies_what_was,
];
