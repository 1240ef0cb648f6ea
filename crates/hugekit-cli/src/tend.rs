//! `hugekit tend`: the memory of running processes kept on huge pages.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ArgGroup;
use hugekit_lab::size::Size;
use hugekit_tend::{ForkCost, ForkTime, PassReport, Status, TendError, Tender};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::text;

/// How often processes of a name or a control group are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

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
        let mut tender = self.tender()?;
        let mut untended = HashSet::new();
        let mut child = self.start(&mut tender, &mut untended)?;
        self.look(&mut tender, &mut untended);
        if self.once {
            let reports = tender.pass(&stop)?;
            reports.iter().try_for_each(|report| self.tell(report, &pass_line(report)))?;
            return Ok(ExitCode::SUCCESS);
        }
        self.tend(&mut tender, &mut untended, &stop)?;
        // A script may have started the program proper in its own place.
        while child.as_mut().is_some_and(is_running) && !stop.load(Ordering::Relaxed) {
            look_at(&mut tender, &mut untended, child.iter().map(|child| child.id() as i32));
            if tender.is_empty() {
                break;
            }
            self.tend(&mut tender, &mut untended, &stop)?;
        }
        child.as_mut().map_or(Ok(ExitCode::SUCCESS), exit_code_of)
    }

    fn tend(
        &self,
        tender: &mut Tender,
        untended: &mut HashSet<i32>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let follows = !self.name.is_empty() || !self.cgroup.is_empty();
        let mut told = Ok(());
        let mut looked = Instant::now();
        while !stop.load(Ordering::Relaxed) && told.is_ok() && (follows || !tender.is_empty()) {
            tender.tick(stop, &mut |status| {
                if told.is_ok() {
                    told = self.tell(status, &status_line(status));
                }
            });
            if follows && looked.elapsed() >= LOOK_AGAIN {
                looked = Instant::now();
                self.look(tender, untended);
            }
        }
        told
    }

    /// What a reader of standard output has had enough of is no error.
    fn tell(&self, data: &impl Serialize, line: &str) -> anyhow::Result<()> {
        let line = if self.json { serde_json::to_string(data)? } else { line.to_owned() };
        text::write_out(&format!("{line}\n")).context("cannot write to standard output")
    }

    /// Starts the program. One that cannot be tended runs all the same.
    fn start(
        &self,
        tender: &mut Tender,
        untended: &mut HashSet<i32>,
    ) -> anyhow::Result<Option<Child>> {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(None) };
        let started = Command::new(program).args(arguments).spawn();
        let named = || format!("cannot start {}", program.to_string_lossy());
        let child = started.with_context(named)?;
        look_at(tender, untended, [child.id() as i32]);
        Ok(Some(child))
    }

    fn tender(&self) -> anyhow::Result<Tender> {
        let mut builder = Tender::builder()
            .density(f64::from(self.density) / 100.0)
            .cpu_share(f64::from(self.cpu) / 100.0)
            .bytes_per_second(self.rate.0 as u64)
            .keep_free(self.keep_free.0 as u64);
        // Without it, forks are seen and not timed.
        if let Ok(cost) = ForkCost::measure() {
            builder = builder.fork_cost(cost);
        }
        Ok(self.pids.iter().fold(builder, |builder, &pid| builder.process(pid)).build()?)
    }

    /// Adds what is found by name and control group.
    fn look(&self, tender: &mut Tender, untended: &mut HashSet<i32>) {
        let own = std::process::id() as i32;
        look_at(tender, untended, self.found().into_iter().filter(|&pid| pid != own));
    }

    fn found(&self) -> Vec<i32> {
        let of_groups = self.cgroup.iter().flat_map(|group| {
            let processes = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            processes.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
        });
        of_groups.chain(hugekit_tend::named(&self.name)).collect()
    }
}

/// Adds processes. What cannot be tended is said once.
fn look_at(tender: &mut Tender, untended: &mut HashSet<i32>, pids: impl IntoIterator<Item = i32>) {
    for pid in pids {
        match tender.add(pid) {
            Ok(()) | Err(TendError::Gone { .. } | TendError::Thread { .. }) => {}
            Err(error) => {
                if untended.insert(pid) {
                    text::say(&format!("note: {error}"));
                }
            }
        }
    }
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

/// As shells have it: the status, or 128 and the signal.
fn exit_code_of(child: &mut Child) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().context("cannot wait for the program")?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn status_line(status: &Status) -> String {
    let children = match status.children {
        0 => String::new(),
        count => format!(", {count} of them alive: waiting"),
    };
    let last = status.last.as_ref().map_or(String::new(), |last| format!("; {}", work(last)));
    let took = status.last_fork.map_or(String::new(), |took| match took {
        ForkTime::Told(took) => format!(", the last in {:.1} ms by its own word", millis(took)),
        ForkTime::Estimated(took) => format!(", the last in about {:.1} ms", millis(took)),
        _ => String::new(),
    });
    format!("{} ({}): {} forks{took}{children}{last}", status.name, status.pid, status.forks)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn pass_line(report: &PassReport) -> String {
    format!("{}: {}", report.pid, work(report))
}

fn work(report: &PassReport) -> String {
    let PassReport { after, collapsed, cpu, longest, .. } = report;
    let mut line = format!(
        "{} of {} on huge pages; {collapsed} ranges collapsed in {:.1} s, {:.2} s of a CPU, {:.1} ms at most for one",
        Size(after.huge as usize),
        Size(after.all as usize),
        report.elapsed.as_secs_f64(),
        cpu.as_secs_f64(),
        millis(*longest),
    );
    for (reason, count) in &report.refused {
        line.push_str(&format!("; {count} refused: {reason}"));
    }
    if let Some(hindrance) = &report.hindrance {
        line.push_str(&format!("; ended early: {hindrance}"));
    }
    line
}
