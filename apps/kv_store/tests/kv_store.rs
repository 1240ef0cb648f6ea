//! The key-value server: asked by the real `redis-cli` and `redis-benchmark`, by raw sockets that
//! mean no good, killed, and started again on what it has saved.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hugekit::Snapshot;
use hugekit::fault::FaultMode;
use kv_store::redis;
use libtest_mimic::{Arguments, Trial};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The program, as it was built for these tests.
const PROGRAM: &str = env!("CARGO_BIN_EXE_kv_store");

/// A server, killed when it is dropped.
struct Server {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    fn command(folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["--port", "0", "--dir"]).arg(folder).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn start_with(folder: &Path, arguments: &[&str]) -> Self {
        let log = folder.join("log");
        let mut child = Self::command(folder, arguments)
            .stderr(fs::File::options().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("listening on port ").map(|port| port.parse().unwrap());
        let port = port.unwrap_or_else(|| panic!("{}", fs::read_to_string(&log).unwrap()));
        Self { child, port, log }
    }

    fn start(folder: &Path) -> Self {
        Self::start_with(folder, &["--memory", "64MiB"])
    }

    /// Why it does not start.
    fn refused(folder: &Path, memory: &str) -> String {
        let output = Self::command(folder, &["--memory", memory]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        said
    }

    fn client(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap()))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn ended(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Answer>),
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, words: &[&[u8]]) {
        self.0.get_mut().write_all(&request(words)).unwrap();
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("an answer");
        match kind {
            "+" => Answer::Simple(rest.to_owned()),
            "-" => Answer::Error(rest.to_owned()),
            ":" => Answer::Integer(rest.parse().unwrap()),
            "*" => Answer::Array((0..rest.parse().unwrap()).map(|_| self.answer()).collect()),
            "$" if rest == "-1" => Answer::Bulk(None),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                assert!(bytes.ends_with(b"\r\n"));
                bytes.truncate(bytes.len() - 2);
                Answer::Bulk(Some(bytes))
            }
            _ => panic!("{line}"),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> Answer {
        self.send(words);
        self.answer()
    }

    /// Asks by one line of words.
    fn line(&mut self, line: &str) -> Answer {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    fn ok(&mut self, words: &[&[u8]]) {
        assert_eq!(self.ask(words), Answer::Simple("OK".to_owned()));
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.ok(&[b"SET", key.as_bytes(), value]);
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        match self.ask(&[b"GET", key.as_bytes()]) {
            Answer::Bulk(value) => value,
            other => panic!("{other:?}"),
        }
    }

    fn integer(&mut self, line: &str) -> i64 {
        match self.line(line) {
            Answer::Integer(number) => number,
            other => panic!("{other:?}"),
        }
    }

    fn info(&mut self, name: &str) -> String {
        let Answer::Bulk(Some(text)) = self.line("INFO") else { panic!("no INFO") };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    fn background_save(&mut self) {
        assert_eq!(self.line("BGSAVE"), Answer::Simple("Background saving started".to_owned()));
    }

    fn wait_for_the_save(&mut self) -> String {
        while self.info("rdb_bgsave_in_progress") == "1" {
            thread::sleep(Duration::from_millis(5));
        }
        self.info("rdb_last_bgsave_status")
    }

    /// What is left until the server closes the connection.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // The server may be done before it has read everything: a reset is an end, too.
        let _ = self.0.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }

    fn holds(&mut self, model: &BTreeMap<String, Vec<u8>>) {
        assert_eq!(self.integer("DBSIZE"), model.len() as i64);
        for (key, value) in model {
            assert!(self.get(key).as_ref() == Some(value), "{key}");
        }
    }
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn folder() -> TempDir {
    TempDir::new().unwrap()
}

/// So many keys with values of any length, most of them short.
fn model(random: &mut fastrand::Rng, keys: usize) -> BTreeMap<String, Vec<u8>> {
    let value = |random: &mut fastrand::Rng| {
        let bits = random.usize(..13);
        let len = random.usize(..1 << bits);
        vec![random.u8(..); len]
    };
    (0..keys).map(|key| (format!("key:{key}"), value(random))).collect()
}

fn set_all(client: &mut Client, model: &BTreeMap<String, Vec<u8>>) {
    for (key, value) in model {
        client.send(&[b"SET", key.as_bytes(), value]);
    }
    for _ in model {
        assert_eq!(client.answer(), Answer::Simple("OK".to_owned()));
    }
}

fn redis_cli_is_answered() {
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
        (&["COMMAND", "COUNT"], "21"),
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

fn redis_cli_pipes() {
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

fn redis_benchmark_runs() {
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

/// What was set before BGSAVE is in the dump, and nothing that came after, although all of it is overwritten while
/// the save runs; all that one MSET has set is there or not.
fn a_save_under_load_is_a_point_in_time() {
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

/// The partial dump is a pipe here: the save stands still in the middle for as long as the test likes.
struct Stopped(fs::File);

impl Stopped {
    fn new(folder: &Path, client: &mut Client) -> Self {
        let pipe = folder.join("dump.hkv.part");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        client.background_save();
        // Opened when the save has opened it, too.
        let mut reader = fs::File::open(&pipe).unwrap();
        reader.read_exact(&mut [0; 8]).unwrap();
        Self(reader)
    }

    /// Lets it write all of it.
    fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        rest
    }
}

fn killed_in_the_middle_it_keeps_the_dump() {
    let folder = folder();
    let saved = model(&mut fastrand::Rng::with_seed(1), 3000);
    let server = Server::start(folder.path());
    let mut client = server.client();
    set_all(&mut client, &saved);
    client.ok(&[b"SAVE"]);
    client.ok(&[b"FLUSHALL"]);
    set_all(&mut client, &model(&mut fastrand::Rng::with_seed(2), 4000));
    let stopped = Stopped::new(folder.path(), &mut client);
    let running = "ERR Background save already in progress".to_owned();
    assert_eq!(client.line("BGSAVE"), Answer::Error(running.clone()));
    assert_eq!(client.line("SAVE"), Answer::Error(running));
    server.kill();
    drop(stopped);
    // What a killed save leaves behind is a file otherwise.
    fs::remove_file(folder.path().join("dump.hkv.part")).unwrap();
    fs::write(folder.path().join("dump.hkv.part"), "half a dump").unwrap();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.holds(&saved);
    client.background_save();
    assert_eq!(client.wait_for_the_save(), "ok");
    assert!(!folder.path().join("dump.hkv.part").exists());
}

/// Killed at any moment, it has the one dump or the other.
fn killed_at_any_moment_it_has_one_dump_or_the_other() {
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

/// A save that cannot end holds what it has: writers change everything, and what comes out is what was.
fn a_save_that_stands_still_holds_what_was() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    let saved = model(&mut fastrand::Rng::with_seed(3), 3000);
    set_all(&mut client, &saved);
    let stopped = Stopped::new(folder.path(), &mut client);
    client.ok(&[b"FLUSHALL"]);
    set_all(&mut client, &model(&mut fastrand::Rng::with_seed(4), 3000));
    let dump = [b"HKVDUMP1".as_slice(), &stopped.rest()].concat();
    // A pipe cannot be synchronised with a disk.
    assert_eq!(client.wait_for_the_save(), "err");
    server.kill();
    fs::write(folder.path().join("dump.hkv"), dump).unwrap();
    Server::start(folder.path()).client().holds(&saved);
}

fn few_sizes(random: &mut fastrand::Rng) -> BTreeMap<String, Vec<u8>> {
    let sizes = [50, 500, 3000];
    (0..4000)
        .map(|key| (format!("key:{key}"), vec![random.u8(..); sizes[random.usize(..3)]]))
        .collect()
}

/// As before, with so little room that writers must write what is protected, and copy it aside.
fn without_free_slabs_writers_copy_aside() {
    let folder = folder();
    let small = ["--memory", "24MiB"];
    let server = Server::start_with(folder.path(), &small);
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(5);
    let saved = few_sizes(&mut random);
    set_all(&mut client, &saved);
    let stopped = Stopped::new(folder.path(), &mut client);
    let mut held = saved.clone();
    for _ in 0..8 {
        let changed = few_sizes(&mut random);
        set_all(&mut client, &changed);
        held.extend(changed);
    }
    let dump = [b"HKVDUMP1".as_slice(), &stopped.rest()].concat();
    assert_eq!(client.wait_for_the_save(), "err");
    client.holds(&held);
    server.kill();
    fs::write(folder.path().join("dump.hkv"), dump).unwrap();
    Server::start_with(folder.path(), &small).client().holds(&saved);
}

fn a_save_that_fails_keeps_the_dump() {
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

fn damaged_dumps_are_refused_and_left() {
    let folder = folder();
    let server = Server::start(folder.path());
    let saved = model(&mut fastrand::Rng::with_seed(6), 300);
    set_all(&mut server.client(), &saved);
    server.client().ok(&[b"SAVE"]);
    server.kill();
    let dump = folder.path().join("dump.hkv");
    let good = fs::read(&dump).unwrap();
    let refused = |bad: &[u8]| {
        fs::write(&dump, bad).unwrap();
        let said = Server::refused(folder.path(), "64MiB");
        assert!(said.contains("damaged at byte ") && said.contains("left as it is"), "{said}");
        assert!(fs::read(&dump).unwrap() == bad);
    };
    let offsets = (0..30).chain((30..good.len()).step_by(good.len() / 20)).chain([good.len() - 1]);
    for (bit, offset) in offsets.enumerate() {
        let mut bad = good.clone();
        bad[offset] ^= 1 << (bit % 8);
        refused(&bad);
    }
    for len in [0, 7, 8, 27, 28, good.len() / 2, good.len() - 21, good.len() - 1] {
        refused(&good[..len]);
    }
    refused(&[&good[..], b"x"].concat());
    fs::write(&dump, &good).unwrap();
    Server::start(folder.path()).client().holds(&saved);
}

fn nonsense_is_answered_and_survived() {
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

fn requests_come_in_any_pieces() {
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

fn clients_are_limited() {
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
fn what_clients_hold_is_bounded() {
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
fn what_no_client_may_hold_is_refused() {
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
fn without_room_nothing_is_lost() {
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

fn keys_expire_and_are_not_saved() {
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

fn large_values_are_kept() {
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

fn it_ends_as_it_is_told() {
    let folder = folder();
    let value = |server: &Server| server.client().get("a").map(|value| value[0] - b'0');
    let set = |server: &Server, digit: u8| server.client().set("a", &[digit + b'0']);
    let server = Server::start(folder.path());
    set(&server, 1);
    server.client().send(&[b"SHUTDOWN"]);
    assert!(server.ended().success());
    let server = Server::start(folder.path());
    assert_eq!(value(&server), Some(1));
    set(&server, 2);
    server.client().send(&[b"SHUTDOWN", b"NOSAVE"]);
    assert!(server.ended().success());
    let server = Server::start(folder.path());
    assert_eq!(value(&server), Some(1));
    set(&server, 3);
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    assert!(server.ended().success());
    let server = Server::start(folder.path());
    assert_eq!(value(&server), Some(3));
    assert!(Server::refused(folder.path(), "64MiB").contains("in use by another server"));
}

fn it_is_compared_with_the_real_one() {
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

type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("damaged_dumps_are_refused_and_left", damaged_dumps_are_refused_and_left),
    ("nonsense_is_answered_and_survived", nonsense_is_answered_and_survived),
    ("requests_come_in_any_pieces", requests_come_in_any_pieces),
    ("clients_are_limited", clients_are_limited),
    ("what_clients_hold_is_bounded", what_clients_hold_is_bounded),
    ("what_no_client_may_hold_is_refused", what_no_client_may_hold_is_refused),
    ("without_room_nothing_is_lost", without_room_nothing_is_lost),
    ("it_ends_as_it_is_told", it_ends_as_it_is_told),
];

/// With a snapshot.
const SAVING: &[Check] = &[
    ("a_save_under_load_is_a_point_in_time", a_save_under_load_is_a_point_in_time),
    ("killed_in_the_middle_it_keeps_the_dump", killed_in_the_middle_it_keeps_the_dump),
    (
        "killed_at_any_moment_it_has_one_dump_or_the_other",
        killed_at_any_moment_it_has_one_dump_or_the_other,
    ),
    ("a_save_that_stands_still_holds_what_was", a_save_that_stands_still_holds_what_was),
    ("without_free_slabs_writers_copy_aside", without_free_slabs_writers_copy_aside),
    ("a_save_that_fails_keeps_the_dump", a_save_that_fails_keeps_the_dump),
    ("keys_expire_and_are_not_saved", keys_expire_and_are_not_saved),
    ("large_values_are_kept", large_values_are_kept),
];

/// With the real programs.
const WITH_REDIS: &[Check] = &[
    ("redis_cli_is_answered", redis_cli_is_answered),
    ("redis_cli_pipes", redis_cli_pipes),
    ("redis_benchmark_runs", redis_benchmark_runs),
    ("it_is_compared_with_the_real_one", it_is_compared_with_the_real_one),
];

fn trials(checks: &'static [Check], lacking: Option<&str>) -> Vec<Trial> {
    let trial = |&(name, check): &Check| {
        let run = move || {
            check();
            Ok(())
        };
        let trial = Trial::test(name, run);
        match lacking {
            None => trial,
            Some(reason) => trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
        }
    };
    checks.iter().map(trial).collect()
}

/// Why no snapshot can be taken here.
#[allow(unsafe_code)]
fn no_snapshots() -> Option<String> {
    let memory = vec![1_u8; 8 << 20];
    let builder = Snapshot::builder().fault_mode(FaultMode::InPlace);
    // SAFETY: no thread writes to it.
    let made = unsafe { builder.of_anonymous(&raw const memory[..]) };
    made.err().map(|error| error.to_string())
}

fn main() {
    let arguments = Arguments::from_args();
    let missing = ["redis-cli", "redis-benchmark", "redis-server"]
        .into_iter()
        .find_map(|name| redis::program(name).err());
    let trials = [
        trials(CHECKS, None),
        trials(SAVING, no_snapshots().as_deref()),
        trials(WITH_REDIS, missing.as_deref()),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit();
}
