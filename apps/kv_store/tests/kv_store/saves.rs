//! Saves under load, saves that fail, and processes that are killed meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::Check;
use crate::client::{Answer, Client};
use crate::models::{model, set_all};
use crate::server::{Server, folder};

/// What was set before BGSAVE is in the dump, and nothing that came after, although all of it is overwritten while
/// the save runs; all that one MSET has set is there or not.
fn bgsave_under_load_is_one_moment() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &["--memory", "128MiB"]);
    let mut random = fastrand::Rng::with_seed(7);
    let saved = model(&mut random, 20_000);
    let mut client = server.client();
    set_all(&mut client, &saved);
    let stop = AtomicBool::new(false);
    let (before, after) = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            for number in 1_u64.. {
                let number = number.to_string();
                let numbered = ["n:1", "n:2", "n:3", "n:4"];
                let mut words: Vec<&[u8]> = vec![b"MSET"];
                words.extend(numbered.iter().flat_map(|key| [key.as_bytes(), number.as_bytes()]));
                client.ok(&words);
                client.set("n:last", number.as_bytes());
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let number = |client: &mut Client| loop {
            if let Some(number) = client.get("n:last") {
                return String::from_utf8(number).unwrap().parse::<u64>().unwrap();
            }
        };
        let before = number(&mut client);
        client.background_save();
        let after = number(&mut client);
        let changed = model(&mut random, 20_000);
        for (key, value) in &changed {
            match random.u8(..4) {
                0 => drop(client.ask(&[b"DEL", key.as_bytes()])),
                _ => client.set(key, value),
            }
        }
        assert_eq!(client.wait_for_the_save(), "ok");
        stop.store(true, Ordering::Relaxed);
        let mut said = |name: &str| client.info(name).parse::<u64>().unwrap();
        // The thread that wrote on has waited for its copies.
        let copied = said("last_save_copied_granules");
        assert!(copied == 0 || said("last_save_longest_write_microseconds") > 0, "{copied}");
        (before, after)
    });
    server.kill();
    let server = Server::start_with(folder.path(), &["--memory", "128MiB"]);
    let mut client = server.client();
    let numbers: Vec<u64> = ["n:1", "n:2", "n:3", "n:4", "n:last"]
        .map(|key| String::from_utf8(client.get(key).unwrap()).unwrap().parse().unwrap())
        .to_vec();
    assert!(numbers[..4].iter().all(|&number| number == numbers[0]), "{numbers:?}");
    assert!(numbers[4] == numbers[0] || numbers[4] + 1 == numbers[0], "{numbers:?}");
    assert!((before..=after + 1).contains(&numbers[0]), "{before} {numbers:?} {after}");
    assert_eq!(client.line("DEL n:1 n:2 n:3 n:4 n:last"), Answer::Integer(5));
    client.holds(&saved);
}

/// Killed at any moment, it has the one dump or the other.
fn bgsave_killed_at_any_moment_leaves_one_dump_or_the_other() {
    let folder = folder();
    let models =
        [11, 12].map(|seed| model(&mut fastrand::Rng::with_seed(seed), 2000 + seed as usize));
    let server = Server::start(folder.path());
    set_all(&mut server.client(), &models[0]);
    server.client().ok(&[b"SAVE"]);
    server.kill();
    let mut is_in = 0;
    for round in 0..12_u32 {
        let server = Server::start(folder.path());
        let mut client = server.client();
        client.holds(&models[is_in]);
        client.ok(&[b"FLUSHALL"]);
        set_all(&mut client, &models[1 - is_in]);
        client.background_save();
        thread::sleep(Duration::from_micros(1 << round));
        server.kill();
        let server = Server::start(folder.path());
        let keys = server.client().integer("DBSIZE") as usize;
        is_in = models.iter().position(|model| model.len() == keys).unwrap();
        server.client().holds(&models[is_in]);
    }
}

fn save_that_fails_keeps_the_last_dump() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.set("a", b"1");
    client.ok(&[b"SAVE"]);
    let saved_at = client.line("LASTSAVE");
    let kept = fs::read(folder.path().join("dump.hkv")).unwrap();
    client.set("a", b"2");
    let partial = folder.path().join("dump.hkv.part");
    let full = || symlink("/dev/full", &partial).unwrap();
    let directory = || fs::create_dir(&partial).unwrap();
    let obstacles: [(&dyn Fn(), &str); 2] =
        [(&full, "No space left on device"), (&directory, "Is a directory")];
    for (obstacle, reason) in obstacles {
        for save in ["BGSAVE", "SAVE"] {
            obstacle();
            match client.line(save) {
                Answer::Error(error) => assert!(error.contains(reason), "{error}"),
                _ => assert_eq!(save, "BGSAVE"),
            }
            assert_eq!(client.wait_for_the_save(), "err");
            assert!(server.log().contains(reason), "{}", server.log());
            assert_eq!(fs::read(folder.path().join("dump.hkv")).unwrap(), kept);
            assert_eq!(client.line("LASTSAVE"), saved_at);
            assert_eq!(client.info("rdb_changes_since_last_save"), "1");
            let _ = fs::remove_dir(&partial);
            assert!(!partial.exists());
        }
        directory();
        assert!(
            matches!(client.line("SHUTDOWN"), Answer::Error(error) if error.contains(reason) || error.contains("Is a directory"))
        );
        fs::remove_dir(&partial).unwrap();
    }
    client.background_save();
    assert_eq!(client.wait_for_the_save(), "ok");
    assert_ne!(fs::read(folder.path().join("dump.hkv")).unwrap(), kept);
}

pub(crate) const SAVING: &[Check] = &[
    ("bgsave_under_load_is_one_moment", bgsave_under_load_is_one_moment),
    (
        "bgsave_killed_at_any_moment_leaves_one_dump_or_the_other",
        bgsave_killed_at_any_moment_leaves_one_dump_or_the_other,
    ),
    ("save_that_fails_keeps_the_last_dump", save_that_fails_keeps_the_last_dump),
];
