//! `hugekit tend`: the memory of running processes kept on huge pages.

mod event;
mod news;
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

use anyhow::{Context, bail};
use clap::ArgGroup;
use hugekit::{HUGE_PAGE_BYTES, error_chain};
use hugekit_record::size::Size;
use hugekit_tend::{Builder, ForkCost, Tender};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::event::Event;
use self::news::News;
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
/// UTC, unless systemd's journal reads it.
///
/// A COMMAND runs as under a small init, so `hugekit tend -- COMMAND` can be a container's entry
/// point: signals are passed on to it, orphans are reaped, and the exit status is the command's, or
/// 128 plus the number of the signal that ended it.
#[derive(Clone, Debug, clap::Args)]
#[command(
    group = ArgGroup::new("which").required(true).multiple(true),
    after_help = "Example: hugekit tend --name redis-server"
)]
pub(crate) struct Tend {
    /// Processes to tend. Forked children of a server, such as the child of a save, are refused.
    #[arg(value_name = "PID", group = "which", value_parser = process)]
    pids: Vec<i32>,
    /// Tend processes of this name, also those that start later.
    #[arg(long, value_name = "NAME", group = "which", value_parser = name)]
    name: Vec<OsString>,
    /// Tend the processes of this control group (a folder below /sys/fs/cgroup), also those that
    /// start later. The group may be made later, too.
    #[arg(long, value_name = "DIR", group = "which")]
    cgroup: Vec<PathBuf>,
    /// Start this program, tend it, and exit with its status.
    #[arg(last = true, value_name = "COMMAND", group = "which")]
    command: Vec<OsString>,
    /// Make one pass and exit. It is an error if there is no process to tend.
    #[arg(long, conflicts_with = "command")]
    once: bool,
    /// Collapse a 2 MiB range only if at least this percentage of it is populated. Holes are filled
    /// with zeroes.
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100))]
    density: u8,
    /// The most CPU time to use, in percent of one CPU. While a process waits longer for CPUs
    /// because of the tender, it is 5 at most.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    cpu: u8,
    /// The most memory to collapse per second, at least 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = rate)]
    rate: Size,
    /// Free huge pages to leave for other programs.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    keep_free: Size,
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

fn rate(text: &str) -> Result<Size, String> {
    match text.parse::<Size>() {
        Ok(Size(bytes)) if bytes < HUGE_PAGE_BYTES => {
            Err("a huge page has 2 MiB: write at least 2MiB".to_owned())
        }
        size => size.map_err(|error| error.to_string()),
    }
}

impl Tend {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        self.wanted(None).check()?;
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
        watch::until_signal(signals, work).map(|()| ExitCode::SUCCESS)
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
        session.run(stop, &mut |event| match (self.json, event) {
            (true, Event::Observed(status)) => print_json(status),
            (true, _) => Ok(()),
            (false, event) => telling.of(event).map_or(Ok(()), |news| print_text(&news)),
        })
    }

    fn once(
        &self,
        builder: Builder,
        cost: Option<ForkCost>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let (mut tender, wanted) = (builder.build()?, self.wanted(None));
        for &pid in &wanted.pids {
            tender.add(pid)?;
            wanted.check_parent(pid)?;
        }
        let found = wanted::find_processes(&wanted.names, &wanted.groups);
        if found.is_empty() && wanted.pids.is_empty() {
            bail!("no process to tend: {}", wanted.unmatched());
        }
        for error in found.into_iter().filter_map(|pid| tender.add(pid).err()) {
            say(&format!("note: {:#}", error_chain(&error)));
        }
        if tender.is_empty() {
            bail!("none of the processes can be tended");
        }
        for report in tender.pass(stop)? {
            if self.json {
                print_json(&report)?;
            } else {
                print_text(&words::of_pass(&report, cost))?;
            }
        }
        Ok(())
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
        let builder = Tender::builder()
            .density(f64::from(self.density) / 100.0)
            .cpu_share(f64::from(self.cpu) / 100.0)
            .bytes_per_second(self.rate.0 as u64)
            .keep_free(self.keep_free.0 as u64);
        // Without it, forks are seen and not timed.
        match cost {
            Some(cost) => builder.fork_cost(cost),
            None => builder,
        }
    }
}

fn print_json(data: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string(data)?)
}

/// A terminal has columns. Elsewhere, an event is a line.
fn print_text(news: &News) -> anyhow::Result<()> {
    let out = io::stdout();
    if out.is_terminal() {
        print(&news.in_columns())
    } else {
        print(&format!("{}{}", stamp::of(&out), news.in_a_line()))
    }
}

/// A reader that closes standard output is no error.
fn print(text: &str) -> anyhow::Result<()> {
    text::write_out(&format!("{text}\n")).context("cannot write to standard output")
}
