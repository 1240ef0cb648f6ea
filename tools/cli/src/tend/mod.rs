//! `hugekit tend`: the memory of running processes kept on huge pages.

mod event;
mod news;
mod once;
mod output;
mod program;
mod session;
mod signals;
mod stamp;
mod teller;
mod telling;
mod wanted;
mod watch;
mod words;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::ArgGroup;
use hugekit_tend::{Builder, ForkCost, TendOptions, Tender};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::signal_name;

use self::event::TendEvent;
use self::news::News;
use self::output::Form;
use self::session::Session;
use self::signals::Signals;
pub(crate) use self::stamp::say;
use self::telling::Telling;
use self::wanted::Wanted;
use crate::{pid, text};

/// Keep running processes on huge pages, so that they fork fast.
///
/// For programs that fork with much memory, such as Redis when it saves: huge pages have 512 times
/// fewer page-table entries for the kernel to copy. Private anonymous memory is collapsed 2 MiB at
/// a time, within the limits below, and again when a forked child has ended. The bytes of a process
/// do not change, but holes are filled with zeroes. Transparent huge pages need not be enabled.
/// Needs Linux 6.1, and root or the capabilities `sys_ptrace`, `sys_nice` and, for servers of other
/// users, `dac_read_search`.
///
/// Prints a line when the tending of a process begins, when a pass changes something, when a child
/// comes or goes, and when the process ends. In a file or a pipe, each line begins with the time in
/// UTC, unless systemd's journal reads it. A line that cannot be written, for example because the
/// disk is full, is lost, and the tending goes on.
///
/// SIGTERM, SIGINT and SIGHUP end the tending; it has no configuration to read again. Under
/// `nohup`, SIGHUP does nothing.
///
/// A COMMAND runs as under a small init, so `hugekit tend -- COMMAND` can be a container's entry
/// point: signals are passed on to it, orphans are reaped, and the exit status is the command's, or
/// 128 plus the number of the signal that ended it.
#[derive(Clone, Debug, clap::Args)]
#[command(
    group = ArgGroup::new("which").required(true).multiple(true),
    after_help = "Example: hugekit tend --name redis-server"
)]
pub(crate) struct TendCommand {
    /// Processes to tend. Forked children of a server, such as the child of a save, are refused.
    #[arg(value_name = "PID", group = "which", value_parser = process)]
    pids: Vec<i32>,
    /// Tend processes of this name, also those that start later.
    #[arg(long, value_name = "NAME", group = "which", value_parser = name)]
    name: Vec<OsString>,
    /// Tend the processes of this control group (a folder below /sys/fs/cgroup), also those that
    /// start later. Without `--once`, the group may be made later, too.
    #[arg(long, value_name = "DIR", group = "which")]
    cgroup: Vec<PathBuf>,
    /// Start this program, tend it, and exit with its status.
    #[arg(last = true, value_name = "COMMAND", group = "which")]
    command: Vec<OsString>,
    /// Make one pass and exit. The exit status is 1 if there is no process to tend, a PID cannot be
    /// tended, or the pass ended early, for example because a save began: run it again later.
    #[arg(long, conflicts_with = "command")]
    once: bool,
    #[command(flatten)]
    options: TendOptions,
    /// Print each line as JSON.
    #[arg(long)]
    json: bool,
}

fn process(text: &str) -> Result<i32, String> {
    pid::parse(text, &format!("write --name {text}, or -- {text} to start it"))
}

fn name(text: &str) -> Result<OsString, &'static str> {
    if text.is_empty() { Err("a process's name is wanted") } else { Ok(text.into()) }
}

impl TendCommand {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        self.wanted(None).check(self.once)?;
        let tend = self.clone();
        if !self.command.is_empty() {
            // Before the program is started: it waits for children by itself.
            let cost = ForkCost::measure().ok();
            let builder = self.builder(cost);
            return program::run(&self.command, move |pid, stop| {
                tend.tend(builder, cost, Some(pid), stop).inspect_err(|error| {
                    say(&format!("note: tending has stopped: {error:#}"));
                })
            });
        }
        // Before forks are measured, which takes a second on busy CPUs.
        let signals = Signals::block(&[SIGTERM, SIGINT, SIGHUP])?;
        let cost = ForkCost::measure().ok();
        let builder = self.builder(cost);
        let work = move |stop: &AtomicBool| {
            if tend.once {
                tend.once(builder, cost, stop)
            } else {
                tend.tend(builder, cost, None, stop)
            }
        };
        let mut code = ExitCode::SUCCESS;
        if let Some(number) = watch::until_signal(signals, work)? {
            if self.once {
                // The pass did not end within the grace, or its end is not known.
                code = ExitCode::FAILURE;
            }
            let (json, name) = (self.json, signal_name(number).unwrap_or("a signal"));
            watch::briefly(move || match (json, format!("stopped by {name}")) {
                // Standard output has only reports then.
                (true, line) => say(&line),
                (false, line) => tell(&News::new(&line, Vec::new())),
            });
        }
        Ok(code)
    }

    /// Until all processes are gone.
    fn tend(
        &self,
        builder: Builder,
        cost: Option<ForkCost>,
        started: Option<i32>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let mut session = Session::new(builder.build()?, self.wanted(started))?;
        let mut telling = Telling::new(cost);
        session.run(stop, &mut |event| {
            match (self.json, event) {
                (true, TendEvent::Observed(status)) => {
                    output::line(&serde_json::to_string(status)?, Form::Json);
                }
                (true, _) => {}
                (false, event) => telling.of(event).iter().for_each(tell),
            }
            Ok(())
        })
    }

    fn once(
        &self,
        builder: Builder,
        cost: Option<ForkCost>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        once::pass(builder.build()?, &self.wanted(None), stop, &mut |report| {
            let line = if self.json {
                serde_json::to_string(report)?
            } else {
                text_of(&words::of_pass(report, cost))
            };
            // The reports are all that there is of it: it is an error if they cannot be written.
            text::write_out(&format!("{line}\n")).context("cannot write to standard output")
        })
    }

    fn wanted(&self, started: Option<i32>) -> Wanted {
        Wanted {
            pids: self.pids.clone(),
            names: self.name.clone(),
            groups: self.cgroup.clone(),
            started,
        }
    }

    fn builder(&self, cost: Option<ForkCost>) -> Builder {
        let builder = Tender::builder().options(self.options);
        // Without it, forks are seen and not timed.
        match cost {
            Some(cost) => builder.fork_cost(cost),
            None => builder,
        }
    }
}

fn tell(news: &News) {
    output::line(&text_of(news), Form::Text);
}

/// A terminal has columns. Elsewhere, an event is a line.
fn text_of(news: &News) -> String {
    let out = io::stdout();
    if out.is_terminal() {
        news.in_columns()
    } else {
        format!("{}{}", stamp::of(&out), news.in_a_line())
    }
}
