//! A server in a folder of its own, its clients, and the keys that it should have.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use hugekit_testing::processes::{Killed, happens};
use kv_store::folder;
use redis::{Cmd, Connection, ConnectionLike, InfoDict, IntoConnectionInfo};
use redis::{RedisResult, ToRedisArgs, Value};
use tempfile::{TempDir, tempdir};

pub(crate) type Model = BTreeMap<String, Vec<u8>>;

pub(crate) struct Server {
    pub(crate) process: Option<Killed>,
    pub(crate) port: u16,
    folder: TempDir,
}

impl Server {
    /// A server with these options in a new folder.
    pub(crate) fn start(options: &str) -> Self {
        let mut server = Self { process: None, port: 0, folder: tempdir().unwrap() };
        server.restart(options);
        server
    }

    /// Kills the server, and starts it again in the same folder.
    pub(crate) fn restart(&mut self, options: &str) {
        self.process = None;
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = self.command(options).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.process = Some(Killed(child));
        let port = line.trim().rsplit(' ').next().and_then(|port| port.parse().ok());
        self.port = port.unwrap_or_else(|| panic!("{}", self.log()));
    }

    pub(crate) fn has_after_restart(&mut self, options: &str, model: &Model) {
        self.restart(options);
        self.client().holds(model);
    }

    pub(crate) fn command(&self, options: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv_store"));
        command.args(["--port", "0", "--dir"]).arg(self.folder.path()).args(options.split(' '));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Why another server does not start in the folder.
    pub(crate) fn refused(&self, options: &str) -> String {
        let output = self.command(options).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{errors}");
        errors
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// The deltas in the folder, in order.
    pub(crate) fn deltas(&self) -> Vec<PathBuf> {
        let deltas = folder::deltas(self.folder.path()).unwrap().into_iter();
        deltas.map(|(image, number)| self.path(&folder::delta(image, number))).collect()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }
}

pub(crate) struct Client(pub(crate) Connection);

impl Client {
    pub(crate) fn connect(to: impl IntoConnectionInfo) -> RedisResult<Self> {
        redis::Client::open(to)?.get_connection().map(Self)
    }

    /// The reply to a request; `None` if the server is gone.
    pub(crate) fn try_ask(&mut self, words: impl ToRedisArgs) -> Option<Value> {
        self.0.req_command(Cmd::new().arg(words)).ok()
    }

    /// The reply to a request that is one line.
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.try_ask(line.split(' ').collect::<Vec<_>>()).expect("a reply")
    }

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
        let mut requests = redis::pipe();
        for (key, value) in model {
            requests.cmd("SET").arg(key).arg(value).ignore();
        }
        requests.exec(&mut self.0).unwrap();
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        redis::cmd("GET").arg(key).query(&mut self.0).ok()?
    }

    /// The number that a key has, 0 if it is not there; `None` if the server is gone.
    pub(crate) fn number(&mut self, key: &str) -> Option<u64> {
        let number = redis::cmd("GET").arg(key).query::<Option<u64>>(&mut self.0);
        number.map(Option::unwrap_or_default).ok()
    }

    pub(crate) fn holds(&mut self, model: &Model) {
        assert_eq!(self.ask("DBSIZE"), Value::Int(model.len() as i64));
        for (key, value) in model {
            assert!(self.get(key).as_ref() == Some(value), "{key}");
        }
    }

    pub(crate) fn info(&mut self, name: &str) -> String {
        let info: InfoDict = redis::cmd("INFO").query(&mut self.0).unwrap();
        info.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// How the save in the background ended.
    pub(crate) fn end_of_save(&mut self) -> String {
        assert!(happens(|| self.info("rdb_bgsave_in_progress") == "0"));
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
