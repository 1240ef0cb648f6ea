//! Two records beside each other: what changed, drawn with its interval, and all cases in a table.

use crate::record::compare::{CaseChange, ChangeVerdict, Comparison};
use crate::table::{Cell, Column, Figure, Row, Table, figure, html as tables};
use maud::{Markup, html};

use super::plot::{Mark, MarkLook, Plot, PlotAxis};
use super::tables::list_of_warnings;

/// The comparison of a page's first record with another of its records.
pub(super) fn section(number: usize, comparison: &Comparison) -> Markup {
    let changed: Vec<&CaseChange> = comparison
        .changes
        .iter()
        .filter(|change| matches!(change.verdict, ChangeVerdict::Faster | ChangeVerdict::Slower))
        .collect();
    let count =
        |verdict| comparison.changes.iter().filter(|change| change.verdict == verdict).count();
    html! {
        section.comparison aria-labelledby={ "c" (number) } {
            h2 id={ "c" (number) } { "From " (comparison.before) " to " (comparison.after) }
            (list_of_warnings(&comparison.warnings))
            p.verdict {
                b { "Found: " } "of " (comparison.changes.len()) " cases and comparisons " (count(ChangeVerdict::Faster)) " faster, " (count(ChangeVerdict::Slower)) " slower, "
                (count(ChangeVerdict::WithinNoise)) " within noise, " (count(ChangeVerdict::TooFewRounds)) " with too few rounds to say, " (count(ChangeVerdict::Disturbed)) " apart but disturbed."
            }
            p.hint {
                "A change counts if such samples are unlikely without one (below 0.5 %, Mann-Whitney), all of its 99 % interval (bootstrap) is \
                 beyond 5 %, and it exceeds what the halves of one run differ by. What differs between any two runs is not in that."
            }
            @if !changed.is_empty() { div.charts { (drawing(&changed).render()) } }
            (tables::render(&table(&comparison.changes)))
            @for (name, only) in [(&comparison.before, &comparison.only_before), (&comparison.after, &comparison.only_after)] {
                @if !only.is_empty() { p.hint { "Only in " (name) ": " (only.join(", ")) "." } }
            }
        }
    }
}

/// Each change with its interval, its name above it.
fn drawing(changes: &[&CaseChange]) -> Plot {
    let ends = changes.iter().flat_map(|change| [change.interval.0, change.interval.1]);
    let x = PlotAxis::log(&ends.chain([0.5, 1.0, 2.0]).collect::<Vec<_>>());
    let mut marks = vec![Mark::Line(MarkLook::Rule, vec![(1.0, 0.0), (1.0, changes.len() as f64)])];
    for (row, change) in changes.iter().enumerate() {
        let y = row as f64 + 0.75;
        // Green and red would be one to many.
        let look = if change.verdict == ChangeVerdict::Faster { 0 } else { 2 };
        marks.push(Mark::Words((x.from, row as f64), change.id.clone()));
        marks.push(Mark::Line(
            MarkLook::Main(look),
            vec![(change.interval.0, y), (change.interval.1, y)],
        ));
        marks.push(Mark::Point { look, at: (change.speed_up, y), is_hollow: false });
    }
    let title =
        "How many times as fast, with 99 % intervals (circle: faster, square: slower)".to_owned();
    let said =
        |change: &&CaseChange| format!("{}: {} times as fast", change.id, figure(change.speed_up));
    let said: Vec<String> = changes.iter().map(said).collect();
    Plot {
        description: format!("{title}. {}.", said.join(". ")),
        title,
        x,
        y: PlotAxis::rows(changes.len(), Vec::new()),
        x_label: "",
        y_label: String::new(),
        height: changes.len() as u32 * 60 + 80,
        marks,
        legend: Vec::new(),
    }
}

/// Every case and comparison, with slower ones as losses.
fn table(changes: &[CaseChange]) -> Table {
    let row = |change: &CaseChange| {
        let (low, high) = change.interval;
        let speed_up = match change.verdict {
            ChangeVerdict::Slower => Figure::ratio(change.speed_up),
            _ => Figure::plain(change.speed_up),
        };
        let plain = |value| Cell::Figure(Figure::plain(value));
        let cells = vec![
            plain(change.before),
            plain(change.after),
            Cell::Figure(speed_up),
            plain(low),
            plain(high),
            Cell::Text(format!("{}, {}", change.rounds.0, change.rounds.1)),
            Cell::Text(format!("{:.3}", change.p)),
            Cell::Text(change.verdict.name().to_owned()),
        ];
        Row { head: format!("{}, {}", change.id, change.unit_name()), cells }
    };
    let columns = ["before", "after", "times as fast", "from", "to", "rounds", "p", "verdict"];
    Table {
        title: "All cases and comparisons of both records".to_owned(),
        columns: columns.map(Column::numbers).into(),
        rows: changes.iter().map(row).collect(),
        ..Table::default()
    }
}
