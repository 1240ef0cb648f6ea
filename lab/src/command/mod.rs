//! Arguments, flow, exit code.

mod claims;
mod compare;
mod kept;
mod operand;
mod progress;
mod settings;
mod summary;
mod table;
mod time_left;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hugekit::error_chain;
use hugekit_bulk::arch::{Routine, clear_routines, copy_routines};
use hugekit_lab::record::Record;
use hugekit_lab::record::archive::Archive;
use hugekit_lab::{Definition, EXPERIMENTS, LabError, Options, Outcome, report};
use hugekit_machine::size::Size;

use hugekit_terminal::file::{FileSink, OpenSink};
use hugekit_terminal::outcome::{INTERRUPTED, UsageError};
use hugekit_terminal::text::{say, write_out};

use operand::Operand;
use progress::{Results, Terminal};

/// Measure this machine, and compare with published figures.
///
/// Each run is kept as a record, and records can be compared: --list, --show and --compare.
/// Needs neither root nor reserved huge pages. Changes no setting of the machine without --setup.
#[derive(Debug, Parser)]
#[command(
    name = "hugekit-lab",
    bin_name = "hugekit lab",
    version,
    after_help = "Example: hugekit lab snapshot --memory 1GiB"
)]
pub(crate) struct Lab {
    /// The experiments to run [default: those that end within three minutes together]
    #[arg(value_name = "EXPERIMENT", value_parser = experiment_parser())]
    experiments: Vec<&'static Definition>,
    /// Run every experiment, including those that take minutes each
    #[arg(long, conflicts_with = "experiments")]
    all: bool,
    /// Print all tables, not only results and warnings; default if experiments are named
    #[arg(long)]
    tables: bool,
    /// Aim at 15 s per experiment; a busy machine needs longer
    #[arg(long)]
    quick: bool,
    /// Bytes of memory to measure on, such as 4GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Run exactly this many rounds [default: as many as the time allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    rounds: Option<u32>,
    /// Measure only this routine, libc's and the engine's own choice
    #[arg(long, value_name = "NAME", value_parser = routine_parser())]
    routine: Option<String>,
    /// Change huge-page settings for the measurement, and restore them (root)
    #[arg(long)]
    setup: bool,
    /// Write the record with all raw samples; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE|-")]
    json: Option<FileSink>,
    /// Write a page with charts for a browser; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE|-")]
    html: Option<FileSink>,
    /// Do not keep a record of this run
    #[arg(long)]
    no_record: bool,
    /// List the records of earlier runs; measure nothing
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print records, each by file, by ID or its first characters, or `last`; measure nothing. With --html, one page
    /// compares all with the first one
    #[arg(long, value_name = "ID|FILE", num_args = 1.., conflicts_with_all = MEASURING)]
    show: Vec<Operand>,
    /// Print a verdict for each published claim from a record [default: last]; measure nothing
    #[arg(long, value_name = "ID|FILE", num_args = 0..=1, default_missing_value = "last", conflicts_with_all = MEASURING, conflicts_with_all = ["show", "json", "html"])]
    claims: Option<Operand>,
    /// Compare two records, by ID or file; measure nothing
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = MEASURING, conflicts_with_all = ["show", "claims"])]
    compare: Option<Vec<Operand>>,
    /// With --compare: exit with 3 if a case is slower by more than this many percent
    #[arg(long, value_name = "PERCENT", requires = "compare", value_parser = percent)]
    fail_beyond: Option<f64>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').trim_end().parse().map_err(|_| "not a number")?;
    if (0.0..100.0).contains(&number) { Ok(number) } else { Err("not within 0 to 100".into()) }
}

/// Exit code of a run in which a case failed; the record has the others.
const IN_PART: u8 = 4;

