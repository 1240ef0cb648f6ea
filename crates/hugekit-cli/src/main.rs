//! The `hugekit` command: each subcommand is a folder with its arguments, its flow and its printing.

mod broker;
mod checkpoint;
mod delta;
mod demo;
mod doctor;
mod file;
mod fork;
mod image;
mod lab;
mod lease;
mod log;
mod operand;
mod pager;
#[cfg(test)]
mod pages;
mod pid;
mod progress;
mod qemu;
mod report;
mod restore;
mod running_vm;
mod settings;
mod shell;
mod signals;
mod socket;
mod status;
mod tend;
mod text;
mod time_left;
mod usage;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use usage::{Remedied, UsageError};

/// Manage huge-page memory: examine a machine, and run programs on huge pages.
#[derive(Debug, Parser)]
#[command(
    name = "hugekit",
    version,
    arg_required_else_help = true,
    // A terminal of 24 lines shows all of it.
    help_template = "{about}\n{usage-heading} {usage}\n\n{subcommands}{after-help}",
    after_help = "Begin with `hugekit demo`, which measures gains here, and `hugekit doctor`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Doctor),
    Demo(demo::Demo),
    Lab(lab::Lab),
    Report(report::Report),
    Tend(tend::Tend),
    Delta(delta::Delta),
    Broker(broker::BrokerCommand),
    Lease(lease::LeaseCommand),
    Qemu(qemu::QemuCommand),
    Pager(pager::PagerCommand),
    Checkpoint(checkpoint::CheckpointCommand),
    Fork(fork::ForkCommand),
    Status(status::StatusCommand),
    Image(image::ImageCommand),
    Restore(restore::RestoreCommand),
    Completions(shell::Completions),
    Man(shell::Man),
    // The list of commands fits a terminal without it; `docs/` names it where it is of use.
    #[command(hide = true)]
    Systemd(shell::Systemd),
}

fn main() -> ExitCode {
    // This program again, started by `hugekit demo restore`.
    hugekit_guests::small_vmm::run_if_asked();
    let command = Cli::parse().command;
    let say = command.say();
    listen_to_the_library(command.is_daemon());
    let code = run(command).unwrap_or_else(|error| {
        if let Some(UsageError(message)) = error.downcast_ref() {
            usage::exit(Cli::command(), message);
        }
        // Causes, but no backtrace: it does not help a user of the command.
        say(&format!("error: {error:#}"));
        if let Some(Remedied { remedy, .. }) = error.downcast_ref() {
            say(&format!("remedy: {remedy}"));
        }
        ExitCode::FAILURE
    });
    log::finish();
    code
}

impl Command {
    /// How it writes lines for people.
    fn say(&self) -> fn(&str) {
        match self {
            Self::Tend(_) => tend::say,
            daemon if daemon.is_daemon() => log::line,
            _ => text::say,
        }
    }

    /// Returns whether it serves other programs, and so never waits for the reader of its log.
    fn is_daemon(&self) -> bool {
        match self {
            Self::Broker(broker) => broker.is_daemon(),
            Self::Pager(_) => true,
            _ => false,
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Doctor(doctor) => doctor.run().map(|()| ExitCode::SUCCESS),
        Command::Demo(demo) => demo.run(),
        Command::Lab(lab) => lab.run(),
        Command::Report(report) => report.run().map(|()| ExitCode::SUCCESS),
        Command::Tend(tend) => tend.run(),
        Command::Delta(delta) => delta.run().map(|()| ExitCode::SUCCESS),
        Command::Broker(broker) => broker.run().map(ExitCode::from),
        Command::Lease(lease) => lease.run().map(|()| ExitCode::SUCCESS),
        Command::Qemu(qemu) => qemu.run().map(|()| ExitCode::SUCCESS),
        Command::Pager(pager) => pager.run().map(|()| ExitCode::SUCCESS),
        Command::Checkpoint(checkpoint) => checkpoint.run().map(|()| ExitCode::SUCCESS),
        Command::Fork(fork) => fork.run().map(|()| ExitCode::SUCCESS),
        Command::Status(status) => status.run().map(|()| ExitCode::SUCCESS),
        Command::Image(image) => image.run().map(|()| ExitCode::SUCCESS),
        Command::Restore(restore) => restore.run().map(|()| ExitCode::SUCCESS),
        Command::Completions(completions) => {
            completions.run(Cli::command()).map(|()| ExitCode::SUCCESS)
        }
        Command::Man(man) => man.run(Cli::command()).map(|()| ExitCode::SUCCESS),
        Command::Systemd(systemd) => systemd.run().map(|()| ExitCode::SUCCESS),
    }
}

/// The library never prints. It reports limits that it works around, such as an unavailable
/// backing, as events.
fn listen_to_the_library(is_daemon: bool) {
    let writer = if is_daemon {
        BoxMakeWriter::new(|| log::Lines)
    } else {
        BoxMakeWriter::new(std::io::stderr)
    };
    tracing_subscriber::fmt()
        .with_writer(writer)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_needs_no_task_and_its_help_has_the_tasks() {
        Cli::try_parse_from(["hugekit", "demo"]).unwrap();
        let said = Cli::try_parse_from(["hugekit", "demo", "--help"]).unwrap_err().to_string();
        for task in ["memory", "fork", "snapshot", "restore"] {
            assert!(said.contains(&format!("- {task}:")), "{said}");
        }
        assert!(!said.contains("helper"), "{said}");
    }

    #[test]
    fn help_fits_a_terminal_of_24_lines_and_80_columns() {
        let help = Cli::command().term_width(text::COLUMNS).render_help().to_string();
        let lines: Vec<_> = help.trim_end().lines().collect();
        assert!(lines.len() < 24, "{} lines, and one for the prompt:\n{help}", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= text::COLUMNS), "{help}");
        let commands = lines.iter().filter(|line| line.starts_with("  ")).count();
        // And `help`. A command with two lines would be counted twice.
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set()).count();
        assert_eq!(commands, shown + 1, "{help}");
    }
}
