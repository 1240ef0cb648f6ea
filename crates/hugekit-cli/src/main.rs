//! The `hugekit` command: each subcommand is a folder with its arguments, its flow and its printing.

mod broker;
mod delta;
mod demo;
mod doctor;
mod file;
mod lab;
mod lease;
mod operand;
mod profile;
mod progress;
mod report;
mod settings;
mod shell;
mod socket;
mod tend;
mod text;
mod time_left;
mod tune;
mod usage;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use hugekit_lab::record::reason;

use usage::{Remedied, UsageError};

/// A huge-page memory engine: look at the machine, measure it, tune to it.
#[derive(Debug, Parser)]
#[command(name = "hugekit", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Doctor),
    Demo(demo::Demo),
    Lab(lab::Lab),
    Tune(tune::Tune),
    Report(report::Report),
    Tend(tend::Tend),
    Delta(delta::Delta),
    Broker(broker::BrokerCommand),
    Lease(lease::LeaseCommand),
    Completions(shell::Completions),
    Man(shell::Man),
}

fn main() -> ExitCode {
    listen_to_the_library();
    run(Cli::parse().command).unwrap_or_else(|error| {
        if let Some(UsageError(message)) = error.downcast_ref() {
            Cli::command().error(ErrorKind::ValueValidation, message).exit();
        }
        // Causes, and no backtrace: a user of the command has no use for one.
        text::say(&format!("error: {}", reason(&*error)));
        if let Some(Remedied { remedy, .. }) = error.downcast_ref() {
            text::say(&format!("remedy: {remedy}"));
        }
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Doctor(doctor) => doctor.run().map(|()| ExitCode::SUCCESS),
        Command::Demo(demo) => demo.run().map(|()| ExitCode::SUCCESS),
        Command::Lab(lab) => lab.run(),
        Command::Tune(tune) => tune.run(),
        Command::Report(report) => report.run().map(|()| ExitCode::SUCCESS),
        Command::Tend(tend) => tend.run(),
        Command::Delta(delta) => delta.run().map(|()| ExitCode::SUCCESS),
        Command::Broker(broker) => broker.run().map(ExitCode::from),
        Command::Lease(lease) => lease.run().map(|()| ExitCode::SUCCESS),
        Command::Completions(completions) => {
            completions.run(Cli::command()).map(|()| ExitCode::SUCCESS)
        }
        Command::Man(man) => man.run(Cli::command()).map(|()| ExitCode::SUCCESS),
    }
}

/// The library reports what it works around, such as a backing that it could not have, and never
/// prints.
fn listen_to_the_library() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
}
