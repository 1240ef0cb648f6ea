//! Images and the deltas that follow on them: written, loaded, damaged and missing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::Check;
use crate::client::Client;
use crate::colliding;
use crate::models::{model, set_all};
use crate::server::{Server, folder};

type Model = BTreeMap<String, Vec<u8>>;

/// Deltas of a folder, by their numbers.
pub(crate) fn deltas(folder: &Path) -> Vec<PathBuf> {
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("dump.")?.strip_suffix(".hkv")?;
        name.split_once('.')?.1.parse::<u64>().ok()
    };
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| number(path).is_some());
    files.sort_by_key(number);
    files
}

fn save(client: &mut Client) -> String {
    client.background_save();
    assert_eq!(client.wait_for_the_save(), "ok");
    client.info("last_save_kind")
}

/// An image of so many keys and as many deltas as are asked for, and what was there at each.
fn chain(folder: &Path, count: usize) -> Vec<Model> {
    let server = Server::start(folder);
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(21);
    let mut now = model(&mut random, 3000);
    set_all(&mut client, &now);
    assert_eq!(save(&mut client), "full");
    let mut states = vec![now.clone()];
    for _ in 0..count {
        let changed = model(&mut random, 20);
        set_all(&mut client, &changed);
        now.extend(changed);
        assert_eq!(save(&mut client), "delta");
        states.push(now.clone());
    }
    server.kill();
    assert_eq!(deltas(folder).len(), count);
    states
}

fn bgsave_after_another_writes_what_has_changed() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    let mut held = model(&mut fastrand::Rng::with_seed(20), 20_000);
    set_all(&mut client, &held);
    assert_eq!(save(&mut client), "full");
    let full = fs::metadata(folder.path().join("dump.hkv")).unwrap().len();
    for round in 0..3_u8 {
        for key in 0..10 {
            let (key, value) = (format!("key:{}", 777 * key), vec![round; 100]);
            client.set(&key, &value);
            held.insert(key, value);
        }
        assert_eq!(save(&mut client), "delta");
    }
    for delta in deltas(folder.path()) {
        let len = fs::metadata(&delta).unwrap().len();
        // Ten entries, the pages of their slabs, and what they left.
        assert!(len < 50 * 4096 && len < full / 20, "{len} of {full}");
    }
    server.kill();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.holds(&held);
    // The chain goes on where it was.
    client.ok(&[b"MSET", b"key:1", b"after", b"new", b""]);
    assert_eq!(save(&mut client), "delta");
    held.extend([("key:1".to_owned(), b"after".to_vec()), ("new".to_owned(), Vec::new())]);
    client.ok(&[b"FLUSHALL"]);
    server.kill();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.holds(&held);
    client.ok(&[b"FLUSHALL"]);
    save(&mut client);
    server.kill();
    assert_eq!(Server::start(folder.path()).client().integer("DBSIZE"), 0);
}

fn bgsave_beyond_the_limits_of_a_chain_saves_all() {
    let folder = folder();
    let arguments = ["--memory", "64MiB", "--chain-deltas", "2", "--chain-percent", "50"];
    let server = Server::start_with(folder.path(), &arguments);
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(22);
    set_all(&mut client, &model(&mut random, 3000));
    let mut kinds = |client: &mut Client, keys: usize, count: usize| -> Vec<String> {
        let mut one = || {
            set_all(client, &model(&mut random, keys));
            let kind = save(client);
            let on_disk = deltas(folder.path()).len().to_string();
            assert_eq!(client.info("chain_deltas"), on_disk);
            kind
        };
        (0..count).map(|_| one()).collect()
    };
    assert_eq!(kinds(&mut client, 1, 5), ["full", "delta", "delta", "full", "delta"]);
    // A delta that is long beside the image is followed by an image.
    assert_eq!(kinds(&mut client, 3000, 2), ["delta", "full"]);
}

fn start_with_a_damaged_delta_in_the_middle_is_refused() {
    let folder = folder();
    chain(folder.path(), 3);
    let files = deltas(folder.path());
    let image = folder.path().join("dump.hkv");
    for file in [&image, &files[0], &files[1]] {
        let good = fs::read(file).unwrap();
        for offset in (0..48).step_by(5).chain((48..good.len()).step_by(good.len() / 9)) {
            let mut bad = good.clone();
            bad[offset] ^= 1 << (offset % 8);
            fs::write(file, &bad).unwrap();
            let said = Server::refused(folder.path(), "64MiB");
            assert!(said.contains(file.file_name().unwrap().to_str().unwrap()), "{said}");
            assert!(said.contains("left as it is"), "{said}");
            assert!(offset < 48 || said.contains("damaged at byte "), "{said}");
            assert!(fs::read(file).unwrap() == bad);
        }
        fs::write(file, &good[..good.len() / 2]).unwrap();
        let said = Server::refused(folder.path(), "64MiB");
        assert!(said.contains(&format!("ends at byte {}", good.len() / 2)), "{said}");
        fs::remove_file(file).unwrap();
        assert!(Server::refused(folder.path(), "64MiB").contains("missing"));
        fs::write(file, &good).unwrap();
    }
    fs::rename(&files[1], folder.path().join("kept")).unwrap();
    fs::copy(&files[0], &files[1]).unwrap();
    let said = Server::refused(folder.path(), "64MiB");
    assert!(said.contains("begins with state"), "{said}");
    assert_eq!(deltas(folder.path()), files);
}

