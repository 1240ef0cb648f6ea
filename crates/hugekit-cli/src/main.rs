//! The `hugekit` command: each subcommand is a folder with its arguments, its flow and its printing.

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
    /// Measure clearing huge memory here, beside the published figures
    Lab(lab::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Lab(args) => lab::run(&args),
    }
}