/// Arguments that are invalid if nothing is measured.
const MEASURING: [&str; 9] =
    ["experiments", "all", "tables", "quick", "memory", "rounds", "routine", "setup", "no_record"];

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
    /// Measures, or prints earlier measurements.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.list {
            kept::list()?;
            return Ok(ExitCode::SUCCESS);
        }
        if !self.show.is_empty() {
            return self.show().map(|()| ExitCode::SUCCESS);
        }
        if let Some(operand) = &self.claims {
            write_out(&claims::every(&operand.read()?.1))?;
            return Ok(ExitCode::SUCCESS);
        }
        match self.compare.as_deref() {
            Some([before, after]) => self.compare(before, after),
            _ => self.measure(),
        }
    }

    fn show(&self) -> anyhow::Result<()> {
        let records: Vec<_> = self.show.iter().map(Operand::read).collect::<Result<_, _>>()?;
        if records.len() > 1 && self.json.is_some() {
            let message = "--json takes one record";
            return Err(UsageError(message.to_owned()).into());
        }
        let text: Vec<String> = records.iter().map(|(_, record)| table::whole(record)).collect();
        self.open_sinks()?.write(&records, &text.join("\n"))
    }

    /// Runs the experiments, prints the results and keeps the record.
    fn measure(&self) -> anyhow::Result<ExitCode> {
        self.refuse_unavailable_routine()?;
        let sinks = self.open_sinks()?;
        let mut terminal = Terminal::new()?;
        settings::put_back();
        if sinks.print {
            terminal.print_results(Results { heading: summary::heading(), line: summary::line });
        }
        let outcome = match hugekit_lab::run(&self.chosen(), &self.options(), &terminal) {
            Err(error @ (LabError::TooLittleMemory { .. } | LabError::MemoryTooSmall { .. })) => {
                return Err(UsageError(error.to_string()).into());
            }
            outcome => outcome?,
        };
        terminal.finish();
        self.report(sinks, outcome)
    }

    /// If one file cannot be written or one setting cannot be restored, the others still are.
    fn report(&self, sinks: Sinks<'_>, mut outcome: Outcome) -> anyhow::Result<ExitCode> {
        outcome.settings.iter().for_each(|note| say(note));
        let (interrupted, not_restored) = (outcome.interrupted, outcome.not_restored.take());
        let record = outcome.record(&command_line());
        // Kept first: a page that cannot be written can be made of it later.
        let id = (!self.no_record && !record.experiments.is_empty()).then(|| keep(&record));
        let text = match self.tables || !self.experiments.is_empty() {
            true => table::details(&record),
            false => summary::warnings(&record),
        };
        let name = id.flatten().unwrap_or_else(|| "of this run".to_owned());
        let failed = record.failures().count();
        let written = sinks.write(&[(name, record)], &text);
        not_restored.map_or(Ok(()), Err)?;
        written?;
        if failed > 0 {
            say(&format!(
                "{failed} cases or parts could not be measured; the record has the reasons"
            ));
        }
        Ok(match (interrupted, failed) {
            (true, _) => ExitCode::from(INTERRUPTED),
            (false, 0) => ExitCode::SUCCESS,
            (false, _) => ExitCode::from(IN_PART),
        })
    }

    fn compare(&self, before: &Operand, after: &Operand) -> anyhow::Result<ExitCode> {
        let sinks = self.open_sinks()?;
        let records = [before.read()?, after.read()?];
        compare::run(&records, sinks, self.fail_beyond)
    }

    fn open_sinks(&self) -> anyhow::Result<Sinks<'_>> {
        let is_stdout = |sink: &Option<FileSink>| sink.as_ref().is_some_and(FileSink::is_stdout);
        if is_stdout(&self.json) && is_stdout(&self.html) {
            let message = "--json and --html cannot both print to standard output";
            return Err(UsageError(message.to_owned()).into());
        }
        let print = !is_stdout(&self.json) && !is_stdout(&self.html);
        let json = self.json.as_ref().map(FileSink::open).transpose()?;
        let html = self.html.as_ref().map(FileSink::open).transpose()?;
        Ok(Sinks { print, json, html })
    }

    fn chosen(&self) -> Vec<&'static Definition> {
        if self.experiments.is_empty() {
            EXPERIMENTS.iter().filter(|experiment| experiment.is_core || self.all).collect()
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
            hugekit: command(),
        }
    }

    fn refuse_unavailable_routine(&self) -> Result<(), UsageError> {
        let Some(name) = &self.routine else { return Ok(()) };
        let mut named = rows().filter(|row| row.0 == name).peekable();
        let needs = named.peek().map_or("", |row| row.2);
        if named.any(|(_, is_available, _)| is_available) {
            return Ok(());
        }
        let available: Vec<_> = rows().filter(|row| row.1).map(|row| row.0).collect();
        Err(UsageError(format!(
            "routine {name} is not available on this CPU: it needs {needs}; use one of {}",
            available.join(", ")
        )))
    }
}

/// The outputs of a result.
struct Sinks<'a> {
    /// True if standard output is for people.
    print: bool,
    json: Option<OpenSink<'a>>,
    html: Option<OpenSink<'a>>,
}

impl Sinks<'_> {
    /// Each of them, whatever becomes of the others; the first error is returned. The JSON is that of the first record.
    fn write(self, records: &[(String, Record)], text: &str) -> anyhow::Result<()> {
        let printed = || write_out(text).context("cannot print");
        let printed = if self.print { printed() } else { Ok(()) };
        let json = self.json.map_or(Ok(()), |json| json.write_json(&records[0].1));
        let html = self.html.map_or(Ok(()), |html| html.write(&report::page(records)));
        printed.and(json).and(html)
    }
}

/// A record that cannot be kept is only a warning: the measurements are printed.
fn keep(record: &Record) -> Option<String> {
    match Archive::of_user().and_then(|archive| archive.keep(record)) {
        Ok(id) => {
            say(&format!("kept as {id}: `hugekit lab --show {id}`"));
            Some(id)
        }
        Err(error) => {
            say(&format!("warning: {}; use --no-record to keep no record", error_chain(&error)));
            None
        }
    }
}

/// The `hugekit` command: the one that has started this program, else the one beside it, else one in PATH.
fn command() -> Option<PathBuf> {
    let by = env::var_os("HUGEKIT").map(PathBuf::from);
    let beside = env::current_exe().ok().map(|this| this.with_file_name("hugekit"));
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join("hugekit"));
    by.into_iter().chain(beside).chain(in_path).find(|program| program.is_file())
}

fn command_line() -> String {
    let arguments = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    ["hugekit".to_owned(), "lab".to_owned()]
        .into_iter()
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}
