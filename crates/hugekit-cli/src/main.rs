//! The `hugekit` command.

mod doctor;

use clap::{Parser, Subcommand};

/// A huge-page memory engine: look at the machine, measure it.
#[derive(Debug, Parser)]
#[command(name = "hugekit", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Doctor),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Doctor(doctor) => doctor.run(),
    }
}
