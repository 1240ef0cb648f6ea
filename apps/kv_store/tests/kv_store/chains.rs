//! Images and the deltas that follow on them: written, loaded, damaged and missing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tempfile::tempdir;

use crate::server::{Model, Server, deltas, model};
use crate::{Checks, checks, colliding};

const ARGUMENTS: [&str; 2] = ["--memory", "64MiB"];

/// An image and this many deltas. Returns the state at each save.
fn chain(folder: &Path, count: usize) -> Vec<Model> {
    let server = Server::start(folder, &ARGUMENTS);
    let (mut client, mut random) = (server.client(), fastrand::Rng::with_seed(21));
    let mut now = model(&mut random, 3000);
    client.set_all(&now);
    assert_eq!(client.save(), "full");
    let mut states = vec![now.clone()];
    for _ in 0..count {
        let changed = model(&mut random, 20);
        client.set_all(&changed);
        now.extend(changed);
        assert_eq!(client.save(), "delta");
        states.push(now.clone());
    }
    assert_eq!(deltas(folder).len(), count);
    states
}

/// XXH3 takes the blocks of these two versions for equal, and the client knows where a block begins.
fn bgsave_after_a_client_chose_its_bytes_has_all_of_them() {
    const KEYS: usize = 4096;
    let folder = tempdir().unwrap();
    // A block has 24 bytes and a key of 8 before the value.
    let of = |version: Vec<u8>| -> Model {
        let blocks = version.chunks(4096).enumerate();
        blocks.map(|(number, block)| (format!("{number:08}"), block[32..].to_vec())).collect()
    };
    let versions = colliding::versions(KEYS, 1024).map(of);
    let server = Server::start(folder.path(), &ARGUMENTS);
    for (version, kind) in versions.iter().zip(["full", "delta"]) {
        server.client().set_all(version);
        assert_eq!(server.client().save(), kind);
    }
    assert!(fs::metadata(&deltas(folder.path())[0]).unwrap().len() > (KEYS * 4096) as u64);
    drop(server);
    Server::start(folder.path(), &ARGUMENTS).client().holds(&versions[1]);
}

fn bgsave_after_another_writes_what_has_changed() {
    let folder = tempdir().unwrap();
    let mut held = model(&mut fastrand::Rng::with_seed(20), 20_000);
    let server = Server::start(folder.path(), &["--memory", "64MiB", "--chain-deltas", "3"]);
    let mut client = server.client();
    client.set_all(&held);
    assert_eq!(client.save(), "full");
    let full = fs::metadata(folder.path().join("dump.hkv")).unwrap().len();
    for round in 0..3_u8 {
        let changed = (0..10).map(|key| (format!("key:{}", 777 * key), vec![round; 100]));
        let changed: Model = changed.collect();
        client.set_all(&changed);
        held.extend(changed);
        assert_eq!(client.save(), "delta");
    }
    for delta in deltas(folder.path()) {
        let len = fs::metadata(&delta).unwrap().len();
        // Of each entry a block, of its bucket another, and where a block was free a third.
        assert!(len < 40 * 4096 && len < full / 20, "{len} of {full}");
    }
    drop(server);
    let server = Server::start(folder.path(), &ARGUMENTS);
    let mut client = server.client();
    client.holds(&held);
    client.ask("FLUSHALL");
    assert_eq!(client.save(), "delta");
    drop(server);
    let server = Server::start(folder.path(), &["--memory", "64MiB", "--chain-deltas", "4"]);
    server.client().holds(&Model::new());
    assert_eq!((server.client().save().as_str(), deltas(folder.path()).len()), ("full", 0));
}

fn start_with_a_damaged_delta_in_the_middle_is_refused() {
    let folder = tempdir().unwrap();
    chain(folder.path(), 2);
    let files = deltas(folder.path());
    for file in [&folder.path().join("dump.hkv"), &files[0]] {
        let good = fs::read(file).unwrap();
        for offset in (0..48).step_by(5).chain((48..good.len()).step_by(good.len() / 9)) {
            let mut bad = good.clone();
            bad[offset] ^= 1 << (offset % 8);
            fs::write(file, &bad).unwrap();
            let error = Server::refused(folder.path(), &ARGUMENTS);
            assert!(error.contains(file.file_name().unwrap().to_str().unwrap()), "{error}");
            assert!(offset < 48 || error.contains("damaged at byte "), "{error}");
            assert!(fs::read(file).unwrap() == bad);
        }
        fs::remove_file(file).unwrap();
        assert!(Server::refused(folder.path(), &ARGUMENTS).contains("missing"));
        fs::write(file, &good).unwrap();
    }
    fs::rename(&files[0], &files[1]).unwrap();
    fs::copy(&files[1], &files[0]).unwrap();
    assert!(Server::refused(folder.path(), &["--memory", "32MiB"]).contains("--memory is"));
    // The last delta is the first one: it does not begin with the state that is there.
    assert!(Server::refused(folder.path(), &ARGUMENTS).contains("begins with state"));
}

