//! `hugekit lab --compare`: what changed between two records, as text, JSON or a page.

// Writing to a String cannot fail, so the results of `writeln!` are dropped.
use std::fmt::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::bail;
use hugekit_lab::record::Record;
use hugekit_lab::record::compare::{CaseChange, ChangeVerdict, Comparison};
use hugekit_lab::table::figure;

use super::Sinks;
use hugekit_terminal::text::{COLUMNS, say, wrap, write_out};

/// Exit code if something is slower than the limit allows; 1 and 2 are errors.
const BEYOND: u8 = 3;

const BOLD: Style = Style::new().bold();

/// Columns of the drawing, whose middle is no change and whose ends are a factor of two.
const DRAWN: usize = 17;

pub(super) fn run(
    records: &[(String, Record); 2],
    sinks: Sinks<'_>,
    fail_beyond: Option<f64>,
) -> anyhow::Result<ExitCode> {
    let [(before, old), (after, new)] = records;
    let comparison = Comparison::between((before, old), (after, new));
    if comparison.changes.is_empty() {
        bail!("{before} and {after} have no case in common");
    }
    if sinks.print {
        write_out(&render(&comparison))?;
    }
    if let Some(json) = sinks.json {
        json.write_json(&comparison)?;
    }
    if let Some(html) = sinks.html {
        html.write(&hugekit_lab::report::page(records))?;
    }
    let Some(percent) = fail_beyond else { return Ok(ExitCode::SUCCESS) };
    let beyond = comparison.slower_beyond(percent / 100.0).count();
    if beyond == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("{beyond} cases or comparisons are slower by more than {percent} %"));
    Ok(ExitCode::from(BEYOND))
}

fn render(comparison: &Comparison) -> String {
    let mut text = format!(
        "{BOLD}From {} to {}{BOLD:#} (medians; above 1 is faster)\n",
        comparison.before, comparison.after
    );
    for warning in &comparison.warnings {
        for line in wrap(&format!("warning: {warning}"), COLUMNS) {
            let _ = writeln!(text, "{line}");
        }
    }
    for verdict in [ChangeVerdict::Slower, ChangeVerdict::Faster] {
        let changes: Vec<&CaseChange> =
            comparison.changes.iter().filter(|change| change.verdict == verdict).collect();
        if !changes.is_empty() {
            let _ = writeln!(text, "\n{BOLD}{}{BOLD:#}", verdict.name());
            changes.iter().for_each(|change| render_change(&mut text, change));
        }
    }
    render_rest(&mut text, comparison);
    text
}

/// A line for the case and one for its present figure, so that neither is broken.
fn render_change(text: &mut String, change: &CaseChange) {
    let style = match change.verdict {
        ChangeVerdict::Slower => AnsiColor::Red.on_default(),
        _ => AnsiColor::Green.on_default(),
    };
    let _ = writeln!(text, "  {}", change.id);
    let figures =
        format!("{} → {} {}", figure(change.before), figure(change.after), change.unit_name());
    let (low, high) = change.interval;
    let times = format!("× {}", figure(change.speed_up));
    let interval = format!("({} to {})", figure(low), figure(high));
    let drawing = draw(change);
    let _ = writeln!(text, "    {figures:28} {style}{times:8}{style:#} {interval:16} {drawing}");
}

/// `·` no change, `─` the interval, `●` the change.
fn draw(change: &CaseChange) -> String {
    let middle = DRAWN as f64 / 2.0;
    let column = |ratio: f64| {
        let column = middle + ratio.log2() * middle;
        column.clamp(0.0, DRAWN as f64 - 1.0) as usize
    };
    let (low, high) = (column(change.interval.0), column(change.interval.1));
    let mark = |at: usize| match at {
        _ if at == column(change.speed_up) => '●',
        _ if (low..=high).contains(&at) => '─',
        _ if at == DRAWN / 2 => '·',
        _ => ' ',
    };
    (0..DRAWN).map(mark).collect::<String>().trim_end().to_owned()
}

/// The cases that did not change, counted by experiment.
fn render_rest(text: &mut String, comparison: &Comparison) {
    let _ = writeln!(text, "\n{BOLD}{}{BOLD:#}", ChangeVerdict::WithinNoise.name());
    let name = |change: &CaseChange| change.id.split('/').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = comparison.changes.iter().map(name).collect();
    names.sort();
    names.dedup();
    for experiment in names {
        let of_it = || comparison.changes.iter().filter(|change| name(change) == experiment);
        let count = |verdict| of_it().filter(|change| change.verdict == verdict).count();
        let said = |verdict, what: &str| match count(verdict) {
            0 => String::new(),
            some => format!("; {some} {what}"),
        };
        let line = format!(
            "{experiment}: {} of {}{}{}",
            count(ChangeVerdict::WithinNoise),
            of_it().count(),
            said(ChangeVerdict::TooFewRounds, "with too few rounds to say (`--rounds 6` or more)"),
            said(ChangeVerdict::Disturbed, "apart, but the machine was not ours alone")
        );
        let _ = writeln!(text, "  {}", wrap(&line, COLUMNS - 4).join("\n    "));
    }
    for (only, ids) in
        [(&comparison.before, &comparison.only_before), (&comparison.after, &comparison.only_after)]
    {
        if !ids.is_empty() {
            let line = format!("only in {only}: {}", ids.join(", "));
            let _ = writeln!(text, "  {}", wrap(&line, COLUMNS - 4).join("\n    "));
        }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_lab::record::{Case, Unit};

    use super::*;

    /// A record with one case of twelve samples around each of these.
    fn record(medians: &[(&str, f64)]) -> Record {
        let mut record = Record::parse(include_str!("../../tests/data/record.json")).unwrap();
        record.experiments.truncate(1);
        record.experiments[0].cases = medians
            .iter()
            .map(|(id, median)| Case {
                id: (*id).to_owned(),
                unit: Unit::GibPerSecond,
                samples: (0..12).map(|n| median * (0.99 + f64::from(n % 5) * 0.005)).collect(),
                published: Vec::new(),
            })
            .collect();
        record
    }

    #[test]
    fn changes_are_drawn_and_the_rest_is_counted() {
        let old = record(&[
            ("stores/memset/4KiB", 60.0),
            ("stores/auto/4KiB", 90.0),
            ("stores/auto/1GiB", 12.0),
            ("stores/gone/1GiB", 12.0),
        ]);
        let mut new = record(&[
            ("stores/memset/4KiB", 60.5),
            ("stores/auto/4KiB", 45.0),
            ("stores/auto/1GiB", 18.0),
        ]);
        new.machine.cpu = "another CPU".into();
        let text = render(&Comparison::between(("old", &old), ("new", &new)));
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(plain.lines().all(|line| line.chars().count() <= COLUMNS), "{plain}");
        insta::assert_snapshot!(plain);
    }
}
