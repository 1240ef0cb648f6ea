//! A drawing of one row per case: the median as a point on the range of its samples. For whatever has
//! no axis of its own, experiments unknown today among it.

use maud::{Markup, html};

use super::axis::Axis;
use super::chart::{LETTER, WIDTH, line, outline, text};
use crate::finding::figure;
use crate::record::{Case, Unit};
use crate::stats::Summary;

const ROW: f64 = 17.0;
const TOP: f64 = 22.0;

/// The longest name of a row that is shown whole.
const LONGEST: usize = 28;

/// Rows of one workload.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    /// Method, its look, and the case.
    pub(super) rows: Vec<(&'a str, usize, &'a Case)>,
}

/// Groups of one unit.
pub(super) fn render(id: &str, unit: Unit, groups: &[Group<'_>]) -> Markup {
    let rows = || groups.iter().flat_map(|group| &group.rows);
    let letters = rows().map(|(method, ..)| method.chars().count().min(LONGEST)).max().unwrap_or(0);
    let left = letters as f64 * LETTER + 14.0;
    let lines = rows().count() + groups.len();
    let bottom = TOP + lines as f64 * ROW;
    let values: Vec<f64> = rows().map(|(.., case)| case.median()).collect();
    let axis = Axis::of(values.into_iter(), (left, WIDTH - 16.0));
    let title = format!("Medians, {}", unit.name());
    let mut y = TOP - ROW / 2.0;
    html! {
        figure {
            figcaption { (title) ", on the range of samples" }
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {:.0}", bottom + 20.0)) role="img" aria-labelledby={ (id) "-t " (id) "-d" } {
                title id={ (id) "-t" } { (title) }
                desc id={ (id) "-d" } { (describe(unit, groups)) }
                g.grid {
                    @for (value, label) in axis.ticks() {
                        (line(axis.place(value), TOP - 8.0, axis.place(value), bottom))
                        (text(axis.place(value), bottom + 14.0, "middle", &label))
                    }
                }
                @for group in groups {
                    @let () = y += ROW;
                    text.group x="2" y=(format!("{:.1}", y - 5.0)) { (group.name) }
                    @for (method, look, case) in &group.rows {
                        @let () = y += ROW;
                        (row(&axis, left, y - 9.0, method, *look, case))
                    }
                }
            }
        }
    }
}

fn row(axis: &Axis, left: f64, y: f64, method: &str, look: usize, case: &Case) -> Markup {
    let Summary { median, min, max } = Summary::of(&case.samples);
    let label = format!("{} {}: {}", figure(median), case.unit.name(), case.id);
    html! {
        (text(left - 8.0, y + 3.5, "end", &shortened(method)))
        g class={ "series s" (look) } {
            path.line.range d=(format!("M{:.1},{y:.1} L{:.1},{y:.1}", axis.place(min), axis.place(max))) {}
            path.point d=(outline(look, axis.place(median), y)) { title { (label) } }
        }
    }
}

fn shortened(method: &str) -> String {
    match method.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &method[..end]),
        None => method.to_owned(),
    }
}

fn describe(unit: Unit, groups: &[Group<'_>]) -> String {
    let of = |group: &Group<'_>| {
        let rows = group.rows.iter();
        let rows = rows.map(|(method, _, case)| format!("{method} {}", figure(case.median())));
        format!("{}: {}", group.name, rows.collect::<Vec<_>>().join(", "))
    };
    let groups: Vec<String> = groups.iter().map(of).collect();
    format!("In {}. {}.", unit.name(), groups.join(". "))
}