fn start_with_a_damaged_last_delta_has_the_state_before() {
    for damage in [|bytes: &mut Vec<u8>| bytes[100] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(99)]
    {
        let folder = tempdir().unwrap();
        let mut held = chain(folder.path(), 2).swap_remove(1);
        let last = deltas(folder.path()).pop().unwrap();
        let mut bytes = fs::read(&last).unwrap();
        damage(&mut bytes);
        fs::write(&last, &bytes).unwrap();
        fs::write(folder.path().join("dump.hkv.part"), "half a delta").unwrap();
        let server = Server::start(folder.path(), &ARGUMENTS);
        server.client().holds(&held);
        let log = server.log();
        assert!(log.contains("not loaded, and renamed") && log.contains("dump.hkv.part"), "{log}");
        assert!(fs::read(PathBuf::from(format!("{}.damaged", last.display()))).unwrap() == bytes);
        // The chain goes on from there.
        server.client().set("a", b"1");
        held.insert("a".to_owned(), b"1".to_vec());
        assert_eq!(server.client().save(), "delta");
        drop(server);
        Server::start(folder.path(), &ARGUMENTS).client().holds(&held);
    }
}

/// Deltas of an image that was replaced stay if the server is killed before it removes them.
fn start_with_more_memory_and_older_deltas_has_the_last_state() {
    let folder = tempdir().unwrap();
    let states = chain(folder.path(), 2);
    let old = deltas(folder.path()).into_iter().map(|file| (fs::read(&file).unwrap(), file));
    let old: Vec<(Vec<u8>, PathBuf)> = old.collect();
    for save in ["SAVE", "BGSAVE"] {
        let server = Server::start(folder.path(), &["--memory", "64MiB", "--chain-deltas", "0"]);
        server.client().ask(save);
        assert_eq!(server.client().end_of_save(), "ok");
        drop(server);
        assert!(deltas(folder.path()).is_empty());
        old.iter().for_each(|(bytes, file)| fs::write(file, bytes).unwrap());
        let server = Server::start(folder.path(), &["--memory", "128MiB"]);
        server.client().holds(&states[2]);
        assert!(server.log().contains("is out of date, and not loaded"), "{}", server.log());
    }
    let server = Server::start(folder.path(), &["--memory", "128MiB"]);
    assert_eq!(server.client().save(), "full");
    drop(server);
    Server::start(folder.path(), &["--memory", "128MiB"]).client().holds(&states[2]);
}

fn save_that_is_due_happens_by_itself() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), &["--memory", "32MiB", "--save-every", "1"]);
    let mut client = server.client();
    for (value, expected) in [(b"1", 0), (b"2", 1)] {
        client.set("a", value);
        while client.info("rdb_changes_since_last_save") != "0" {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(deltas(folder.path()).len(), expected);
    }
    drop(server);
    assert_eq!(Server::start(folder.path(), &ARGUMENTS).client().get("a"), Some(b"2".to_vec()));
}

/// No room on the disk, and no file: what was saved stays, and the next delta follows on it.
fn save_after_one_that_failed_goes_on_with_the_chain() {
    let folder = tempdir().unwrap();
    let mut held = chain(folder.path(), 1).pop().unwrap();
    let server = Server::start(folder.path(), &ARGUMENTS);
    let (mut client, partial) = (server.client(), folder.path().join("dump.hkv.part"));
    let full = || symlink("/dev/full", &partial).unwrap();
    let directory = || fs::create_dir(&partial).unwrap();
    let obstacles: [(&dyn Fn(), &str); 2] = [(&full, "No space left"), (&directory, "directory")];
    for (number, (obstacle, reason)) in obstacles.into_iter().enumerate() {
        for save in ["BGSAVE", "SAVE", "SHUTDOWN"] {
            let (key, value) = (format!("{save}:{number}"), vec![number as u8; 20_000]);
            client.set(&key, &value);
            held.insert(key, value);
            obstacle();
            let reply = format!("{:?}", client.ask(save));
            assert!(save == "BGSAVE" || reply.contains(reason), "{reply}");
            assert_eq!(client.end_of_save(), "err");
            assert!(server.log().contains(reason), "{}", server.log());
            let _ = fs::remove_dir(&partial);
        }
        assert_eq!(client.save(), "delta");
    }
    drop(server);
    assert_eq!(deltas(folder.path()).len(), 3);
    Server::start(folder.path(), &ARGUMENTS).client().holds(&held);
}

pub(crate) const CHECKS: Checks = checks![
    bgsave_after_a_client_chose_its_bytes_has_all_of_them,
    bgsave_after_another_writes_what_has_changed,
    save_after_one_that_failed_goes_on_with_the_chain,
    save_that_is_due_happens_by_itself,
    start_with_a_damaged_delta_in_the_middle_is_refused,
    start_with_a_damaged_last_delta_has_the_state_before,
    start_with_more_memory_and_older_deltas_has_the_last_state,
];
