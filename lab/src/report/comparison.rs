//! Two records beside each other: what changed, drawn with its interval, and all cases in a table.

use crate::finding::figure;
use crate::record::compare::{Change, Comparison, Verdict};
use maud::{Markup, html};

use super::plot::{Axis, Look, Mark, Plot};
use super::tables::{Cell, Table, list_of_warnings};

/// The comparison of a page's first record with another of its records.
pub(super) fn section(number: usize, comparison: &Comparison) -> Markup {
    let changed: Vec<&Change> = comparison
        .changes
        .iter()
        .filter(|change| matches!(change.verdict, Verdict::Faster | Verdict::Slower))
        .collect();
    let count =
        |verdict| comparison.changes.iter().filter(|change| change.verdict == verdict).count();
    html! {
        section.comparison aria-labelledby={ "c" (number) } {
            h2 id={ "c" (number) } { "From " (comparison.before) " to " (comparison.after) }
            (list_of_warnings(&comparison.warnings))
            p.verdict {
                b { "Found: " } "of " (comparison.changes.len()) " cases and comparisons " (count(Verdict::Faster)) " faster, " (count(Verdict::Slower)) " slower, "
                (count(Verdict::WithinNoise)) " within noise, " (count(Verdict::TooFewRounds)) " with too few rounds to say, " (count(Verdict::Disturbed)) " apart but disturbed."
            }
            p.hint {
                "A change counts if such samples are unlikely without one (below 0.5 %, Mann-Whitney), all of its 99 % interval (bootstrap) is \
                 beyond 5 %, and it exceeds what the halves of one run differ by. What differs between any two runs is not in that."
            }
            @if !changed.is_empty() { div.charts { (drawing(&changed).render()) } }
            (table(&comparison.changes))
            @for (name, only) in [(&comparison.before, &comparison.only_before), (&comparison.after, &comparison.only_after)] {
                @if !only.is_empty() { p.hint { "Only in " (name) ": " (only.join(", ")) "." } }
            }
        }
    }
}

/// Each change with its interval, its name above it.
fn drawing(changes: &[&Change]) -> Plot {
    let ends = changes.iter().flat_map(|change| [change.interval.0, change.interval.1]);
    let x = Axis::log(&ends.chain([0.5, 1.0, 2.0]).collect::<Vec<_>>());
    let mut marks = vec![Mark::Line(Look::Rule, vec![(1.0, 0.0), (1.0, changes.len() as f64)])];
    for (row, change) in changes.iter().enumerate() {
        let y = row as f64 + 0.75;
        // Green and red would be one to many.
        let look = if change.verdict == Verdict::Faster { 0 } else { 2 };
        marks.push(Mark::Words((x.from, row as f64), change.id.clone()));
        marks.push(Mark::Line(
            Look::Main(look),
            vec![(change.interval.0, y), (change.interval.1, y)],
        ));
        marks.push(Mark::Point { look, at: (change.speed_up, y), is_hollow: false });
    }
    let title =
        "How many times as fast, with 99 % intervals (circle: faster, square: slower)".to_owned();
    let said =
        |change: &&Change| format!("{}: {} times as fast", change.id, figure(change.speed_up));
    let said: Vec<String> = changes.iter().map(said).collect();
    Plot {
        description: format!("{title}. {}.", said.join(". ")),
        title,
        x,
        y: Axis::rows(changes.len(), Vec::new()),
        x_label: "",
        y_label: String::new(),
        height: changes.len() as u32 * 60 + 80,
        marks,
        legend: Vec::new(),
    }
}

fn table(changes: &[Change]) -> Markup {
    let row = |change: &Change| {
        let (low, high) = change.interval;
        let cells = vec![
            Cell::figure(change.before),
            Cell::figure(change.after),
            Cell::Strong(figure(change.speed_up)),
            Cell::figure(low),
            Cell::figure(high),
            Cell::Number(format!("{}, {}", change.rounds.0, change.rounds.1)),
            Cell::Number(format!("{:.3}", change.p)),
            Cell::Number(change.verdict.name().to_owned()),
        ];
        (format!("{}, {}", change.id, change.unit_name()), cells)
    };
    let caption = "All cases and comparisons of both records";
    let columns = ["before", "after", "times as fast", "from", "to", "rounds", "p", "verdict"];
    Table { caption, columns: columns.into(), rows: changes.iter().map(row).collect() }.render()
}
