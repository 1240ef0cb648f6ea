//! The `hugekit` command: each subcommand is a folder with its arguments, its flow and its printing.

mod base_pages;
mod broker;
mod checkpoint;
mod children;
mod clone;
mod delta;
mod demo;
mod doctor;
mod fork;
mod image;
mod lab;
mod lease;
mod log;
mod pager;
mod pid;
mod progress;
mod qemu;
mod restore;
#[cfg(test)]
mod same_options_everywhere;
mod shell;
mod socket;
mod status;
mod tend;
mod warm;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use hugekit_terminal::{events, outcome, text};

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
    Doctor(doctor::DoctorCommand),
    Demo(demo::DemoCommand),
    Lab(lab::LabCommand),
    Tend(tend::TendCommand),
    Delta(delta::DeltaCommand),
    Broker(broker::BrokerCommand),
    Lease(lease::LeaseCommand),
    Qemu(qemu::QemuCommand),
    Pager(pager::PagerCommand),
    Checkpoint(checkpoint::CheckpointCommand),
    Fork(fork::ForkCommand),
    Clone(clone::CloneCommand),
    Status(status::StatusCommand),
    Image(image::ImageCommand),
    Restore(restore::RestoreCommand),
    Warm(warm::WarmCommand),
    Completions(shell::Completions),
    // The list of commands fits a terminal without these two; `docs/` names them where they are of use.
    #[command(hide = true)]
    Man(shell::Man),
    #[command(hide = true)]
    Systemd(shell::Systemd),
}

fn main() -> ExitCode {
    survive_file_size_limit();
    if let Some(code) = run_own_process() {
        return code;
    }
    let command = Cli::parse().command;
    let say = command.say();
    if command.is_daemon() {
        log::print_events();
    } else {
        events::print();
    }
    let code = outcome::exit_code(run(command), Cli::command, say);
    log::finish();
    code
}

/// Runs a process that this program has started, if the first two words name one. They are no arguments of [`Cli`]:
/// completions list hidden ones, too.
fn run_own_process() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let name = [words.next()?, words.next()?];
    if name == broker::FILL {
        Some(broker::run_fill(words))
    } else if name == demo::HELPER {
        demo::run_helper(words)
    } else {
        None
    }
}

/// A parent that ignores the signal has the programs that this command starts ignore it, too.
fn survive_file_size_limit() {
    if hugekit_sys::signal::in_force(libc::SIGXFSZ).is_ok_and(|action| action.is_default()) {
        // If the kernel refuses, the signal ends the command, as it ends every other program.
        let _ = hugekit_daemon::survive_file_size_limit();
    }
}

impl Command {
    /// Returns the function that writes its lines for people.
    fn say(&self) -> fn(&str) {
        match self {
            Self::Tend(_) => tend::say,
            daemon if daemon.is_daemon() => log::line,
            _ => text::say,
        }
    }

    /// Returns true if it serves other programs, and so never waits for the reader of its log.
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
        Command::Lab(lab) => Err(lab.run()),
        Command::Tend(tend) => tend.run(),
        Command::Delta(delta) => delta.run().map(|()| ExitCode::SUCCESS),
        Command::Broker(broker) => broker.run().map(ExitCode::from),
        Command::Lease(lease) => lease.run().map(|()| ExitCode::SUCCESS),
        Command::Qemu(qemu) => qemu.run().map(|()| ExitCode::SUCCESS),
        Command::Pager(pager) => pager.run().map(|()| ExitCode::SUCCESS),
        Command::Checkpoint(checkpoint) => checkpoint.run().map(|()| ExitCode::SUCCESS),
        Command::Fork(fork) => fork.run().map(|()| ExitCode::SUCCESS),
        Command::Clone(clone) => clone.run().map(|()| ExitCode::SUCCESS),
        Command::Status(status) => status.run().map(|()| ExitCode::SUCCESS),
        Command::Image(image) => image.run().map(|()| ExitCode::SUCCESS),
        Command::Restore(restore) => restore.run().map(|()| ExitCode::SUCCESS),
        Command::Warm(warm) => warm.run(),
        Command::Completions(completions) => {
            completions.run(Cli::command()).map(|()| ExitCode::SUCCESS)
        }
        Command::Man(man) => man.run(Cli::command()).map(|()| ExitCode::SUCCESS),
        Command::Systemd(systemd) => systemd.run().map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::pages;

    use super::*;

    #[test]
    fn every_command_of_a_page_is_accepted() {
        pages::check("hugekit", &Cli::command(), 60);
    }

    #[test]
    fn command_of_a_page_that_is_not_accepted_is_found() {
        let refused = |text, is_whole| pages::why_refused(text, is_whole, &Cli::command());
        assert_eq!(refused("hugekit broker --unit 1GiB & # goes on", true), None);
        assert_eq!(refused("hugekit lease --size SIZE -- PROGRAM --its-own", false), None);
        assert!(refused("hugekit broker --unit", true).is_some());
        assert!(refused("hugekit tend --nothing PID", false).is_some());
        assert!(refused("hugekit nothing", false).is_some());
    }

    #[test]
    fn demo_needs_no_task_and_its_help_has_the_tasks() {
        Cli::try_parse_from(["hugekit", "demo"]).unwrap();
        let said = Cli::try_parse_from(["hugekit", "demo", "--help"]).unwrap_err().to_string();
        for task in ["memory", "fork", "snapshot"] {
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
