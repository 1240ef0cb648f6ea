//! Requests in any pieces, and bytes that are none.

use std::io::Write;
use std::net::Shutdown;
use std::thread;

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

pub(crate) const CHECKS: &[Check] = &[
    ("request_of_nonsense_is_answered_and_survived", request_of_nonsense_is_answered_and_survived),
    ("request_in_any_pieces_is_answered", request_in_any_pieces_is_answered),
];
