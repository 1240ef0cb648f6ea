//! The end of a report: a verdict for each published claim.

// Writing to a String cannot fail, so the results of `writeln!` are dropped.
use std::fmt::Write;

use anstyle::Style;
use hugekit_lab::record::Record;
use hugekit_lab::report::claims::{self, HOW, Judged};

use super::{summary, table};

const BOLD: Style = Style::new().bold();

/// The claims that experiments of this record repeat.
pub(super) fn render(text: &mut String, record: &Record) {
    let judged = claims::of_experiments(record);
    if !judged.is_empty() {
        text.push('\n');
        render_lines(text, &judged);
    }
}

/// Every claim, below the machine.
pub(super) fn every(record: &Record) -> String {
    let mut text = String::new();
    table::render_machine(&mut text, &record.machine);
    text.push('\n');
    render_lines(&mut text, &claims::all(record));
    text
}

fn render_lines(text: &mut String, judged: &[Judged]) {
    let _ = writeln!(text, "{BOLD}Published claims{BOLD:#}");
    summary::render_indented(text, "", HOW);
    for one in judged {
        let paragraph = format!("{}: {}", one.verdict.name(), one.line());
        summary::render_indented(text, "· ", &paragraph);
    }
}
