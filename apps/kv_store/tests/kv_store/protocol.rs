//! Requests in any pieces, and bytes that are none.

use std::io::Write;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use crate::Check;
use crate::client::{Answer, request};
use crate::server::{Server, folder};

fn request_of_nonsense_is_answered_and_survived() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &["--memory", "16MiB", "--max-value", "1KiB"]);
    let long = vec![b'x'; 70_000];
    let cases: [(&[u8], &str); 9] = [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*1\r\n$1025\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n$1\r\nabc", "does not end with CRLF"),
        (&long, "too big inline request"),
        (b"PING\r\n*2\r\n$4\r\nECHO\r\n+1\r\n", "expected '$', got '+'"),
    ];
    for (bytes, expected) in cases {
        let mut client = server.client();
        client.raw(bytes);
        let rest = client.rest();
        assert!(rest.contains("-ERR Protocol error: ") && rest.contains(expected), "{rest}");
    }
    let mut random = fastrand::Rng::with_seed(8);
    let alphabet = b"*$\r\n0123456789-+:PINGSETx\0\xff";
    for _ in 0..300 {
        let noise: Vec<u8> =
            (0..random.usize(..400)).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
        let mut client = server.client();
        client.raw(&noise);
        let _ = client.0.get_ref().shutdown(Shutdown::Write);
        client.rest();
    }
    let mut client = server.client();
    for wrong in [
        "GET",
        "SET a",
        "MSET a",
        "MSET a 1 b",
        "ECHO a b",
        "SET a 1 EX",
        "SHUTDOWN x",
        "nonsense\r\n+OK",
    ] {
        assert!(matches!(client.line(wrong), Answer::Error(_)), "{wrong}");
    }
    assert_eq!(client.ask(&[b""]), Answer::Error("ERR unknown command ''".to_owned()));
    assert_eq!(client.line("PING"), Answer::Simple("PONG".to_owned()));
    assert_eq!(client.info("connected_clients"), "1");
}

fn request_in_any_pieces_is_answered() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    let bytes = [request(&[b"SET", b"key", b"a\r\nvalue"]), b"GET key\r\n".to_vec()].concat();
    for &byte in &bytes {
        client.raw(&[byte]);
    }
    assert_eq!(client.answer(), Answer::Simple("OK".to_owned()));
    assert_eq!(client.answer(), Answer::Bulk(Some(b"a\r\nvalue".to_vec())));
    // Many replies that are not fetched before all requests have been sent.
    client.set("large", &vec![7; 100_000]);
    let mut writer = client.0.get_ref().try_clone().unwrap();
    let sender = thread::spawn(move || writer.write_all(&request(&[b"GET", b"large"]).repeat(500)));
    sender.join().unwrap().unwrap();
    for _ in 0..500 {
        assert_eq!(client.answer(), Answer::Bulk(Some(vec![7; 100_000])));
    }
}

/// A MULTI is carried out as a whole, by EXEC alone, and what waits for it counts as memory of its client.
fn multi_is_carried_out_whole_or_not_at_all() {
    let folder = folder();
    let arguments = ["--memory", "64MiB", "--client-memory", "4MiB"];
    let server = Server::start_with(folder.path(), &arguments);
    let (mut client, mut other) = (server.client(), server.client());
    let queued = Answer::Simple("QUEUED".to_owned());
    client.ok(&[b"MULTI"]);
    assert!(matches!(client.line("MULTI"), Answer::Error(error) if error.contains("nested")));
    assert_eq!(client.line("SET a 1"), queued);
    assert_eq!(client.line("INCR a"), queued);
    assert_eq!(other.get("a"), None);
    let one = Answer::Simple("OK".to_owned());
    assert_eq!(client.line("EXEC"), Answer::Array(vec![one, Answer::Integer(2)]));
    assert_eq!(other.get("a"), Some(b"2".to_vec()));
    client.ok(&[b"MULTI"]);
    assert_eq!(client.line("DEL a"), queued);
    client.ok(&[b"DISCARD"]);
    client.ok(&[b"MULTI"]);
    assert_eq!(client.line("DEL a"), queued);
    assert!(matches!(client.line("GET"), Answer::Error(_)));
    assert!(matches!(client.line("EXEC"), Answer::Error(error) if error.starts_with("EXECABORT")));
    for refused in ["NONSENSE", "CLIENT nonsense", "CLIENT ID a", "CONFIG GET", "SAVE", "DISCARD a"]
    {
        client.ok(&[b"MULTI"]);
        assert!(matches!(client.line(refused), Answer::Error(_)), "{refused}");
        assert_eq!(client.line("DEL a"), queued);
        let answer = client.line("EXEC");
        let aborted = matches!(&answer, Answer::Error(error) if error.starts_with("EXECABORT"));
        assert!(aborted, "{refused}: {answer:?}");
    }
    // An EXEC that is none ends it, too.
    client.ok(&[b"MULTI"]);
    assert_eq!(client.line("DEL a"), queued);
    assert!(
        matches!(client.line("EXEC a"), Answer::Error(error) if error.starts_with("EXECABORT"))
    );
    // A client that leaves takes its requests with it.
    let mut leaving = server.client();
    leaving.ok(&[b"MULTI"]);
    assert_eq!(leaving.line("DEL a"), queued);
    drop(leaving);
    for wrong in ["EXEC", "DISCARD"] {
        assert!(
            matches!(client.line(wrong), Answer::Error(error) if error.contains("without MULTI"))
        );
    }
    assert_eq!(client.get("a"), Some(b"2".to_vec()));
    client.ok(&[b"MULTI"]);
    let value = vec![b'x'; 1 << 20];
    let sets = request(&[b"SET", b"b", &value]);
    // It is closed in the middle.
    let sent = (0..10).take_while(|_| client.0.get_mut().write_all(&sets).is_ok()).count();
    let is_evicted = (0..2000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        other.info("evicted_clients") == "1"
    });
    assert!(is_evicted, "{sent} MiB of 4 are held: {}", other.info("mem_clients_normal"));
    assert_eq!(other.get("b"), None);
}

/// A cursor that no SCAN gave ends, as every number that redis reads as one.
fn scan_from_any_cursor_ends() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.set("a", b"05");
    for cursor in ["-1", "18446744073709551615", "9223372036854775807", "+7"] {
        let end = vec![Answer::Bulk(Some(b"0".to_vec())), Answer::Array(Vec::new())];
        assert_eq!(client.line(&format!("SCAN {cursor}")), Answer::Array(end), "{cursor}");
    }
    for wrong in ["SCAN 18446744073709551616", "SCAN x", "SCAN - COUNT 1", "INCR a", "EXPIRE a 05"]
    {
        assert!(matches!(client.line(wrong), Answer::Error(_)), "{wrong}");
    }
}

pub(crate) const CHECKS: &[Check] = &[
    ("multi_is_carried_out_whole_or_not_at_all", multi_is_carried_out_whole_or_not_at_all),
    ("scan_from_any_cursor_ends", scan_from_any_cursor_ends),
    ("request_of_nonsense_is_answered_and_survived", request_of_nonsense_is_answered_and_survived),
    ("request_in_any_pieces_is_answered", request_in_any_pieces_is_answered),
];
