//! A process that the tour has started.

use std::ffi::OsStr;
use std::io::Read;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, anyhow, bail};
use hugekit_machine::plain;

use super::stop::TourStop;
use crate::demo::helper::{Helper, HelperLine, Wrong};
use hugekit_terminal::outcome::Remedied;

/// Exit code of a process that panics.
const PANICKED: i32 = 101;

/// Killed when dropped.
pub(super) struct TourProcess {
    child: Child,
    /// Open as long as it is to live.
    orders: ChildStdin,
    lines: ChildStdout,
    /// Output that was read from them.
    read: Vec<u8>,
}

/// This program again, as a helper.
pub(super) fn helper(
    helper: Helper,
    bytes: usize,
    arguments: &[&OsStr],
) -> anyhow::Result<Command> {
    let mut command = hugekit()?;
    command.args(helper.arguments(bytes)).args(arguments);
    Ok(command)
}

pub(super) fn hugekit() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program")?))
}

/// Another program, which ends when the tour does, whatever ends that.
pub(super) fn ends_with_the_tour(command: &Command) -> anyhow::Result<Command> {
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    helper(Helper::Runs, 0, &words)
}

impl TourProcess {
    pub(super) fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the tour, which then ends its processes.
        let child = command.process_group(0).spawn();
        let mut child = child.context("no process can be started")?;
        let orders = child.stdin.take().expect("it is a pipe");
        let lines = child.stdout.take().expect("it is a pipe");
        Ok(Self { child, orders, lines, read: Vec::new() })
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends an order. If the process has ended, that is found when its answer is read.
    pub(super) fn order(&mut self, order: &str) {
        let _ = self.orders.write_all(format!("{order}\n").as_bytes());
    }

    /// Waits until it says that it is ready.
    pub(super) fn ready(&mut self, stop: &TourStop) -> anyhow::Result<()> {
        match self.heard(stop)? {
            HelperLine::Ready => Ok(()),
            other => bail!("its process said {other:?}"),
        }
    }

    /// Waits until it says that its bytes are right.
    pub(super) fn right(&mut self, stop: &TourStop) -> anyhow::Result<()> {
        match self.heard(stop)? {
            HelperLine::Right => Ok(()),
            other => bail!("its process said {other:?}"),
        }
    }

    /// Waits for its next line.
    pub(super) fn heard(&mut self, stop: &TourStop) -> anyhow::Result<HelperLine> {
        let line = loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                break self.read.drain(..=end).collect::<Vec<_>>();
            }
            if !self.read_more(stop)? {
                return Err(self.ended());
            }
        };
        match serde_json::from_slice(&line).context("its process said something unknown")? {
            HelperLine::Wrong(what) => Err(Wrong(what).into()),
            HelperLine::Cannot { reason, remedy: Some(remedy) } => {
                Err(Remedied { message: reason, remedy }.into())
            }
            HelperLine::Cannot { reason, remedy: None } => Err(anyhow!(reason)),
            other => Ok(other),
        }
    }

    /// Waits until it has ended, of a program that is no helper.
    pub(super) fn finish(mut self, stop: &TourStop) -> anyhow::Result<()> {
        while self.read_more(stop)? {}
        if self.child.wait()?.success() { Ok(()) } else { Err(self.ended()) }
    }

    /// False at the end of its output.
    fn read_more(&mut self, stop: &TourStop) -> anyhow::Result<bool> {
        stop.wait_for(&self.lines, None)?;
        let mut piece = [0; 4096];
        let len = self.lines.read(&mut piece)?;
        self.read.extend(&piece[..len]);
        Ok(len > 0)
    }

    /// Returns the reason why it has ended, if it has.
    pub(super) fn has_ended(&mut self) -> Option<anyhow::Error> {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)).then(|| self.ended())
    }

    /// Ends it. Returns the last line that it printed for people.
    pub(super) fn last_line(&mut self) -> String {
        let _ = self.child.kill();
        plain(self.printed().lines().last().unwrap_or("it printed nothing"))
    }

    /// Its standard error, to the end.
    fn printed(&mut self) -> String {
        let mut printed = Vec::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = errors.read_to_end(&mut printed);
        }
        String::from_utf8_lossy(&printed).into_owned()
    }

    /// Returns the reason for its end: its last output, or the signal.
    fn ended(&mut self) -> anyhow::Error {
        let status = match self.child.wait() {
            Ok(status) => status,
            Err(error) => return error.into(),
        };
        if status.signal() == Some(rustix::process::Signal::KILL.as_raw()) {
            return anyhow!("its process was killed; perhaps memory is short");
        }
        if status.signal().is_some() || status.code() == Some(PANICKED) {
            return Wrong(format!("its process has crashed: {status}")).into();
        }
        let printed = self.printed();
        let line = |start: &str| {
            printed.lines().find_map(|line| Some(plain(line.split_once(start)?.1.trim())))
        };
        match (line("error: "), line("remedy: ")) {
            (Some(message), Some(remedy)) => Remedied { message, remedy }.into(),
            (Some(message), None) => anyhow!(message),
            _ => anyhow!("its process ended with {status}"),
        }
    }
}

impl Drop for TourProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
