//! `hugekit doctor`: what this machine offers, line by line, and how to get what it does not.

mod print;

use anyhow::Context;
use hugekit_machine::Root;

use crate::settings;

/// Say what this machine offers, and the remedy for what it does not.
///
/// Verdicts: "ok"; "note", worth knowing; "limited", works in part; "missing"; "unknown", the value says why.
/// Remedies are commands for root. Nothing is changed, but that what a `hugekit lab --setup` has left changed
/// because it was killed is put back.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Print JSON and nothing else.
    #[arg(long)]
    json: bool,
    /// Say of this process instead what its forks cost, and whether `hugekit tend` would make them faster.
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
}

impl Doctor {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if let Some(pid) = self.pid {
            let report = hugekit_doctor::examine_process(pid)?;
            let printed =
                if self.json { print::json(&report) } else { print::terminal(&report.lines) };
            return printed.context("cannot write to standard output");
        }
        settings::put_back();
        let report = hugekit_doctor::examine(&Root::default())
            .context("neither /proc nor /sys can be read; mount them to let the doctor look")?;
        let printed = if self.json { print::json(&report) } else { print::terminal(&report.lines) };
        printed.context("cannot write to standard output")
    }
}
