//! `hugekit lab`: arguments, flow, exit code.

mod output;
mod table;

use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use hugekit::arch::{Routine, clear_routines, copy_routines};
use hugekit_lab::record::Record;
use hugekit_lab::size::Size;
use hugekit_lab::{Definition, EXPERIMENTS, LabError, Options};

use self::output::JsonSink;
use crate::progress::{INTERRUPTED, Terminal};

/// Measure clearing huge memory here, beside the published figures.
///
/// Needs neither root nor reserved huge pages, and changes nothing on the machine without --setup.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    /// What to run; everything if none is named
    #[arg(value_name = "EXPERIMENT", value_parser = experiment_parser())]
    experiments: Vec<&'static Definition>,
    /// End within 15 s per experiment
    #[arg(long)]
    quick: bool,
    /// Memory to measure on, such as 4GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Run exactly so many rounds instead of as many as the time allows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    rounds: Option<u32>,
    /// Measure only routines of this name, beside libc's and the engine's own choice
    #[arg(long, value_name = "NAME", value_parser = routine_parser())]
    routine: Option<String>,
    /// Change huge-page settings that are in the way, and put them back (root)
    #[arg(long)]
    setup: bool,
    /// Write the record with every raw sample; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE|-")]
    json: Option<JsonSink>,
}

fn experiment_parser() -> impl TypedValueParser<Value = &'static Definition> {
    let values = EXPERIMENTS.iter().map(|e| PossibleValue::new(e.name).help(e.repeats));
    PossibleValuesParser::new(values).map(|name| {
        EXPERIMENTS.iter().find(|e| e.name == name).expect("one of the possible values")
    })
}

fn routine_parser() -> PossibleValuesParser {
    let mut names: Vec<_> = rows().map(|(name, ..)| name).collect();
    names.sort_unstable();
    names.dedup();
    PossibleValuesParser::new(names)
}

/// Name, availability and needs of every routine that clears or copies.
fn rows() -> impl Iterator<Item = (&'static str, bool, &'static str)> {
    fn row<F>(routine: &Routine<F>) -> (&'static str, bool, &'static str) {
        (routine.name(), routine.is_available(), routine.needs())
    }
    clear_routines().iter().map(row).chain(copy_routines().iter().map(row))
}

impl Lab {
    /// Runs the experiments and prints what came out of them.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        self.refuse_unavailable_routine();
        let json = self.json.as_ref().map(JsonSink::open).transpose()?;
        let terminal = Terminal::new()?;
        let outcome = match hugekit_lab::run(&self.chosen(), &self.options(), &terminal) {
            Err(error @ (LabError::TooLittleMemory { .. } | LabError::MemoryTooSmall { .. })) => {
                usage_error(&error.to_string())
            }
            outcome => outcome?,
        };
        terminal.finish();
        let interrupted = outcome.interrupted;
        let record = Record::new(command_line(), outcome.experiments);
        if !self.json.as_ref().is_some_and(JsonSink::is_stdout) {
            table::print(&record)?;
        }
        json.map_or(Ok(()), |json| json.write(&record))?;
        Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
    }

    fn chosen(&self) -> Vec<&'static Definition> {
        if self.experiments.is_empty() {
            EXPERIMENTS.iter().collect()
        } else {
            self.experiments.clone()
        }
    }

    fn options(&self) -> Options {
        Options {
            quick: self.quick,
            memory: self.memory,
            rounds: self.rounds.map(|rounds| rounds as usize),
            routine: self.routine.clone(),
            setup: self.setup,
        }
    }

    fn refuse_unavailable_routine(&self) {
        let Some(name) = &self.routine else { return };
        let mut named = rows().filter(|row| row.0 == name).peekable();
        let needs = named.peek().map_or("", |row| row.2);
        if !named.any(|(_, is_available, _)| is_available) {
            let available: Vec<_> = rows().filter(|row| row.1).map(|row| row.0).collect();
            usage_error(&format!(
                "routine {name} is not available on this CPU: it needs {needs}; available are {}",
                available.join(", ")
            ))
        }
    }
}

/// Ends the program as clap does on a usage error: message on standard error, exit code 2.
fn usage_error(message: &str) -> ! {
    crate::Cli::command().error(ErrorKind::ValueValidation, message).exit()
}

fn command_line() -> String {
    let arguments = std::env::args().skip(1);
    std::iter::once("hugekit".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}
