//! Saves while clients write, saves that stop in the middle, and files that are damaged or missing.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;

use hugekit_testing::checks;
use hugekit_testing::processes::happens;
use hugekit_testing::trials::Checks;
use redis::Value;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::server::{Model, Server, model};

const USUAL: &str = "--memory 64MiB";

/// A server that has saved an image and this many deltas, and the state at each save.
fn saved(deltas: usize) -> (Server, Vec<Model>) {
    let server = Server::start(USUAL);
    let (mut client, mut random) = (server.client(), fastrand::Rng::with_seed(21));
    let mut states = vec![model(&mut random, 3000)];
    client.set_all(&states[0]);
    assert_eq!(client.save(), "full");
    for number in 0..deltas {
        let changed = model(&mut random, 20);
        client.set_all(&changed);
        assert_eq!(client.save(), "delta");
        states.push(states[number].clone().into_iter().chain(changed).collect());
    }
    assert_eq!(server.deltas().len(), deltas);
    (server, states)
}

fn bgsave_after_another_writes_what_has_changed() {
    let (mut server, states) = saved(3);
    let full = fs::metadata(server.path("dump.hkv")).unwrap().len();
    for delta in server.deltas() {
        let len = fs::metadata(&delta).unwrap().len();
        // Of each entry up to three blocks, of its bucket another, and where a block was free a fifth.
        assert!(len < 20 * 5 * 4096 && len < full / 4, "{len} of {full}");
    }
    server.has_after_restart(USUAL, &states[3]);
    server.client().ask("FLUSHALL");
    assert_eq!(server.client().save(), "delta");
    server.has_after_restart("--memory 64MiB --chain-deltas 4", &Model::new());
    assert_eq!((server.client().save().as_str(), server.deltas().len()), ("full", 0));
}

fn start_with_a_damaged_delta_in_the_middle_is_refused() {
    let mut server = saved(2).0;
    server.process = None;
    let files = server.deltas();
    for file in [&server.path("dump.hkv"), &files[0]] {
        let good = fs::read(file).unwrap();
        for offset in (0..48).step_by(11).chain((48..good.len()).step_by(good.len() / 4)) {
            let mut bad = good.clone();
            bad[offset] ^= 1 << (offset % 8);
            fs::write(file, &bad).unwrap();
            let error = server.refused(USUAL);
            assert!(error.contains(file.file_name().unwrap().to_str().unwrap()), "{error}");
            // Damaged, or truncated: a damaged length may name more bytes than the file has.
            assert!(offset < 48 || error.contains("at byte "), "{error}");
            assert!(fs::read(file).unwrap() == bad);
        }
        fs::remove_file(file).unwrap();
        assert!(server.refused(USUAL).contains("missing"));
        fs::write(file, &good).unwrap();
    }
    fs::copy(&files[0], &files[1]).unwrap();
    assert!(server.refused("--memory 32MiB").contains("--memory is"));
    // The last delta is the first one: it does not begin with the state that is there.
    assert!(server.refused(USUAL).contains("begins with state"));
}

fn start_with_a_damaged_last_delta_has_the_state_before() {
    for damage in [|bytes: &mut Vec<u8>| bytes[100] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(99)]
    {
        let (mut server, mut states) = saved(2);
        let (mut held, last) = (states.swap_remove(1), server.deltas().pop().unwrap());
        let mut bytes = fs::read(&last).unwrap();
        damage(&mut bytes);
        fs::write(&last, &bytes).unwrap();
        fs::write(server.path("dump.hkv.part"), "half a delta").unwrap();
        server.has_after_restart(USUAL, &held);
        let log = server.log();
        assert!(log.contains("not loaded, and renamed") && log.contains("dump.hkv.part"), "{log}");
        assert!(fs::read(format!("{}.damaged", last.display())).unwrap() == bytes);
        // The chain goes on from there.
        server.client().set("a", b"1");
        held.insert("a".to_owned(), b"1".to_vec());
        assert_eq!(server.client().save(), "delta");
        server.has_after_restart(USUAL, &held);
    }
}

/// Deltas of an image that was replaced stay if the server is killed before it removes them.
fn start_with_more_memory_and_older_deltas_has_the_last_state() {
    let (mut server, states) = saved(2);
    let old = server.deltas().into_iter().map(|file| (fs::read(&file).unwrap(), file));
    let old: Vec<_> = old.collect();
    for save in ["SAVE", "BGSAVE"] {
        server.restart("--memory 64MiB --chain-deltas 0");
        server.client().ask(save);
        assert_eq!(server.client().end_of_save(), "ok");
        assert!(server.deltas().is_empty());
        server.process = None;
        old.iter().for_each(|(bytes, file)| fs::write(file, bytes).unwrap());
        server.has_after_restart("--memory 128MiB", &states[2]);
        assert!(server.log().contains("is out of date, and not loaded"), "{}", server.log());
    }
    assert_eq!(server.client().save(), "full");
    server.has_after_restart("--memory 128MiB", &states[2]);
}

fn save_that_is_due_happens_by_itself() {
    let mut server = Server::start("--memory 32MiB --save-every 1");
    let mut client = server.client();
    for (value, expected) in [(b"1", 0), (b"2", 1)] {
        client.set("a", value);
        assert!(happens(|| client.info("rdb_changes_since_last_save") == "0"));
        assert_eq!(server.deltas().len(), expected);
    }
    server.has_after_restart(USUAL, &Model::from([("a".to_owned(), b"2".to_vec())]));
}