fn start_with_a_damaged_last_delta_has_the_state_before() {
    for damage in [|bytes: &mut Vec<u8>| bytes[100] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(99)]
    {
        let folder = folder();
        let states = chain(folder.path(), 2);
        let last = deltas(folder.path()).pop().unwrap();
        let mut bytes = fs::read(&last).unwrap();
        damage(&mut bytes);
        fs::write(&last, &bytes).unwrap();
        fs::write(folder.path().join("dump.hkv.part"), "half a delta").unwrap();
        let server = Server::start(folder.path());
        let mut client = server.client();
        client.holds(&states[1]);
        let log = server.log();
        assert!(log.contains("not loaded, and dump.") && log.contains("dump.hkv.part"), "{log}");
        let aside = PathBuf::from(format!("{}.damaged", last.display()));
        assert!(fs::read(aside).unwrap() == bytes);
        // The chain goes on from there.
        client.set("a", b"1");
        assert_eq!(save(&mut client), "delta");
        server.kill();
        let mut client = Server::start(folder.path());
        let mut held = states[1].clone();
        held.insert("a".to_owned(), b"1".to_vec());
        client.client().holds(&held);
        client.child.kill().unwrap();
    }
}

/// Deltas of an image that was replaced stay behind if the server is killed before it removes them.
fn start_beside_deltas_of_an_older_image_leaves_them_out() {
    let folder = folder();
    let states = chain(folder.path(), 2);
    let old: Vec<(PathBuf, Vec<u8>)> = deltas(folder.path())
        .into_iter()
        .map(|file| (file.clone(), fs::read(file).unwrap()))
        .collect();
    let put_back = || old.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
    for command in ["SAVE", "BGSAVE"] {
        let server =
            Server::start_with(folder.path(), &["--memory", "64MiB", "--chain-deltas", "0"]);
        let mut client = server.client();
        client.line(command);
        assert_eq!(client.wait_for_the_save(), "ok");
        server.kill();
        assert!(deltas(folder.path()).is_empty());
        put_back();
        let server = Server::start(folder.path());
        server.client().holds(&states[2]);
        assert!(server.log().contains("out of date, and not loaded"), "{}", server.log());
    }
    let server = Server::start(folder.path());
    assert_eq!(save(&mut server.client()), "delta");
    assert_eq!(deltas(folder.path()).len(), 3, "a delta removes nothing");
    server.client().ok(&[b"SAVE"]);
    assert!(deltas(folder.path()).is_empty());
}

fn start_with_other_memory_moves_the_entries() {
    let folder = folder();
    let states = chain(folder.path(), 2);
    for memory in ["56MiB", "128MiB"] {
        let server = Server::start_with(folder.path(), &["--memory", memory]);
        server.client().holds(&states[2]);
        let log = server.log();
        assert!(log.contains("a store of 67108864 bytes was saved"), "{log}");
    }
    let server = Server::start_with(folder.path(), &["--memory", "56MiB"]);
    assert_eq!(save(&mut server.client()), "full");
    server.kill();
    let server = Server::start_with(folder.path(), &["--memory", "56MiB"]);
    server.client().holds(&states[2]);
}

