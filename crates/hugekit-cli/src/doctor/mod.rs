//! `hugekit doctor`: what this machine offers, line by line, and how to get what it does not.
//!
//! Facts are read first, each on its own; lines are pure functions of facts; a printer comes last. The doctor
//! changes nothing, and a file that it cannot read costs the line that needed it.

mod caches;
mod cpus;
mod facts;
mod kvm;
mod line;
mod lines;
mod machine;
mod memory;
mod pools;
mod print;
mod routines;
mod thp;
mod units;
mod userfaultfd;

use anyhow::{Context, bail};
use hugekit::machine::Root;

use facts::Facts;

/// Say what this machine offers, and the remedy for what it does not.
///
/// Verdicts: "ok"; "note", worth knowing; "limited", works in part; "missing"; "unknown", the value says why.
/// Remedies are commands for root. Nothing is changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Print JSON and nothing else.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let facts = Facts::read(&Root::default());
        if facts.nothing_is_known() {
            bail!("neither /proc nor /sys can be read; mount them to let the doctor look");
        }
        let lines = lines::all(&facts);
        let printed = if self.json {
            print::json(&machine::Machine::from(&facts), &lines)
        } else {
            print::terminal(&lines)
        };
        printed.context("cannot write to standard output")
    }
}
