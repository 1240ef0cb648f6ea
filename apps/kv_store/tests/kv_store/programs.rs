//! `redis-cli` and redis-py, as people and programs use them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hugekit_programs::Unpacked;
use tempfile::tempdir;

use crate::server::Server;
use crate::{Checks, checks};

/// Where `cargo xtask test --install` puts the programs.
fn installed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/redis")
}

/// One of the programs of Redis.
pub(crate) fn redis(name: &str) -> Result<Command, String> {
    let found = Unpacked::new(installed().join("root")).find(name);
    found.ok_or_else(|| format!("no {name} (apt-get install redis-tools redis-server)"))
}

/// A Python that has redis-py.
pub(crate) fn python() -> Result<Command, String> {
    let has_it = |python: &PathBuf| {
        let mut command = Command::new(python);
        let asked = command.args(["-c", "import redis"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    let found = [installed().join("python/bin/python"), "python3".into()].into_iter().find(has_it);
    found.map(Command::new).ok_or_else(|| "no redis-py (pip install redis)".to_owned())
}

fn redis_cli_by_each_protocol_is_answered() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), &["--memory", "16MiB"]);
    for protocol in ["-2", "-3"] {
        let mut command = redis("redis-cli").unwrap();
        command.args([protocol, "-p", &server.port.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = b"SET a 2 EX 1000\nINCR a\nTTL a\nGET none\nNONSENSE\nSAVE\n";
        child.stdin.take().unwrap().write_all(lines).unwrap();
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let error = "ERR unknown command 'nonsense'\n";
        assert_eq!(output, format!("OK\n3\n1000\n\n{error}\nOK\n"));
    }
}

fn redis_py_by_each_protocol_is_answered() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), &["--memory", "64MiB"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis_py.py");
    let output = python().unwrap().arg(script).arg(server.port.to_string()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"answered\n", "{errors}");
}

pub(crate) const REDIS_CLI: Checks = checks![redis_cli_by_each_protocol_is_answered];
pub(crate) const REDIS_PY: Checks = checks![redis_py_by_each_protocol_is_answered];
