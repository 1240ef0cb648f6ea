//! Processes that the tour starts: this program again, which does one part of the work and ends with the tour.
//!
//! A process of its own is measured like the user's program, and memory that turns out to be short ends it and not the
//! tour. It prints its results as lines of JSON, and reads orders from standard input, whose end is the tour's.

mod forks;
mod memory;
mod restores;
mod saves;
mod starts;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, exit};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use hugekit_terminal::events;
use hugekit_terminal::outcome::Remedied;

/// The words that begin the arguments of a helper. Behind them are its task, its bytes and its own arguments.
pub(crate) const HELPER: [&str; 2] = ["demo", "helper"];

/// Runs a helper with the arguments behind these words, if they are those of one.
pub(crate) fn run_helper(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let helper = Helper::from_str(arguments.next()?.to_str()?, false).ok()?;
    let bytes = arguments.next()?.to_str()?.parse().ok()?;
    events::print();
    Some(helper.run(bytes, &arguments.collect::<Vec<_>>()))
}

/// The task of a helper process.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Helper {
    /// Has memory on base pages, and forks on request.
    Forks,
    /// Saves memory while it is written, by `fork(2)` and by snapshots.
    Saves,
    /// Needs zeroed memory to start: its own, or a file of it.
    Starts,
    /// Writes a file to restore from.
    Writes,
    /// Needs the bytes of such a file to start.
    Restores,
    /// Becomes another program.
    Runs,
}

/// A line of it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum HelperLine {
    /// It has come to where its time counts.
    Ready,
    /// The time of one way.
    Took { way: usize, time: Duration },
    /// All bytes are right.
    Right,
    /// This machine cannot do it.
    Cannot { reason: String, remedy: Option<String> },
    /// A byte is wrong.
    Wrong(String),
}

/// A byte is wrong, or a process crashed: a mistake in hugekit, or in this machine's memory.
#[derive(Debug)]
pub(super) struct Wrong(pub(super) String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl Helper {
    /// Its name among the arguments.
    fn name(self) -> String {
        self.to_possible_value().expect("no helper is skipped").get_name().to_owned()
    }

    /// Returns the arguments that start it.
    pub(super) fn arguments(self, bytes: usize) -> [String; 4] {
        let [demo, helper] = HELPER.map(str::to_owned);
        [demo, helper, self.name(), bytes.to_string()]
    }

    fn run(self, bytes: usize, arguments: &[OsString]) -> ExitCode {
        end_with_the_tour();
        // If memory is short, the kernel ends this process before any program of the user's.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        let done = match self {
            Self::Forks => forks::run(bytes),
            Self::Saves => saves::run(bytes),
            Self::Starts => starts::run(bytes, arguments),
            Self::Writes => restores::write(bytes, arguments),
            Self::Restores => restores::run(bytes, arguments),
            Self::Runs => become_program(arguments),
        };
        match done.map_err(HelperLine::from).and_then(|()| Ok(say(&HelperLine::Right)?)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(said) => {
                // Without a reader there is no tour.
                let _ = say(&said);
                ExitCode::FAILURE
            }
        }
    }
}

impl From<anyhow::Error> for HelperLine {
    fn from(error: anyhow::Error) -> Self {
        if let Some(Wrong(what)) = error.downcast_ref() {
            return Self::Wrong(what.clone());
        }
        let remedy = error.downcast_ref().map(|Remedied { remedy, .. }| remedy.clone());
        Self::Cannot { reason: format!("{error:#}"), remedy }
    }
}

impl From<io::Error> for HelperLine {
    fn from(error: io::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}

fn say(said: &HelperLine) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(said)?)?;
    out.flush()
}

/// Not even SIGKILL of the tour leaves this process behind. The tour may have ended before the kernel was asked: then
/// its end of standard input is closed.
fn end_with_the_tour() {
    // A filter of system calls may refuse; the tour still ends its processes when it ends by itself.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP) {
        exit(1);
    }
}

/// The death signal stays.
fn become_program(command: &[OsString]) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("no program is named")?;
    let error = Command::new(program).args(arguments).exec();
    bail!("cannot start {}: {error}", program.display())
}
