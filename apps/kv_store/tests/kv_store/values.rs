//! Keys that expire and values that are large, before a save and after it.

use std::collections::BTreeMap;

use crate::Check;
use crate::server::{Server, folder};

fn save_of_expired_keys_leaves_them_out() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.ok(&[b"SET", b"later", b"1", b"EX", b"10000"]);
    client.ok(&[b"SET", b"soon", b"1", b"PX", b"20"]);
    client.ok(&[b"SET", b"soon2", b"1", b"PX", b"20"]);
    client.set("ever", b"1");
    while client.get("soon").is_some() {}
    assert_eq!((client.integer("TTL soon"), client.integer("TTL ever")), (-2, -1));
    assert_eq!(client.integer("INCR soon"), 1);
    let left = client.integer("PTTL later");
    assert!((1..=10_000_000).contains(&left));
    // No client has looked at soon2 since: it is still counted, and not saved.
    assert_eq!(client.integer("DBSIZE"), 4);
    while client.integer("PTTL later") > left - 40 {}
    client.background_save();
    assert_eq!(client.wait_for_the_save(), "ok");
    server.kill();
    let server = Server::start(folder.path());
    let mut client = server.client();
    assert_eq!(client.integer("DBSIZE"), 3);
    assert!((1..=left).contains(&client.integer("PTTL later")));
    client.set("later", b"2");
    assert_eq!(client.integer("TTL later"), -1);
}

fn save_of_large_values_keeps_them() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &["--memory", "128MiB"]);
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(10);
    let held: BTreeMap<String, Vec<u8>> =
        [0, 1, 1 << 20, (1 << 20) + 1, 2 << 20, 5_000_000, 20 << 20]
            .into_iter()
            .map(|len| (format!("of {len}"), (0..len).map(|_| random.u8(..)).collect()))
            .collect();
    for _ in 0..2 {
        held.iter().for_each(|(key, value)| client.set(key, value));
        client.holds(&held);
    }
    client.background_save();
    held.keys().for_each(|key| client.set(key, b"short"));
    assert_eq!(client.wait_for_the_save(), "ok");
    server.kill();
    Server::start_with(folder.path(), &["--memory", "128MiB"]).client().holds(&held);
    assert!(Server::refused(folder.path(), "24MiB").contains("--memory must be larger"));
}

pub(crate) const SAVING: &[Check] = &[
    ("save_of_expired_keys_leaves_them_out", save_of_expired_keys_leaves_them_out),
    ("save_of_large_values_keeps_them", save_of_large_values_keeps_them),
];
