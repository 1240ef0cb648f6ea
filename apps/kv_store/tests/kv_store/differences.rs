//! Random requests to this server and to the real one, side by side: the replies are the same.
//!
//! [`INTENDED`] lists where they may differ, and how the test makes the replies alike. Requests that
//! only one of the servers knows are not sent. `HUGEKIT_FUZZ_SECONDS` and `HUGEKIT_FUZZ_SEED` say for
//! how long, and from which seed on.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::tempdir;

use crate::programs;
use crate::server::{Client, Server};
use crate::{Checks, checks};

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

type AreAlike = fn(&Value, &Value) -> bool;

/// Commands with other replies; `apps/kv_store/README.md` has the reasons.
const INTENDED: &[(&str, AreAlike)] = &[
    // The servers describe themselves.
    ("hello", |ours, theirs| is_map(ours) == is_map(theirs)),
    // Keys have another order.
    ("keys", |ours, theirs| sorted(ours) == sorted(theirs)),
    ("scan", |ours, theirs| sorted(ours) == sorted(theirs)),
    // Milliseconds go by between the servers.
    ("pttl", |ours, theirs| match (ours, theirs) {
        (Value::Int(ours), Value::Int(theirs)) => ours.abs_diff(*theirs) < 10_000,
        _ => ours == theirs,
    }),
];

fn is_map(value: &Value) -> bool {
    matches!(value, Value::Map(_))
}

fn sorted(value: &Value) -> Vec<String> {
    let mut parts = match value {
        Value::Array(parts) => parts.iter().map(|part| sorted(part).concat()).collect(),
        other => vec![format!("{other:?}")],
    };
    parts.sort();
    parts
}

/// Whether the replies to a request are alike. Of errors, only the first words are compared.
fn are_alike(words: &[String], queue: &[Vec<String>], ours: &Value, theirs: &Value) -> bool {
    let intended = INTENDED.iter().find(|(name, _)| *name == words[0]);
    match (ours, theirs, intended) {
        (Value::ServerError(ours), Value::ServerError(theirs), _) => ours.code() == theirs.code(),
        (Value::Array(ours), Value::Array(theirs), _) if words[0] == "exec" => {
            let mut parts = queue.iter().zip(ours.iter().zip(theirs));
            ours.len() == theirs.len()
                && parts.all(|(words, (ours, theirs))| are_alike(words, &[], ours, theirs))
        }
        (_, _, Some((_, are_alike))) => are_alike(ours, theirs),
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
    let template = pick(all);
    let words = template.split(' ').map(|word| match word {
        "K" => pick(KEYS),
        "V" if pick("key;number") == "key" => pick(KEYS),
        "V" | "N" => pick(NUMBERS),
        "T" => pick(TIMES),
        "P" => pick(PATTERNS),
        word => word.to_owned(),
    });
    words.collect()
}

/// Sends the requests of a seed to both servers.
fn compare(seed: u64, ours: &mut Client<TcpStream>, theirs: &mut Client<UnixStream>) {
    let (mut random, mut log) = (fastrand::Rng::with_seed(seed), Vec::new());
    let mut queue: Option<Vec<Vec<String>>> = None;
    for _ in 0..60 {
        let words = request(&mut random, queue.is_some());
        let ours = ours.try_ask(&words).expect("a reply");
        let theirs = theirs.try_ask(&words).expect("a reply");
        log.push(words.join(" "));
        let failed =
            || format!("HUGEKIT_FUZZ_SEED={seed}\n{log:?}\n ours:   {ours:?}\n theirs: {theirs:?}");
        if theirs == Value::SimpleString("QUEUED".to_owned()) {
            assert!(ours == theirs, "{}", failed());
            queue.as_mut().expect("a queue").push(words);
            continue;
        }
        let queued = queue.as_deref().unwrap_or_default();
        assert!(are_alike(&words, queued, &ours, &theirs), "{}", failed());
        match words[0].as_str() {
            "multi" => queue = queue.or(Some(Vec::new())),
            "exec" | "discard" => queue = None,
            _ => {}
        }
    }
    for line in ["discard", "hello 2", "flushall"] {
        ours.ask(line);
        theirs.ask(line);
    }
}

/// The real server, killed when it is dropped.
struct Real(Child);

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn random_requests_are_answered_as_by_the_real_server() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let (folder, began) = (tempdir().unwrap(), Instant::now());
    let socket = folder.path().join("socket");
    let mut command = programs::redis("redis-server").unwrap();
    command.args(["--port", "0", "--save", "", "--databases", "1", "--dir"]).arg(folder.path());
    command.arg("--unixsocket").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
    let _real = Real(command.spawn().unwrap());
    let connect = || UnixStream::connect(&socket);
    while connect().is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "{command:?}");
        thread::sleep(Duration::from_millis(5));
    }
    let server = Server::start(folder.path(), &["--memory", "64MiB"]);
    let (mut ours, mut theirs) = (server.client(), Client::new(connect().unwrap()));
    let seconds = number("HUGEKIT_FUZZ_SECONDS").map(Duration::from_secs);
    let first = number("HUGEKIT_FUZZ_SEED").unwrap_or(1);
    for seed in first.. {
        if seconds.map_or(seed >= first + 300, |seconds| began.elapsed() >= seconds) {
            break;
        }
        compare(seed, &mut ours, &mut theirs);
    }
}

pub(crate) const CHECKS: Checks = checks![random_requests_are_answered_as_by_the_real_server];
