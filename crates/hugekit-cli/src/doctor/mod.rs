//! `hugekit doctor`: what this machine supports, line by line, and a remedy for everything else.

mod print;

use anyhow::Context;
use hugekit_machine::Root;

use crate::settings;

/// Print what this machine supports, and a remedy for the rest.
///
/// Verdicts: "ok"; "note", worth knowing; "limited", works in part; "missing"; "unknown", with the
/// reason. Remedies are commands for root. Changes nothing, except that settings left behind by a
/// killed `hugekit lab --setup` are restored.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hugekit doctor --pid \"$(pidof -s redis-server)\"")]
pub(crate) struct Doctor {
    /// Print only JSON.
    #[arg(long)]
    json: bool,
    /// Examine this process instead: what its forks cost, and whether `hugekit tend` would make
    /// them faster.
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
            .context("cannot read /proc or /sys: mount them")?;
        let printed = if self.json { print::json(&report) } else { print::terminal(&report.lines) };
        printed.context("cannot write to standard output")
    }
}
