//! What a run has found, a line for each experiment, and what stands in the way of it.

// Writing to a String cannot fail, so the results of `writeln!` are dropped.
use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use hugekit_lab::finding;
use hugekit_lab::record::{Experiment, Record};

use super::{claims, table};
use hugekit_terminal::text::{COLUMNS, wrap};

const BOLD: Style = Style::new().bold();
const WARNING: Style = AnsiColor::Yellow.on_default();

/// Columns of the longest experiment's name, and a space.
const NAME: usize = 11;

/// Above the results.
pub(super) fn heading() -> String {
    format!(
        "{BOLD}Summary{BOLD:#} (medians, like for like only; above 1 is faster;\n  \
         auto is hugekit's own choice of a routine)\n"
    )
}

/// Prints the result of one experiment.
pub(super) fn line(name: &str, finding: &str) -> String {
    let mut text = String::new();
    for (index, line) in wrap(finding, COLUMNS - NAME - 2).into_iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        let _ = writeln!(text, "  {BOLD}{name:NAME$}{BOLD:#}{line}");
    }
    text
}

/// Everything that makes the results less certain, and where their tables are.
pub(super) fn warnings(record: &Record) -> String {
    let mut text = "\n".to_owned();
    table::render_machine(&mut text, &record.machine);
    let _ = writeln!(text, "\n{BOLD}Warnings{BOLD:#}");
    let has_warnings = |experiment: &&Experiment| !finding::warnings(experiment).is_empty();
    for experiment in record.experiments.iter().filter(has_warnings) {
        let _ = writeln!(text, "  {BOLD}{}{BOLD:#}", experiment.name);
        render_warnings(&mut text, experiment);
    }
    if !record.experiments.iter().any(|experiment| has_warnings(&experiment)) {
        let _ = writeln!(text, "  none");
    }
    render_uncontrolled(&mut text, record);
    claims::render(&mut text, record);
    text
}

/// Disturbances of an experiment, and failures in it.
pub(super) fn render_warnings(text: &mut String, experiment: &Experiment) {
    let mark = format!("{WARNING}!{WARNING:#} ");
    for warning in finding::warnings(experiment) {
        render_indented(text, &mark, &warning);
    }
}

/// Prints the influences that no run on this machine can control.
pub(super) fn render_uncontrolled(text: &mut String, record: &Record) {
    if record.uncontrolled.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{BOLD}Not controlled{BOLD:#}");
    for what in &record.uncontrolled {
        render_indented(text, "", what);
    }
}

/// A paragraph behind a bullet, its further lines set in by four columns.
pub(super) fn render_indented(text: &mut String, bullet: &str, paragraph: &str) {
    for (index, line) in wrap(paragraph, COLUMNS - 6).into_iter().enumerate() {
        let _ = match index {
            0 => writeln!(text, "  {bullet}{line}"),
            _ => writeln!(text, "    {line}"),
        };
    }
}
