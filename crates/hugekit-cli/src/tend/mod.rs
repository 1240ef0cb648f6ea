//! `hugekit tend`: the memory of running processes kept on huge pages.

mod session;
mod wanted;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::ArgGroup;
use hugekit_lab::size::Size;
use hugekit_tend::{Builder, ForkCost, Tender};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::session::Session;
use self::wanted::Wanted;
use crate::text;

/// Keep the memory of running processes on huge pages, so that they fork fast.
///
/// For programs that fork with much memory, such as Redis when it saves: the kernel copies page tables of huge
/// pages a hundred times as fast. The processes are not changed, nor is any byte of their memory; transparent huge
/// pages need not be enabled. Their private anonymous memory is collapsed 2 MiB at a time, gently, and again when a
/// forked child has ended. Needs Linux 6.1, and root or the capabilities `sys_ptrace` and `sys_nice`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true))]
pub(crate) struct Tend {
    /// Processes to tend.
    #[arg(value_name = "PID", group = "which")]
    pids: Vec<i32>,
    /// Tend processes of this name, also those that start later.
    #[arg(long, value_name = "NAME", group = "which")]
    name: Vec<String>,
    /// Tend the processes of this control group (a folder below /sys/fs/cgroup), also those that start later.
    #[arg(long, value_name = "DIR", group = "which")]
    cgroup: Vec<PathBuf>,
    /// Start this program, tend it, and end with its status.
    #[arg(last = true, value_name = "COMMAND", group = "which")]
    command: Vec<OsString>,
    /// Make one pass and end.
    #[arg(long, conflicts_with = "command")]
    once: bool,
    /// Of 2 MiB, the least share that must be there, in percent: holes are filled.
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100))]
    density: u8,
    /// The share of one CPU that may be taken, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    cpu: u8,
    /// Memory that may be collapsed in a second, at most.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    rate: Size,
    /// Free huge pages that are left to everything else.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    keep_free: Size,
    /// Print a line of JSON for everything that is said.
    #[arg(long)]
    json: bool,
}

impl Tend {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        if self.once {
            return self.once(&stop);
        }
        let mut child = self.start()?;
        let wanted = Wanted {
            pids: self.pids.clone(),
            names: self.name.clone(),
            groups: self.cgroup.clone(),
            started: child.as_ref().map(|child| child.id() as i32),
        };
        let mut session = Session::new(self.builder().build()?, wanted)?;
        session.run(&stop, &mut |status| self.tell(status, &words::of_status(status)))?;
        child.as_mut().map_or(Ok(ExitCode::SUCCESS), exit_code_of)
    }

    fn once(&self, stop: &AtomicBool) -> anyhow::Result<ExitCode> {
        let all = self.pids.iter().fold(self.builder(), |builder, &pid| builder.process(pid));
        let mut tender = all.build()?;
        let found = wanted::found(&self.name, &self.cgroup);
        for error in found.into_iter().filter_map(|pid| tender.add(pid).err()) {
            text::say(&format!("note: {error}"));
        }
        for report in tender.pass(stop)? {
            self.tell(&report, &words::of_pass(&report))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What a reader of standard output has had enough of is no error.
    fn tell(&self, data: &impl Serialize, line: &str) -> anyhow::Result<()> {
        let line = if self.json { serde_json::to_string(data)? } else { line.to_owned() };
        text::write_out(&format!("{line}\n")).context("cannot write to standard output")
    }

    fn start(&self) -> anyhow::Result<Option<Child>> {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(None) };
        let started = Command::new(program).args(arguments).spawn();
        let named = || format!("cannot start {}", program.to_string_lossy());
        started.with_context(named).map(Some)
    }

    fn builder(&self) -> Builder {
        let builder = Tender::builder()
            .density(f64::from(self.density) / 100.0)
            .cpu_share(f64::from(self.cpu) / 100.0)
            .bytes_per_second(self.rate.0 as u64)
            .keep_free(self.keep_free.0 as u64);
        // Without it, forks are seen and not timed.
        match ForkCost::measure() {
            Ok(cost) => builder.fork_cost(cost),
            Err(_) => builder,
        }
    }
}

/// As shells have it: the status, or 128 and the signal.
fn exit_code_of(child: &mut Child) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().context("cannot wait for the program")?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