fn save_that_is_due_happens_by_itself() {
    let folder = folder();
    let arguments = ["--memory", "32MiB", "--save-every", "1"];
    let server = Server::start_with(folder.path(), &arguments);
    let mut client = server.client();
    assert_eq!(client.info("save_every"), "1");
    for (value, expected) in [(b"1", 0), (b"2", 1), (b"3", 2)] {
        client.set("a", value);
        while client.info("rdb_changes_since_last_save") != "0" {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(deltas(folder.path()).len(), expected);
    }
    server.kill();
    assert_eq!(Server::start(folder.path()).client().get("a"), Some(b"3".to_vec()));
}

/// Without room, and where the file cannot even be made: the next delta follows on the last one that is there.
fn bgsave_after_one_that_failed_goes_on_with_the_chain() {
    let folder = folder();
    let mut held = chain(folder.path(), 1).pop().unwrap();
    let server = Server::start(folder.path());
    let mut client = server.client();
    let partial = folder.path().join("dump.hkv.part");
    let full = || symlink("/dev/full", &partial).unwrap();
    let directory = || fs::create_dir(&partial).unwrap();
    let obstacles: [&dyn Fn(); 2] = [&full, &directory];
    for (number, obstacle) in obstacles.iter().enumerate() {
        let (key, value) = (format!("key:{number}"), vec![number as u8; 20_000]);
        client.set(&key, &value);
        held.insert(key, value);
        obstacle();
        client.background_save();
        assert_eq!(client.wait_for_the_save(), "err");
        let _ = fs::remove_dir(&partial);
        client.set("beside", b"after the save that failed");
        held.insert("beside".to_owned(), b"after the save that failed".to_vec());
        assert_eq!(save(&mut client), "delta");
    }
    server.kill();
    assert_eq!(deltas(folder.path()).len(), 3);
    Server::start(folder.path()).client().holds(&held);
}

/// An image says how large its store is, and may say anything.
fn start_on_an_image_of_a_store_beyond_the_machine_is_refused() {
    for len in [1 << 43, u64::MAX] {
        let folder = folder();
        let file = fs::File::create(folder.path().join("dump.hkv")).unwrap();
        hugekit_delta::Writer::new(file, len, None).unwrap().finish().unwrap();
        let said = Server::refused(folder.path(), "64MiB");
        assert!(said.contains(&format!("a store of {len} bytes was saved")), "{said}");
    }
}

/// More and more slabs, less and less of them, and values of many slabs; each save is of one moment.
fn bgsave_of_a_store_that_grows_and_shrinks_is_whole() {
    let folder = folder();
    let arguments = ["--memory", "128MiB", "--chain-percent", "1000"];
    let mut random = fastrand::Rng::with_seed(23);
    let mut held = Model::new();
    for _ in 0..4 {
        let server = Server::start_with(folder.path(), &arguments);
        let mut client = server.client();
        client.holds(&held);
        for _ in 0..4 {
            let from = random.usize(..8000);
            for key in from..from + random.usize(..4000) {
                let (key, value) =
                    (format!("key:{key}"), vec![random.u8(..); random.usize(..3000)]);
                client.set(&key, &value);
                held.insert(key, value);
            }
            let large = format!("large:{}", random.usize(..3));
            let value = vec![random.u8(..); random.usize(1..6 << 20)];
            client.set(&large, &value);
            held.insert(large, value);
            let gone: Vec<String> = held.keys().filter(|_| random.u8(..4) == 0).cloned().collect();
            for key in gone {
                client.line(&format!("DEL {key}"));
                held.remove(&key);
            }
            client.background_save();
            client.set("beside", b"not in the save, perhaps");
            assert_eq!(client.wait_for_the_save(), "ok");
            client.line("DEL beside");
        }
        save(&mut client);
        server.kill();
    }
}

/// The client knows where in its block of 4 KiB a value lies, and writes two versions of it that XXH3 takes for equal.
fn bgsave_after_a_client_chose_its_bytes_has_all_of_them() {
    const KEYS: usize = 4096;
    let folder = folder();
    let server =
        Server::start_with(folder.path(), &["--memory", "64MiB", "--chain-percent", "300"]);
    let mut client = server.client();
    let key = |number: usize| format!("{number:08}");
    // Before the value are 16 bytes and the key.
    let of = |version: Vec<u8>| -> Model {
        let blocks = version.chunks(4096).enumerate();
        blocks.map(|(number, block)| (key(number), block[16 + 8..].to_vec())).collect()
    };
    let versions = colliding::versions(KEYS, 1024).map(of);
    for (version, kind) in versions.iter().zip(["full", "delta"]) {
        set_all(&mut client, version);
        assert_eq!(save(&mut client), kind);
    }
    assert!(fs::metadata(&deltas(folder.path())[0]).unwrap().len() > (KEYS * 4096) as u64);
    server.kill();
    let server = Server::start(folder.path());
    server.client().holds(&versions[1]);
}

pub(crate) const SAVING: &[Check] = &[
    (
        "bgsave_after_a_client_chose_its_bytes_has_all_of_them",
        bgsave_after_a_client_chose_its_bytes_has_all_of_them,
    ),
    ("bgsave_after_another_writes_what_has_changed", bgsave_after_another_writes_what_has_changed),
    (
        "bgsave_beyond_the_limits_of_a_chain_saves_all",
        bgsave_beyond_the_limits_of_a_chain_saves_all,
    ),
    (
        "start_with_a_damaged_delta_in_the_middle_is_refused",
        start_with_a_damaged_delta_in_the_middle_is_refused,
    ),
    (
        "start_with_a_damaged_last_delta_has_the_state_before",
        start_with_a_damaged_last_delta_has_the_state_before,
    ),
    (
        "start_beside_deltas_of_an_older_image_leaves_them_out",
        start_beside_deltas_of_an_older_image_leaves_them_out,
    ),
    (
        "bgsave_after_one_that_failed_goes_on_with_the_chain",
        bgsave_after_one_that_failed_goes_on_with_the_chain,
    ),
    (
        "start_on_an_image_of_a_store_beyond_the_machine_is_refused",
        start_on_an_image_of_a_store_beyond_the_machine_is_refused,
    ),
    ("start_with_other_memory_moves_the_entries", start_with_other_memory_moves_the_entries),
    ("save_that_is_due_happens_by_itself", save_that_is_due_happens_by_itself),
    (
        "bgsave_of_a_store_that_grows_and_shrinks_is_whole",
        bgsave_of_a_store_that_grows_and_shrinks_is_whole,
    ),
];
