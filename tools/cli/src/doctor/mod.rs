//! `hugekit doctor`: what this machine supports, line by line, and a remedy for everything else.

mod print;
mod vm;

use anyhow::Context;
use hugekit_machine::Root;
use hugekit_tend::TendError;

use crate::pid;
use hugekit_terminal::outcome::Remedied;

/// Print what this machine supports, and a remedy for the rest.
///
/// Verdicts: "ok"; "note", worth knowing; "limited", works in part; "missing"; "unknown", with the
/// reason. Remedies are commands for root. Changes nothing.
///
/// Exit status: 0 after a report, whatever the verdicts are; 1 if the machine or the process cannot
/// be examined; 2 if the arguments are wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hugekit doctor --pid \"$(pgrep -o -x redis-server)\"")]
pub(crate) struct DoctorCommand {
    /// Print only JSON.
    #[arg(long)]
    json: bool,
    /// Examine this process instead: what its forks cost, and whether `hugekit tend` would make
    /// them faster; of a VMM also whether its VM can be saved, forked and put on huge pages.
    #[arg(long, value_name = "PID", allow_negative_numbers = true, value_parser = process)]
    pid: Option<i32>,
}

fn process(text: &str) -> Result<i32, String> {
    pid::parse(text, "`pgrep -o -x NAME` prints it")
}

impl DoctorCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if let Some(pid) = self.pid {
            let mut report = hugekit_doctor::examine_process(pid).map_err(unexamined)?;
            report.lines.extend(vm::lines(pid));
            let printed =
                if self.json { print::json(&report) } else { print::terminal(&report.lines) };
            return printed.context("cannot write to standard output");
        }
        let report = hugekit_doctor::examine(&Root::default())
            .context("cannot read /proc or /sys: mount them")?;
        let printed = if self.json { print::json(&report) } else { print::terminal(&report.lines) };
        printed.context("cannot write to standard output")
    }
}

/// In the words of the doctor, which tends nothing.
fn unexamined(error: TendError) -> anyhow::Error {
    let remedy = error.remedy().map(str::to_owned);
    let message = match error {
        TendError::Gone { pid } => format!("there is no process {pid}"),
        TendError::Thread { pid, of } => format!("{pid} is a thread: examine its process, {of}"),
        TendError::NotPermitted { pid, call, source } => {
            format!("process {pid} may not be examined: {call} is refused: {source}")
        }
        other => return Remedied::error(other, remedy),
    };
    match remedy {
        Some(remedy) => Remedied { message, remedy }.into(),
        None => anyhow::Error::msg(message),
    }
}