/// No room on the disk, and no file: what was saved stays, and the next delta follows on it.
fn save_after_one_that_failed_goes_on_with_the_chain() {
    let (mut server, mut states) = saved(1);
    let (mut held, partial) = (states.swap_remove(1), server.path("dump.hkv.part"));
    let full = || symlink("/dev/full", &partial).unwrap();
    let directory = || fs::create_dir(&partial).unwrap();
    let obstacles: [(&dyn Fn(), &str); 2] = [(&full, "No space left"), (&directory, "directory")];
    for (number, (obstacle, reason)) in obstacles.into_iter().enumerate() {
        for save in ["BGSAVE", "SAVE", "SHUTDOWN"] {
            let (key, value) = (format!("{save}:{number}"), vec![number as u8; 20_000]);
            server.client().set(&key, &value);
            held.insert(key, value);
            obstacle();
            let reply = format!("{:?}", server.client().ask(save));
            assert!(save == "BGSAVE" || reply.contains(reason), "{reply}");
            assert_eq!(server.client().end_of_save(), "err");
            assert!(server.log().contains(reason), "{}", server.log());
            let _ = fs::remove_dir(&partial);
        }
        assert_eq!(server.client().save(), "delta");
    }
    assert_eq!(server.deltas().len(), 3);
    server.has_after_restart(USUAL, &held);
}

/// Entries of 25 to 4000 bytes, all written again and again, in memory for few more: writers have to
/// write what the save has still to read.
fn set_beside_a_save_that_stops_copies_what_was() {
    for (options, rounds) in [("--memory 64MiB", 2), ("--memory 12MiB", 8)] {
        let mut server = Server::start(options);
        let (mut random, mut client) = (fastrand::Rng::with_seed(5), server.client());
        let sizes = [1, 500, 3000];
        let mut entries = || -> Model {
            let value = |key| (format!("key:{key}"), vec![random.u8(..); sizes[random.usize(..3)]]);
            (0..3000).map(value).collect()
        };
        let saved = entries();
        client.set_all(&saved);
        // The file is a pipe: the save stops in the middle until the pipe is read.
        let pipe = server.path("dump.hkv.part");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(matches!(client.ask("BGSAVE"), Value::SimpleString(_)));
        let (mut pipe, mut image) = (File::open(&pipe).unwrap(), Vec::new());
        assert!(client.error("BGSAVE").contains("already in progress"));
        assert!(client.error("SAVE").contains("already in progress"));
        let mut held = Model::new();
        client.ask("FLUSHALL");
        for _ in 0..rounds {
            held.extend(entries());
            client.set_all(&held);
        }
        pipe.read_to_end(&mut image).unwrap();
        // A pipe cannot be synchronised with a disk.
        assert_eq!(client.end_of_save(), "err");
        client.holds(&held);
        server.process = None;
        fs::write(server.path("dump.hkv"), image).unwrap();
        server.has_after_restart(options, &saved);
    }
}

fn save_of_keys_that_expire_leaves_them_out() {
    let mut server = Server::start("--memory 16MiB");
    let mut client = server.client();
    for line in ["SET later 1 EX 10000", "SET soon 1 PX 20", "SET unseen 1 PX 20"] {
        client.ask(line);
    }
    while client.get("soon").is_some() {}
    assert_eq!((client.ask("TTL soon"), client.ask("INCR soon")), (Value::Int(-2), Value::Int(1)));
    // No client has looked at `unseen`.
    assert_eq!(client.ask("DBSIZE"), Value::Int(3));
    client.save();
    server.restart("--memory 16MiB");
    assert_eq!(server.client().ask("DBSIZE"), Value::Int(2));
    assert!(matches!(server.client().ask("TTL later"), Value::Int(9_000..=10_000)));
}

/// SHUTDOWN and SIGTERM save, SHUTDOWN NOSAVE does not.
fn end_of_each_kind_saves_as_it_is_asked() {
    let mut server = Server::start(USUAL);
    for (end, value, found) in
        [("SHUTDOWN", "1", "1"), ("SHUTDOWN NOSAVE", "2", "1"), ("", "3", "3")]
    {
        server.client().set("a", value.as_bytes());
        assert!(server.refused(USUAL).contains("in use by another server"));
        let mut client = server.client();
        let process = &mut server.process.as_mut().unwrap().0;
        match end {
            "" => kill_process(Pid::from_child(process), Signal::TERM).unwrap(),
            end => assert_eq!(client.try_ask(end.split(' ').collect::<Vec<_>>()), None),
        }
        assert!(process.wait().unwrap().success());
        server.has_after_restart(USUAL, &Model::from([("a".to_owned(), found.into())]));
    }
}

pub(crate) const CHECKS: Checks = checks![
    bgsave_after_another_writes_what_has_changed,
    end_of_each_kind_saves_as_it_is_asked,
    save_after_one_that_failed_goes_on_with_the_chain,
    save_of_keys_that_expire_leaves_them_out,
    save_that_is_due_happens_by_itself,
    set_beside_a_save_that_stops_copies_what_was,
    start_with_a_damaged_delta_in_the_middle_is_refused,
    start_with_a_damaged_last_delta_has_the_state_before,
    start_with_more_memory_and_older_deltas_has_the_last_state,
];
