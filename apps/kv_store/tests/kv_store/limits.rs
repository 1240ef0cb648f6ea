//! What clients may hold, and what fits: the server names the limit and loses nothing.

use std::io::{Read, Write};
use std::iter;
use std::net::{Shutdown, TcpStream};
use std::thread;

use hugekit_testing::checks;
use hugekit_testing::processes::happens;
use hugekit_testing::trials::Checks;
use procfs::process::Process;
use redis::Value;

use crate::server::{Model, Server};

/// Requests that never end and replies that are never fetched are held up to a limit, and another
/// client is served.
fn memory_held_by_many_clients_is_bounded() {
    const MOST: usize = 64 << 20;
    let server = Server::start("--memory 64MiB");
    let process = Process::new(server.process.as_ref().unwrap().id() as i32).unwrap();
    let resident = || process.status().unwrap().rssanon.unwrap() as usize * 1024;
    let mut bystander = server.client();
    bystander.set("key", &vec![b'x'; 10 << 20]);
    let before = resident();
    let unfinished = [b"*2\r\n$4\r\nECHO\r\n$40000000\r\n".to_vec(), vec![b'x'; 20 << 20]].concat();
    let queued = [b"MULTI\r\n".to_vec(), b"*1\r\n$3\r\nGET\r\n".repeat(400_000)].concat();
    let many = [b"*1000000\r\n".to_vec(), b"$0\r\n\r\n".repeat(999_999)].concat();
    let unfetched = b"MGET key key key key\r\n".to_vec();
    let mut hogs = Vec::new();
    for bytes in iter::repeat_n([unfinished, queued, many, unfetched], 3).flatten() {
        let hog = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let mut writer = hog.try_clone().unwrap();
        // The server closes it in the middle, perhaps.
        thread::spawn(move || drop(writer.write_all(&bytes)));
        hogs.push(hog);
    }
    let number = |name: &str| server.client().info(name).parse::<usize>().unwrap();
    assert!(happens(|| number("evicted_clients") >= 4), "{}", number("mem_clients_normal"));
    assert!(number("mem_clients_normal") <= MOST);
    assert!(happens(|| resident() <= before + MOST + (16 << 20)), "{} {before}", resident());
    assert_eq!(bystander.ask("PING"), Value::SimpleString("PONG".to_owned()));
    drop(hogs);
    assert!(happens(|| number("mem_clients_normal") < 1 << 20));
}

/// A request beyond the limit is refused when its length comes, and a reply beyond it costs the
/// client only that reply.
fn request_beyond_the_limit_is_refused() {
    let server = Server::start("--memory 64MiB --client-memory 8MiB");
    let mut client = server.client();
    client.set("key", &vec![1; 3 << 20]);
    assert!(client.error("MGET key key key").contains("--client-memory"));
    assert_eq!(client.get("key"), Some(vec![1; 3 << 20]));
    for (bytes, error) in [
        (&b"*2\r\n$4\r\nECHO\r\n$9000000\r\n"[..], "too big request"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\nPING\r\n", "expected '$'"),
        (b"PING\r\n*1\r\n$1\r\nabc", "does not end with CRLF"),
        (&[b'x'; 70_000], "too long line"),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        // A reset is an end, too.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.contains("-ERR Protocol error: ") && rest.contains(error), "{rest}");
    }
    assert_eq!(client.ask("PING"), Value::SimpleString("PONG".to_owned()));
}

/// An entry that does not fit is refused and changes nothing; deleted entries make room.
fn set_without_room_is_refused_and_loses_nothing() {
    let server = Server::start("--memory 64MiB --client-memory 512MiB");
    let (mut client, mut held) = (server.client(), Model::new());
    let mut random = fastrand::Rng::with_seed(9);
    let is_oom = |reply: &Value| format!("{reply:?}").contains("OOM");
    for key in 0.. {
        let (key, value) = (format!("k{key}"), vec![key as u8; random.usize(..20_000)]);
        if is_oom(&client.try_ask(&[b"SET", key.as_bytes(), &value]).unwrap()) {
            break;
        }
        held.insert(key, value);
    }
    assert!(held.values().map(Vec::len).sum::<usize>() > 32 << 20);
    let large = vec![0; 4 << 20];
    assert!(is_oom(&client.try_ask(&[&b"MSET"[..], b"k0", b"", b"new", &large]).unwrap()));
    client.holds(&held);
    // A value of the same length is written where the old one is.
    held.get_mut("k0").unwrap().fill(9);
    client.set("k0", &held["k0"]);
    client.holds(&held);
    held.keys().for_each(|key| assert_eq!(client.ask(&format!("DEL {key}")), Value::Int(1)));
    client.set("large", &large);
    client.holds(&Model::from([("large".to_owned(), large)]));
}

pub(crate) const CHECKS: Checks = checks![
    memory_held_by_many_clients_is_bounded,
    request_beyond_the_limit_is_refused,
    set_without_room_is_refused_and_loses_nothing,
];
