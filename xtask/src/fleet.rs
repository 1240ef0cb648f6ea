//! `cargo xtask fleet`: other kernels, nodes, CPUs and limits than this machine's, as small guests that run the
//! library's tests.

mod become_command;
mod bench;
mod doctor;
mod filter;
mod frames;
mod image;
mod init;
mod kernels;
mod machine;
mod merged;
mod programs;
pub(crate) mod qemu;
mod record;
mod results;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::testing::Count;
use bench::{Bench, lacking};
pub(crate) use filter::WithoutUserfaultfd;
use machine::{Machine, Run};
pub(crate) use merged::Merged;
use qemu::Accelerator;
use results::Outcome;
use table::{MACHINES, TELLING};

/// Boots small guests, one after the other, and runs the library's tests in them. What is missing for
/// that is fetched into `target/fleet`, where each guest's logs are, too
#[derive(Debug, Args)]
pub(crate) struct Fleet {
    /// These guests alone
    #[arg(long, num_args = 1.., value_parser = PossibleValuesParser::new(MACHINES.iter().map(|machine| machine.name)))]
    only: Vec<String>,
    /// Print the guests; boot none
    #[arg(long)]
    list: bool,
    /// What executes the guests' instructions: KVM where a guest boots on it, unless said
    #[arg(long)]
    accel: Option<Accelerator>,
    /// Write docs/fleet.md's table from the last run of each guest; boot none
    #[arg(long)]
    record: bool,
    /// The guests of `cargo xtask test` alone
    #[arg(long)]
    ci: bool,
    /// Run this instead of what the table says, such as `doctor` or `"fork one_moment"`; may be repeated
    #[arg(long, value_parser = Run::read)]
    run: Vec<Run>,
}

impl Fleet {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if self.list {
            MACHINES.iter().for_each(|machine| println!("{}: {}", machine.name, machine.about));
            return Ok(ExitCode::SUCCESS);
        }
        if self.record {
            return record::write().map(|()| ExitCode::SUCCESS);
        }
        let mut machines = match self.only.as_slice() {
            _ if self.ci => telling(),
            [] => MACHINES.to_vec(),
            names => named(names),
        };
        if !self.run.is_empty() {
            let runs: &[Run] = self.run.clone().leak();
            for machine in &mut machines {
                (machine.runs, machine.left_out, machine.counters) = (runs, &[], &[]);
            }
        }
        let mut count = Count::default();
        let passed = run(&machines, self.accel, &mut count)?;
        count.print();
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The guests that every change's tests boot.
fn telling() -> Vec<Machine> {
    named(&TELLING)
}

/// The guests of these names, in the table's order.
fn named(names: &[impl AsRef<str>]) -> Vec<Machine> {
    let is_named = |machine: &&Machine| names.iter().any(|name| name.as_ref() == machine.name);
    MACHINES.iter().filter(is_named).copied().collect()
}

/// The most telling guests, within a few minutes, counted with other tests. Fetches what is missing if `install`.
pub(crate) fn short(install: bool, count: &mut Count) -> Result<bool> {
    let machines = telling();
    if let Some(missing) = machines.iter().find_map(lacking).filter(|_| !install) {
        for machine in machines {
            count.skip(format!("guest {}: {missing}", machine.name));
        }
        return Ok(true);
    }
    run(&machines, None, count)
}

/// Boots each, and returns whether nothing failed.
fn run(machines: &[Machine], accelerator: Option<Accelerator>, count: &mut Count) -> Result<bool> {
    let bench = Bench::new(accelerator);
    let mut failed = 0;
    for machine in machines {
        let is_as_the_table_says = MACHINES
            .iter()
            .any(|row| row.name == machine.name && std::ptr::eq(row.runs, machine.runs));
        let since = Instant::now();
        println!("\n{}: {}", machine.name, machine.about);
        let outcome = match bench.prepare(machine) {
            Ok(files) => Outcome::of(machine, &bench.boot(machine, &files)?),
            Err(error) => Outcome::skipped(&format!("guest {}: {error:#}", machine.name)),
        };
        outcome.commands.iter().for_each(|line| println!("  {line}"));
        outcome.failures.iter().for_each(|line| println!("  FAILED {line}"));
        println!("  Linux {}, {} s", outcome.release, since.elapsed().as_secs());
        if is_as_the_table_says {
            record::keep(machine, &outcome)?;
        }
        failed += outcome.count.failed;
        count.add(&outcome.count);
    }
    Ok(failed == 0)
}
