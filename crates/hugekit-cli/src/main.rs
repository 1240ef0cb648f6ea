//! The `hugekit` command: each subcommand is a folder with its arguments, its flow and its printing.

mod doctor;
mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A huge-page memory engine: look at the machine, measure it.
#[derive(Debug, Parser)]
#[command(name = "hugekit", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Doctor),
    Lab(lab::Lab),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Doctor(doctor) => doctor.run().map(|()| ExitCode::SUCCESS),
        Command::Lab(lab) => lab.run(),
    }
}
