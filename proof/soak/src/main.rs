//! `hugekit-soak`: everything at once, for the requested time. `cargo xtask soak` builds and starts it.

use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use hugekit_soak::operations::OPERATIONS;
use hugekit_soak::soak::{self, Orders};
use hugekit_soak::status::{Count, Status};
use hugekit_soak::supervisor::{self, Ended};

/// Every operation of hugekit at once, on all CPUs, every byte verified
#[derive(Debug, Parser)]
#[command(name = "hugekit-soak")]
struct Soak {
    /// The length of the soak in minutes
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The seed of the choice of operations and of their options; random by default
    #[arg(long)]
    seed: Option<u64>,
    /// The number of threads that run operations; by default twice the number of CPUs, but at least four
    #[arg(long)]
    actors: Option<usize>,
    /// Run only this operation
    #[arg(long, value_parser = OPERATIONS.iter().map(|operation| operation.name).collect::<Vec<_>>())]
    operation: Option<String>,
    /// Seconds without a step after which an actor counts as hung
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Is the process that works, which another one watches
    #[arg(long, hide = true)]
    worker: bool,
}

fn main() -> Result<ExitCode> {
    let soak = Soak::parse();
    if soak.worker {
        let went_well = soak::work(&soak.orders());
        return Ok(if went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    soak.supervise()
}

impl Soak {
    fn orders(&self) -> Orders {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Orders {
            time: Duration::from_secs_f64(60.0 * self.minutes),
            seed: self.seed.unwrap_or_default(),
            actors: self.actors.unwrap_or((2 * cpus).max(4)),
            only: self.operation.clone(),
        }
    }

    fn supervise(&self) -> Result<ExitCode> {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        println!("soaking for {} minutes, seed {seed}", self.minutes);
        let started = Instant::now();
        let mut said = 0;
        let mut last = None;
        let ended =
            supervisor::run(self.command(seed)?, Duration::from_secs(self.patience), |status| {
                last = Some(Count::ALL.map(|what| (what, status.read(what))));
                if started.elapsed().as_secs() / 60 > said {
                    said += 1;
                    println!("after {said} minutes: {}", progress(status));
                }
            })?;
        for (what, number) in last.into_iter().flatten() {
            println!("{number:>18} {}", what.name());
        }
        Ok(verdict(&ended, seed, started.elapsed()))
    }

    fn command(&self, seed: u64) -> Result<Command> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["--worker", "--minutes", &self.minutes.to_string()]);
        command.args(["--seed", &seed.to_string()]);
        command.args(["--actors", &self.orders().actors.to_string()]);
        command.args(self.operation.iter().flat_map(|name| ["--operation", name]));
        // Stacks of threads that have ended would be counted.
        command.env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0");
        Ok(command)
    }
}

fn progress(status: &Status) -> String {
    let beats: u64 = status.beats.iter().map(|beat| beat.load(Ordering::Relaxed)).sum();
    format!("{beats} steps, {} bytes verified", status.read(Count::BytesVerified))
}

fn verdict(ended: &Ended, seed: u64, time: Duration) -> ExitCode {
    let seconds = time.as_secs();
    match ended {
        Ended::Exited(status) if status.success() => {
            println!("0 differences, 0 hangs, 0 leaks in {seconds} seconds");
            ExitCode::SUCCESS
        }
        Ended::Exited(status) => {
            println!("FAILED after {seconds} seconds: {status}; seed {seed}");
            ExitCode::FAILURE
        }
        Ended::Hung(what) => {
            println!("HUNG after {seconds} seconds: {what}; seed {seed}");
            ExitCode::FAILURE
        }
    }
}
