//! The programs of Redis and redis-py. `redis-cli` and redis-py are answered, and random requests get
//! the same replies as from `redis-server`.
//!
//! [`are_alike`] lists where replies may differ. Requests that only one of the servers knows are not
//! sent.

use std::io::Write;
use std::mem::discriminant;
use std::process::{Command, Stdio};

use hugekit_programs::Unpacked;
use hugekit_testing::checks;
use hugekit_testing::processes::{Killed, happens};
use hugekit_testing::seed::random;
use hugekit_testing::trials::Checks;
use redis::Value;

use crate::server::{Client, Server};

/// Where `cargo xtask test --install` puts the programs.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/redis");

pub(crate) fn program(name: &str) -> Result<Command, String> {
    let found = Unpacked::new(format!("{INSTALLED}/root")).find(name);
    found.ok_or_else(|| format!("no {name} (apt-get install redis-tools redis-server)"))
}

/// A Python that has redis-py.
pub(crate) fn python() -> Result<Command, String> {
    let has_it = |python: &String| {
        let output = Command::new(python).args(["-c", "import redis"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let either = [format!("{INSTALLED}/python/bin/python"), "python3".to_owned()];
    let found = either.into_iter().find(has_it);
    found.map(Command::new).ok_or_else(|| "no redis-py (pip install redis)".to_owned())
}

fn redis_cli_by_each_protocol_is_answered() {
    let server = Server::start("--memory 16MiB");
    for protocol in ["-2", "-3"] {
        let mut command = program("redis-cli").unwrap();
        command.args([protocol, "-p", &server.port.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = b"SET a 2 EX 1000\nINCR a\nTTL a\nGET none\nNONSENSE\nSAVE\n";
        child.stdin.take().unwrap().write_all(lines).unwrap();
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(output, "OK\n3\n1000\n\nERR unknown command 'nonsense'\n\nOK\n");
    }
}

fn redis_py_by_each_protocol_is_answered() {
    let server = Server::start("--memory 64MiB");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis_py.py");
    let output = python().unwrap().arg(script).arg(server.port.to_string()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"answered\n", "{errors}");
}

/// Requests, with places for a key, a value, a number, a time and a pattern.
const REQUESTS: &str = "get K;mget K K K;set K V;set K V ex T;set K V px T nx;set K V xx;set K V N;\
    set K V nx xx;set K V ex;mset K V;mset K V K V;incr K;decr K;incrby K N;decrby K N;del K K;\
    unlink K;exists K K;type K;expire K T;pexpire K T;expire K N;ttl K;pttl K;persist K;dbsize;\
    keys P;scan 0 count 100000;scan 0 match P count 100000;scan 0 count 100000 type string;scan x;\
    flushall;ping;ping V;echo V;select 0;select N;hello 2;hello 3;hello 4;multi;multi;exec;exec;\
    discard;nonsense;K V";
/// Wrong numbers of words.
const WRONG: &str = "get;get K K;set K;mset K;mset K V K;incr;incrby K;del;expire K;ttl;keys;scan;\
    echo;ping K K;multi K";
const KEYS: &str = "a;b;ab;abc;*;[a];a\\;\0;a\r\nb;-;";
const NUMBERS: &str = "0;1;-1;7;05;-0;+1;;-;1 ;1.0;1e3;9223372036854775807;-9223372036854775808;\
    9223372036854775808;18446744073709551616;9223372036854775";
/// Far from now: each server has its own clock.
const TIMES: &str = "0;-1;100000;10000000;9223372036854775807;x;05";
const PATTERNS: &str = "*;a*;*b;a?c;?;[ab];[^a];[a-b]*;\\*;a\\\\";

fn sorted(value: &Value) -> Vec<String> {
    let mut parts = match value {
        Value::Array(parts) => parts.iter().map(|part| sorted(part).concat()).collect(),
        other => vec![format!("{other:?}")],
    };
    parts.sort();
    parts
}

/// Whether the replies to a request are alike; `apps/kv_store/README.md` has the reasons.
fn are_alike(words: &[String], queue: &[Vec<String>], ours: &Value, theirs: &Value) -> bool {
    match (words[0].as_str(), ours, theirs) {
        // Of errors, only the first words are compared.
        (_, Value::ServerError(ours), Value::ServerError(theirs)) => ours.code() == theirs.code(),
        ("exec", Value::Array(ours), Value::Array(theirs)) => {
            let mut parts = queue.iter().zip(ours.iter().zip(theirs));
            ours.len() == theirs.len()
                && parts.all(|(words, (ours, theirs))| are_alike(words, &[], ours, theirs))
        }
        // The servers describe themselves.
        ("hello", ..) => discriminant(ours) == discriminant(theirs),
        // Keys have another order.
        ("keys" | "scan", ..) => sorted(ours) == sorted(theirs),
        // Milliseconds go by between the servers.
        ("pttl", Value::Int(ours), Value::Int(theirs)) => ours.abs_diff(*theirs) < 10_000,
        _ => ours == theirs,
    }
}

fn request(random: &mut fastrand::Rng, is_queuing: bool) -> Vec<String> {
    // A queue refuses unknown commands only: EXEC replies to a wrong number of words.
    let all = if random.u8(..8) > 0 || is_queuing { REQUESTS } else { WRONG };
    let mut pick = |of: &str| {
        let all: Vec<&str> = of.split(';').collect();
        all[random.usize(..all.len())].to_owned()
    };
    let words = pick(all);
    let words = words.split(' ').map(|word| match word {
        "K" => pick(KEYS),
        "V" if pick("key;number") == "key" => pick(KEYS),
        "V" | "N" => pick(NUMBERS),
        "T" => pick(TIMES),
        "P" => pick(PATTERNS),
        word => word.to_owned(),
    });
    words.collect()
}

/// Sends some requests to both servers.
fn compare(random: &mut fastrand::Rng, servers: &mut [Client; 2]) {
    let mut log = Vec::new();
    let mut queue: Option<Vec<Vec<String>>> = None;
    for _ in 0..60 {
        let words = request(random, queue.is_some());
        let [ours, theirs] = servers.each_mut().map(|server| server.try_ask(&words).expect("one"));
        log.push(words.join(" "));
        assert!(
            are_alike(&words, queue.as_deref().unwrap_or_default(), &ours, &theirs),
            "{log:?}\n ours:   {ours:?}\n theirs: {theirs:?}"
        );
        match (words[0].as_str(), theirs) {
            ("multi", _) => queue = queue.or(Some(Vec::new())),
            ("exec" | "discard", _) => queue = None,
            (_, Value::SimpleString(reply)) if reply == "QUEUED" => {
                queue.as_mut().expect("a queue").push(words);
            }
            _ => {}
        }
    }
    for line in ["discard", "hello 2", "flushall"] {
        servers.iter_mut().for_each(|server| _ = server.ask(line));
    }
}

fn random_requests_are_answered_as_by_the_real_server() {
    compare_often(100);
}

fn many_requests_are_answered_as_by_the_real_server() {
    compare_often(3_000);
}

fn compare_often(times: u32) {
    let server = Server::start("--memory 64MiB");
    let socket = server.path("socket");
    let mut command = program("redis-server").unwrap();
    command.args(["--port", "0", "--save", "", "--databases", "1", "--unixsocket"]).arg(&socket);
    command.current_dir(server.path("")).stdout(Stdio::null()).stderr(Stdio::null());
    let _real = Killed(command.spawn().unwrap());
    let address = format!("unix://{}", socket.display());
    assert!(happens(|| Client::connect(&*address).is_ok()), "{command:?}");
    let mut servers = [server.client(), Client::connect(&*address).unwrap()];
    let mut random = random();
    (0..times).for_each(|_| compare(&mut random, &mut servers));
}

pub(crate) const REDIS_CLI: Checks = checks![redis_cli_by_each_protocol_is_answered];
pub(crate) const REDIS_PY: Checks = checks![redis_py_by_each_protocol_is_answered];
pub(crate) const REDIS_SERVER: Checks = checks![
    random_requests_are_answered_as_by_the_real_server,
    "[nightly: it sends many random requests] " many_requests_are_answered_as_by_the_real_server,
];
