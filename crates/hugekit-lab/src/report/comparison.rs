//! Two records beside each other: what changed, drawn with its interval, and all cases in a table.

use maud::{Markup, html};

use super::axis::Axis;
use super::chart::{WIDTH, line, outline, text};
use crate::compare::{Change, Comparison, Verdict};
use crate::finding::figure;

/// A name, and its line below: names are as long as a telephone is wide.
const ROW: f64 = 30.0;
const TOP: f64 = 10.0;

/// Looks of the style sheet: green and red would be one to many.
const FASTER: usize = 0;
const SLOWER: usize = 1;

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
            @if !comparison.warnings.is_empty() {
                div.warnings { b { "Warnings" } ul { @for warning in &comparison.warnings { li { (warning) } } } }
            }
            p.verdict {
                b { "Found: " } "of " (comparison.changes.len()) " cases and comparisons " (count(Verdict::Faster)) " faster, " (count(Verdict::Slower)) " slower, "
                (count(Verdict::WithinNoise)) " within noise, " (count(Verdict::TooFewRounds)) " with too few rounds to say, " (count(Verdict::Disturbed)) " apart but disturbed."
            }
            p.hint {
                "A change counts if such samples are unlikely without one (below 0.5 %, Mann-Whitney), all of its 99 % interval (bootstrap) is \
                 beyond 5 %, and it exceeds what the halves of one run differ by. What differs between any two runs is not in that."
            }
            @if !changed.is_empty() { div.charts { (drawing(number, &changed)) } }
            (table(&comparison.changes))
            @for (name, only) in [(&comparison.before, &comparison.only_before), (&comparison.after, &comparison.only_after)] {
                @if !only.is_empty() { p.hint { "Only in " (name) ": " (only.join(", ")) "." } }
            }
        }
    }
}

fn drawing(number: usize, changes: &[&Change]) -> Markup {
    let bottom = TOP + changes.len() as f64 * ROW;
    let ends =
        changes.iter().flat_map(|change| [change.interval.0, change.interval.1, 1.0, 2.0, 0.5]);
    let axis = Axis::log(ends.collect::<Vec<_>>().into_iter(), (16.0, WIDTH - 16.0));
    let said =
        |change: &&Change| format!("{}: {} times as fast", change.id, figure(change.speed_up));
    let id = format!("comparison-{number}");
    html! {
        figure {
            figcaption { "How many times as fast, with 99 % intervals (circle: faster, square: slower)" }
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {:.0}", bottom + 20.0)) role="img" aria-labelledby={ (id) "-t " (id) "-d" } {
                title id={ (id) "-t" } { "How many times as fast" }
                desc id={ (id) "-d" } { (changes.iter().map(said).collect::<Vec<_>>().join(". ")) }
                g.grid {
                    @for (value, label) in axis.ticks() {
                        (line(axis.place(value), TOP, axis.place(value), bottom))
                        (text(axis.place(value), bottom + 14.0, "middle", &label))
                    }
                }
                g.level { (line(axis.place(1.0), TOP, axis.place(1.0), bottom)) }
                @for (index, change) in changes.iter().enumerate() {
                    @let y = TOP + (index as f64 + 0.75) * ROW;
                    @let look = if change.verdict == Verdict::Faster { FASTER } else { SLOWER };
                    (text(2.0, y - 9.0, "start", &change.id))
                    g class={ "series s" (look) } {
                        path.line.range d=(format!("M{:.1},{y:.1} L{:.1},{y:.1}", axis.place(change.interval.0), axis.place(change.interval.1))) {}
                        path.point d=(outline(look, axis.place(change.speed_up), y)) { title { (said(change)) } }
                    }
                }
            }
        }
    }
}

fn table(changes: &[Change]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="All cases and comparisons of both records" {
            table {
                caption { "All cases and comparisons of both records" }
                thead { tr {
                    th {} th scope="col" { "before" } th scope="col" { "after" } th scope="col" { "times as fast" } th scope="col" { "from" } th scope="col" { "to" }
                    th scope="col" { "rounds" } th scope="col" { "p" } th scope="col" { "verdict" }
                } }
                tbody {
                    @for change in changes {
                        tr {
                            th scope="row" { (change.id) ", " (change.unit_name()) }
                            td { (figure(change.before)) } td { (figure(change.after)) }
                            td { b { (figure(change.speed_up)) } } td { (figure(change.interval.0)) } td { (figure(change.interval.1)) }
                            td { (change.rounds.0) ", " (change.rounds.1) } td { (format!("{:.3}", change.p)) } td { (change.verdict.name()) }
                        }
                    }
                }
            }
        }
    }
}
