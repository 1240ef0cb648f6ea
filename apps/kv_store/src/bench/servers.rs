//! The servers that are compared.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use tempfile::TempDir;

use kv_store::redis;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// This one
    #[value(name = "kv-store")]
    Ours,
    /// The real one, as it comes
    #[value(name = "redis")]
    Real,
    /// With its heap on transparent huge pages
    #[value(name = "redis-thp")]
    RealThp,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Ours => "kv_store",
            Self::Real => "redis-server",
            Self::RealThp => "redis-server, THP",
        })
    }
}

/// A server with a folder of its own, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    kind: Kind,
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Running {
    pub(crate) fn start(kind: Kind, keys: u64, save_nice: i32) -> Result<Self> {
        let folder = TempDir::new()?;
        let mut command = match kind {
            Kind::Ours => {
                let mut command = Command::new(std::env::current_exe()?);
                // Twice what entries of 700 bytes take.
                let memory = (2 * keys * 700).max(64 << 20).to_string();
                command.args(["--port", "0", "--memory", &memory, "--dir"]).arg(folder.path());
                command.args(["--save-nice", &save_nice.to_string()]);
                command
            }
            Kind::Real | Kind::RealThp => real(kind, &folder)?,
        };
        command.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut running = Self { kind, child, port: 0, _folder: folder };
        running.port = match kind {
            Kind::Ours => running.printed_port()?,
            _ => asked_port(&command)?,
        };
        running.wait_until_it_answers()?;
        Ok(running)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn printed_port(&mut self) -> Result<u16> {
        let output = self.child.stdout.take().context("its output was asked for")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        line.trim().rsplit(' ').next().and_then(|port| port.parse().ok()).context("no port printed")
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}", self.kind);
            }
            if began.elapsed() > Duration::from_secs(60) {
                bail!("{} does not answer", self.kind);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What it has in memory, and how much of that on huge pages.
    pub(crate) fn memory(&self) -> Result<String> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let mib = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
        };
        let (all, huge) = (mib("Rss:"), mib("AnonHugePages:"));
        let missing = || anyhow!("no figures in smaps_rollup");
        Ok(format!("{} MiB, {} on huge pages", all.ok_or_else(missing)?, huge.ok_or_else(missing)?))
    }

    /// What it says itself that the last save cost.
    pub(crate) fn cost(&self) -> Result<String> {
        let info = info(self.port)?;
        let named = [
            "latest_fork_usec",
            "last_snapshot_microseconds",
            "longest_snapshot_microseconds",
            "last_save_file_bytes",
        ];
        let lines = info.lines().filter(|line| named.iter().any(|name| line.starts_with(name)));
        Ok(lines.map(|line| format!(", {line}")).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The real one, saving only when it is told to, and without compressing, as ours.
fn real(kind: Kind, folder: &TempDir) -> Result<Command> {
    let mut command = redis::program("redis-server").map_err(|missing| anyhow!(missing))?;
    // A process that takes it in between makes the start fail.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--rdbcompression", "no", "--loglevel", "warning", "--dir"]).arg(folder.path());
    if kind == Kind::RealThp {
        // Its allocator asks for huge pages, and it does not forbid them itself.
        command.args(["--disable-thp", "no"]).env("MALLOC_CONF", "thp:always");
    }
    Ok(command)
}

fn asked_port(command: &Command) -> Result<u16> {
    let mut arguments = command.get_args().skip_while(|argument| *argument != "--port");
    let port = arguments.nth(1).and_then(|port| port.to_str()?.parse().ok());
    port.context("a port was asked for")
}

/// Sends one command of one word, and returns its reply up to the end of its first line, or of its bulk string.
pub(crate) fn ask(stream: &mut BufReader<TcpStream>, word: &str) -> Result<String> {
    stream.get_mut().write_all(format!("{word}\r\n").as_bytes())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some(len) = line.strip_prefix('$') else { return Ok(line) };
    let mut bulk = vec![0; len.trim().parse::<usize>()? + 2];
    stream.read_exact(&mut bulk)?;
    Ok(String::from_utf8_lossy(&bulk).into_owned())
}

pub(crate) fn info(port: u16) -> Result<String> {
    ask(&mut BufReader::new(TcpStream::connect(("127.0.0.1", port))?), "INFO")
}
