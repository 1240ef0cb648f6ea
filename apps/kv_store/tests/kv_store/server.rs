//! A server, its clients, and the keys that it should have.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use redis::{Parser, Value};

pub(crate) type Model = BTreeMap<String, Vec<u8>>;

/// Killed when it is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    log: PathBuf,
}

impl Server {
    pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv_store"));
        command.args(["--port", "0", "--dir"]).arg(folder).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let log = folder.join("log");
        let errors = File::options().create(true).append(true).open(&log).unwrap();
        let mut child = Self::command(folder, arguments).stderr(errors).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("{}", fs::read_to_string(&log).unwrap()));
        Self { child, port, log }
    }

    /// Why the server does not start.
    pub(crate) fn refused(folder: &Path, arguments: &[&str]) -> String {
        let output = Self::command(folder, arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{errors}");
        errors
    }

    pub(crate) fn client(&self) -> Client<TcpStream> {
        Client::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Client<S> {
    pub(crate) stream: S,
    parser: Parser,
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, parser: Parser::new() }
    }

    pub(crate) fn send<T: AsRef<[u8]>>(&mut self, words: &[T]) -> io::Result<()> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word.as_ref());
        }
        self.stream.write_all(&command.get_packed_command())
    }

    pub(crate) fn reply(&mut self) -> Option<Value> {
        self.parser.parse_value(&mut self.stream).ok()
    }

    /// The reply to a request; `None` if the server is gone.
    pub(crate) fn try_ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Option<Value> {
        self.send(words).ok()?;
        self.reply()
    }

    /// The reply to a request that is one line.
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.try_ask(&line.split(' ').collect::<Vec<_>>()).expect("a reply")
    }

    /// The error that a request gets.
    pub(crate) fn error(&mut self, line: &str) -> String {
        match self.ask(line) {
            Value::ServerError(error) => error.to_string(),
            reply => panic!("{line}: {reply:?}"),
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        assert_eq!(self.try_ask(&[b"SET", key.as_bytes(), value]), Some(Value::Okay));
    }

    pub(crate) fn set_all(&mut self, model: &Model) {
        for (key, value) in model {
            self.send(&[b"SET", key.as_bytes(), value]).unwrap();
        }
        model.iter().for_each(|_| assert_eq!(self.reply(), Some(Value::Okay)));
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        match self.ask(&format!("GET {key}")) {
            Value::BulkString(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn holds(&mut self, model: &Model) {
        assert_eq!(self.ask("DBSIZE"), Value::Int(model.len() as i64));
        for (key, value) in model {
            assert!(self.get(key).as_ref() == Some(value), "{key}");
        }
    }

    pub(crate) fn info(&mut self, name: &str) -> String {
        let Value::BulkString(text) = self.ask("INFO") else { panic!("no INFO") };
        let text = String::from_utf8(text).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    /// How the save in the background ended.
    pub(crate) fn end_of_save(&mut self) -> String {
        while self.info("rdb_bgsave_in_progress") == "1" {
            thread::sleep(Duration::from_millis(2));
        }
        self.info("rdb_last_bgsave_status")
    }

    /// Saves in the background, and returns the kind of the save.
    pub(crate) fn save(&mut self) -> String {
        assert!(matches!(self.ask("BGSAVE"), Value::SimpleString(_)));
        assert_eq!(self.end_of_save(), "ok");
        self.info("last_save_kind")
    }
}

/// Keys with values of any length, most of them short.
pub(crate) fn model(random: &mut fastrand::Rng, keys: usize) -> Model {
    let value = |random: &mut fastrand::Rng| {
        let bits = random.usize(..13);
        vec![random.u8(..); random.usize(..1 << bits)]
    };
    (0..keys).map(|key| (format!("key:{key}"), value(random))).collect()
}

/// The deltas of a folder, in order.
pub(crate) fn deltas(folder: &Path) -> Vec<PathBuf> {
    let deltas = kv_store::folder::deltas(folder).unwrap().into_iter();
    deltas.map(|(image, number)| folder.join(kv_store::folder::delta(image, number))).collect()
}
