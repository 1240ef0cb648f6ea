//! What clients may hold, and what fits: the server says where it ends, and loses nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::thread;
use std::time::Duration;

use crate::Check;
use crate::client::{Answer, Client};
use crate::server::{Server, folder};

fn client_beyond_the_limit_is_turned_away() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &["--memory", "16MiB", "--max-clients", "2"]);
    let mut clients = [server.client(), server.client()];
    clients.iter_mut().for_each(|client| drop(client.line("PING")));
    assert!(server.client().rest().contains("max number of clients"));
    let [first, mut second] = clients;
    drop(first);
    while second.info("connected_clients") == "2" {}
    assert_eq!(server.client().line("PING"), Answer::Simple("PONG".to_owned()));
}

/// The server's memory that is no file's, in bytes.
fn resident(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Requests that never end, and replies that are never fetched, are held up to a bound, and no other client notices.
fn memory_held_by_many_clients_is_bounded() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &["--memory", "64MiB"]);
    let mut bystander = server.client();
    bystander.set("key", &vec![b'x'; 10 << 20]);
    let before = resident(&server);
    let begin = |bytes: &[u8]| {
        let mut client = server.client();
        // It is turned away in the middle, perhaps.
        let _ = client.0.get_mut().write_all(bytes);
        client
    };
    let unfinished =
        [b"*2\r\n$4\r\nECHO\r\n$40000000\r\n".as_slice(), &vec![b'x'; 20 << 20]].concat();
    let unfetched = b"MGET key key key key\r\n";
    let many = [b"*1000000\r\n".to_vec(), b"$0\r\n\r\n".repeat(999_999)].concat();
    let mut hogs: Vec<Client> = (0..8).map(|_| begin(&unfinished)).collect();
    hogs.extend((0..4).map(|_| begin(unfetched)));
    hogs.extend((0..4).map(|_| begin(&many)));
    let evicted = |client: &mut Client| client.info("evicted_clients").parse::<usize>().unwrap();
    assert!((0..2000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        evicted(&mut bystander) >= 6
    }));
    let most: usize = bystander.info("maxmemory_clients").parse().unwrap();
    assert_eq!(most, 64 << 20);
    assert!(bystander.info("mem_clients_normal").parse::<usize>().unwrap() <= most);
    let grown = resident(&server).saturating_sub(before);
    assert!(grown <= most + (16 << 20), "{grown} bytes more");
    assert_eq!(bystander.line("PING"), Answer::Simple("PONG".to_owned()));
    drop(hogs);
    while bystander.info("connected_clients") != "1" {}
    assert!(bystander.info("mem_clients_normal").parse::<usize>().unwrap() < 1 << 20);
}

/// A request beyond the bound is refused as soon as its length is known, and a reply beyond it costs the client that one.
fn request_beyond_a_clients_memory_is_refused() {
    let folder = folder();
    let arguments = ["--memory", "64MiB", "--client-memory", "8MiB"];
    let server = Server::start_with(folder.path(), &arguments);
    let mut client = server.client();
    client.raw(b"*2\r\n$4\r\nECHO\r\n$9000000\r\n");
    assert!(client.rest().contains("-ERR Protocol error: too big request"));
    let mut client = server.client();
    client.set("key", &vec![1; 3 << 20]);
    let Answer::Error(error) = client.line("MGET key key key") else { panic!() };
    assert!(error.contains("--client-memory") && error.contains("8388608"), "{error}");
    assert_eq!(client.line("PING"), Answer::Simple("PONG".to_owned()));
    assert_eq!(client.get("key"), Some(vec![1; 3 << 20]));
}

/// What does not fit is refused and changes nothing; what is deleted makes room.
fn set_without_room_is_refused_and_loses_nothing() {
    let folder = folder();
    let arguments = ["--memory", "192MiB", "--client-memory", "512MiB"];
    let server = Server::start_with(folder.path(), &arguments);
    let mut client = server.client();
    let mut held = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(9);
    let oom = |answer: &Answer| matches!(answer, Answer::Error(error) if error.starts_with("OOM "));
    for key in 0.. {
        let (key, value) = (format!("k{key}"), vec![key as u8; random.usize(..20_000)]);
        let answer = client.ask(&[b"SET", key.as_bytes(), &value]);
        if oom(&answer) {
            break;
        }
        held.insert(key, value);
    }
    assert!(held.values().map(Vec::len).sum::<usize>() > 96 << 20);
    let huge = vec![0; 250 << 20];
    assert!(oom(&client.ask(&[b"SET", b"k0", &huge])));
    let large = vec![0; 4 << 20];
    assert!(oom(&client.ask(&[b"MSET", b"k0", b"", b"k1", &large, b"new", b""])));
    client.holds(&held);
    for key in held.keys() {
        assert_eq!(client.line(&format!("DEL {key}")), Answer::Integer(1));
    }
    client.set("large", &large);
    assert_eq!(client.integer("DBSIZE"), 1);
    assert_eq!(client.get("large"), Some(large));
}

pub(crate) const CHECKS: &[Check] = &[
    ("client_beyond_the_limit_is_turned_away", client_beyond_the_limit_is_turned_away),
    ("memory_held_by_many_clients_is_bounded", memory_held_by_many_clients_is_bounded),
    ("request_beyond_a_clients_memory_is_refused", request_beyond_a_clients_memory_is_refused),
    (
        "set_without_room_is_refused_and_loses_nothing",
        set_without_room_is_refused_and_loses_nothing,
    ),
];
