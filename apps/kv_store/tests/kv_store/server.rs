//! A server of the tests: started, refused, killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::client::Client;

/// The program, as it was built for these tests.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_kv_store");

/// A server, killed when it is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    log: PathBuf,
}

impl Server {
    pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["--port", "0", "--dir"]).arg(folder).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn start_with(folder: &Path, arguments: &[&str]) -> Self {
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

    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_with(folder, &["--memory", "64MiB"])
    }

    /// Why it does not start.
    pub(crate) fn refused(folder: &Path, memory: &str) -> String {
        let output = Self::command(folder, &["--memory", memory]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        said
    }

    pub(crate) fn client(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap()))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ended(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn folder() -> TempDir {
    TempDir::new().unwrap()
}
