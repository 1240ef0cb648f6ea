//! `hugekit lab`: arguments, flow, exit code.

mod output;
mod progress;
mod table;

use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args as ClapArgs, CommandFactory};
use hugekit::arch::{ClearRoutine, clear_routine, clear_routines};
use hugekit_lab::record::{Record, SCHEMA};
use hugekit_lab::size::Size;
use hugekit_lab::{Definition, EXPERIMENTS, LabError, Options};

use self::output::JsonSink;
use self::progress::Terminal;

/// Exit code of a run that Ctrl-C ended: 128 + SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// What `hugekit lab` takes.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
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
    /// Measure only this routine, beside memset and the engine's own choice
    #[arg(long, value_name = "NAME", value_parser = routine_parser())]
    routine: Option<&'static ClearRoutine>,
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

fn routine_parser() -> impl TypedValueParser<Value = &'static ClearRoutine> {
    let values = clear_routines().iter().map(|routine| PossibleValue::new(routine.name()));
    PossibleValuesParser::new(values)
        .map(|name| clear_routine(&name).expect("one of the possible values"))
}

/// Runs the lab and prints what came out of it.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    refuse_unavailable_routine(args);
    let experiments = chosen(&args.experiments);
    let json = args.json.as_ref().map(JsonSink::open).transpose()?;
    let terminal = Terminal::new()?;
    let outcome = match hugekit_lab::run(&experiments, &options(args), &terminal) {
        Err(error @ (LabError::TooLittleMemory { .. } | LabError::MemoryTooSmall { .. })) => {
            usage_error(format!("{error}"))
        }
        outcome => outcome?,
    };
    terminal.finish();
    let record = Record {
        schema: SCHEMA,
        command: command_line(),
        machine: hugekit_lab::machine(),
        experiments: outcome.experiments,
    };
    if !args.json.as_ref().is_some_and(JsonSink::is_stdout) {
        table::print(&record)?;
    }
    json.map_or(Ok(()), |json| json.write(&record))?;
    Ok(if outcome.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn chosen(named: &[&'static Definition]) -> Vec<&'static Definition> {
    if named.is_empty() { EXPERIMENTS.iter().collect() } else { named.to_vec() }
}

fn options(args: &Args) -> Options {
    Options {
        quick: args.quick,
        memory: args.memory,
        rounds: args.rounds.map(|rounds| rounds as usize),
        routine: args.routine,
        setup: args.setup,
    }
}

fn refuse_unavailable_routine(args: &Args) {
    if let Some(routine) = args.routine.filter(|routine| !routine.is_available()) {
        let available: Vec<_> = clear_routines().iter().filter(|r| r.is_available()).collect();
        let names: Vec<_> = available.iter().map(|routine| routine.name()).collect();
        usage_error(format!(
            "routine {} is not available on this CPU: it needs {}; available are {}",
            routine.name(),
            routine.needs(),
            names.join(", ")
        ))
    }
}

/// Ends the program as clap does on a usage error: message on standard error, exit code 2.
fn usage_error(message: String) -> ! {
    crate::Cli::command().error(ErrorKind::ValueValidation, message).exit()
}

fn command_line() -> String {
    let arguments = std::env::args().skip(1);
    std::iter::once("hugekit".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}
