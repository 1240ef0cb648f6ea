//! The real programs ask, and are compared with.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use kv_store::redis;

use crate::Check;
use crate::client::{Answer, request};
use crate::server::{PROGRAM, Server, folder};

fn redis_cli_with_each_command_is_answered() {
    let folder = folder();
    let server = Server::start(folder.path());
    let run = |words: &[&str]| {
        let mut command = redis::program("redis-cli").unwrap();
        let output = command.args(["-p", &server.port.to_string()]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    let cases: [(&[&str], &str); 28] = [
        (&["PING"], "PONG"),
        (&["PING", "hello"], "hello"),
        (&["ECHO", "some words"], "some words"),
        (&["SET", "a", "1"], "OK"),
        (&["GET", "a"], "1"),
        (&["GET", "none"], ""),
        (&["SET", "a", "2", "NX"], ""),
        (&["SET", "none", "2", "XX"], ""),
        (&["SET", "a", "2", "XX", "EX", "1000"], "OK"),
        (&["TTL", "a"], "1000"),
        (&["INCR", "a"], "3"),
        (&["TTL", "a"], "1000"),
        (&["INCR", "new"], "1"),
        (&["TTL", "new"], "-1"),
        (&["MSET", "b", "x", "c", "y"], "OK"),
        (&["MGET", "a", "none", "c"], "3\n\ny"),
        (&["INCR", "b"], "ERR value is not an integer or out of range"),
        (&["EXISTS", "a", "a", "none"], "2"),
        (&["DEL", "a", "none", "b"], "2"),
        (&["DBSIZE"], "2"),
        (&["SAVE"], "OK"),
        (&["CONFIG", "GET", "save"], "save"),
        (&["COMMAND", "COUNT"], "40"),
        (&["NONSENSE", "a"], "ERR unknown command 'NONSENSE'"),
        (&["GET"], "ERR wrong number of arguments for 'get' command"),
        (&["SET", "a", "1", "EX", "0"], "ERR invalid expire time in 'set' command"),
        (&["FLUSHALL"], "OK"),
        (&["DBSIZE"], "0"),
    ];
    for (words, expected) in cases {
        assert_eq!(run(words), expected, "{words:?}");
    }
    assert!(run(&["COMMAND"]).contains("mget"));
    assert!(run(&["INFO"]).contains("rdb_last_bgsave_status:ok"));
    assert!(run(&["LASTSAVE"]).parse::<u64>().unwrap() > 1_700_000_000);
    run(&["SHUTDOWN", "NOSAVE"]);
    assert!(server.ended().success());
}

fn redis_cli_by_resp3_is_answered() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut command = redis::program("redis-cli").unwrap();
    command.args(["-3", "--no-raw", "-p", &server.port.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let asked = "HELLO 3 SETNAME cli\nGET none\nSET a 1\nMGET a none\nCONFIG GET chain-deltas\n\
        SCAN 0\nTYPE a\nCLIENT GETNAME\nHELLO 4\nHELLO 2\nGET none\n";
    child.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "# \"server\" => \"kv_store\"",
        "\"proto\" => (integer) 3",
        "(nil)\nOK\n1) \"1\"\n2) (nil)\n1# \"chain-deltas\" => \"60\"\n1) \"0\"\n2) 1) \"a\"\nstring\n\"cli\"",
        "(error) NOPROTO unsupported protocol version",
        "2) \"kv_store\"",
    ] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
}

/// A Python that has redis-py: that of `cargo xtask test --install`, or the usual one.
fn python() -> Result<Command, String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let own = target.join("redis/python/bin/python");
    let has_it = |python: &Path| {
        let asked =
            Command::new(python).args(["-c", "import redis"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    let found = [own.as_path(), Path::new("python3")].into_iter().find(|python| has_it(python));
    found.map(Command::new).ok_or_else(|| "no redis-py (pip install redis)".to_owned())
}

/// Why redis-py cannot ask here.
pub(crate) fn no_redis_py() -> Option<String> {
    python().err()
}

fn redis_py_by_each_protocol_is_answered() {
    let folder = folder();
    let server = Server::start(folder.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis_py.py");
    let output = python().unwrap().arg(script).arg(server.port.to_string()).output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"answered\n", "{complained}");
}

pub(crate) const WITH_REDIS_PY: &[Check] =
    &[("redis_py_by_each_protocol_is_answered", redis_py_by_each_protocol_is_answered)];

fn redis_cli_with_a_pipe_of_requests_gets_every_reply() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut command = redis::program("redis-cli").unwrap();
    command.args(["-p", &server.port.to_string(), "--pipe"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for key in 0..50_000_u32 {
        let words: [&[u8]; 3] = [b"SET", &key.to_le_bytes(), &vec![key as u8; key as usize % 300]];
        input.write_all(&request(&words)).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("errors: 0, replies: 50000"), "{said}");
    let mut client = server.client();
    assert_eq!(client.integer("DBSIZE"), 50_000);
    for key in (0..50_000_u32).step_by(997) {
        let value = client.ask(&[b"GET", &key.to_le_bytes()]);
        assert_eq!(value, Answer::Bulk(Some(vec![key as u8; key as usize % 300])));
    }
}

fn redis_benchmark_of_each_command_sees_no_error() {
    let folder = folder();
    let server = Server::start(folder.path());
    let port = server.port.to_string();
    for pipeline in ["1", "16"] {
        let mut command = redis::program("redis-benchmark").unwrap();
        command.args(["-p", &port, "-t", "ping,set,get,incr,mset", "-n", "5000", "-c", "20"]);
        let output =
            command.args(["-r", "1000", "-d", "100", "--csv", "-P", pipeline]).output().unwrap();
        let [said, complained] =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(output.status.success() && complained.is_empty(), "{said}{complained}");
        for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"] {
            assert!(said.contains(&format!("\"{test}\",")), "{said}");
        }
        assert!(!said.to_lowercase().contains("err"), "{said}");
    }
    assert_eq!(server.client().info("rdb_last_bgsave_status"), "ok");
}

fn bench_beside_the_real_server_prints_the_ratios() {
    let mut bench = Command::new(PROGRAM);
    bench.args(["bench", "--keys", "3000", "--rate", "2000", "--rounds", "2", "--seconds", "0.1"]);
    let output = bench.output().unwrap();
    let [said, complained] =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{said}{complained}");
    for server in ["redis-server", "redis-server, THP"] {
        let ratio = format!("p99.9 of SET during BGSAVE, {server} / kv_store: ");
        let line = said.lines().find_map(|line| line.strip_prefix(&ratio));
        assert!(line.is_some_and(|line| line.ends_with("in 2 rounds")), "{said}");
    }
}

pub(crate) const WITH_REDIS: &[Check] = &[
    ("redis_cli_with_each_command_is_answered", redis_cli_with_each_command_is_answered),
    ("redis_cli_by_resp3_is_answered", redis_cli_by_resp3_is_answered),
    (
        "redis_cli_with_a_pipe_of_requests_gets_every_reply",
        redis_cli_with_a_pipe_of_requests_gets_every_reply,
    ),
    (
        "redis_benchmark_of_each_command_sees_no_error",
        redis_benchmark_of_each_command_sees_no_error,
    ),
    (
        "bench_beside_the_real_server_prints_the_ratios",
        bench_beside_the_real_server_prints_the_ratios,
    ),
];
