//! A drawing of what a writer felt over time, one row per case: its longest store in each step, before, while
//! and after its memory is saved.

use maud::{Markup, html};

use super::axis::Axis;
use super::chart::{LETTER, WIDTH, line, text};
use crate::finding::figure;
use crate::record::{Timeline, parts};

const ROW: f64 = 64.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = WIDTH - 16.0;

/// All of an experiment, on the same axes.
pub(super) fn render(id: &str, timelines: &[Timeline]) -> Markup {
    let letters = timelines.iter().map(|one| name(one).chars().count()).max().unwrap_or(0);
    let left = letters as f64 * LETTER + 46.0;
    let bottom = TOP + timelines.len() as f64 * ROW;
    let longest = timelines.iter().map(duration).fold(0.0, f64::max);
    let along = Axis::linear(longest / 1e3, (left, RIGHT));
    html! {
        figure {
            figcaption { "Longest store over time, µs, logarithmic (dotted: the snapshot is asked for)" }
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {:.0}", bottom + 34.0)) role="img" aria-labelledby={ (id) "-t " (id) "-d" } {
                title id={ (id) "-t" } { "Longest store over time" }
                desc id={ (id) "-d" } { (describe(timelines)) }
                g.grid {
                    @for (value, label) in along.ticks() {
                        (line(along.place(value), TOP, along.place(value), bottom))
                        (text(along.place(value), bottom + 14.0, "middle", &label))
                    }
                }
                @for (index, timeline) in timelines.iter().enumerate() {
                    (row(timelines, timeline, &along, left, TOP + index as f64 * ROW))
                }
                (text(RIGHT, bottom + 28.0, "end", "ms"))
            }
        }
    }
}

/// The method, and what kind of writer it was if not the usual one: `region-zipf`.
fn name(timeline: &Timeline) -> String {
    let kind = |workload: &str| workload.strip_prefix("timeline").unwrap_or_default().to_owned();
    let name = parts(&timeline.id).map(|(method, workload)| method.to_owned() + &kind(workload));
    name.unwrap_or_else(|| timeline.id.clone())
}

/// Microseconds.
fn duration(timeline: &Timeline) -> f64 {
    timeline.longest.len() as f64 * timeline.step
}

fn row(all: &[Timeline], timeline: &Timeline, along: &Axis, left: f64, top: f64) -> Markup {
    let (high, low) = (top + 6.0, top + ROW - 8.0);
    let axis = Axis::log(all.iter().flat_map(|one| one.longest.iter().copied()), (low, high));
    let began = along.place(timeline.began / 1e3);
    html! {
        g.grid {
            @for (value, label) in apart(&axis) {
                (line(left, axis.place(value), RIGHT, axis.place(value)))
                (text(left - 4.0, axis.place(value) + 3.5, "end", &label))
            }
        }
        (text(2.0, (high + low) / 2.0 + 4.0, "start", &name(timeline)))
        g.marks { (line(began, top + 2.0, began, low)) }
        g.series.s0 {
            path.line d=(outline(timeline, along, &axis)) { title { (timeline.id) } }
        }
    }
}

/// Labels that do not touch the one below.
fn apart(axis: &Axis) -> Vec<(f64, String)> {
    const ROOM: f64 = 11.0;
    let mut kept: Vec<(f64, String)> = Vec::new();
    for (value, label) in axis.ticks() {
        if kept.last().is_none_or(|(below, _)| axis.place(*below) - axis.place(value) >= ROOM) {
            kept.push((value, label));
        }
    }
    kept
}

/// A stair: the value of a step from its beginning to its end. Steps without any store are gaps.
fn outline(timeline: &Timeline, along: &Axis, axis: &Axis) -> String {
    let place = |step: usize| along.place(step as f64 * timeline.step / 1e3);
    let (mut path, mut draws) = (String::new(), false);
    for (step, &longest) in timeline.longest.iter().enumerate() {
        if longest > 0.0 {
            let (to, y) = (if draws { 'L' } else { 'M' }, axis.place(longest));
            path += &format!("{to}{:.1},{y:.1} H{:.1} ", place(step), place(step + 1));
        }
        draws = longest > 0.0;
    }
    path
}

fn describe(timelines: &[Timeline]) -> String {
    let of = |timeline: &Timeline| {
        let at = (timeline.began / timeline.step) as usize;
        let (before, after) = timeline.longest.split_at(at.min(timeline.longest.len()));
        let longest = |steps: &[f64]| figure(steps.iter().copied().fold(0.0, f64::max));
        format!("{}: {} before, {} from then on", timeline.id, longest(before), longest(after))
    };
    timelines.iter().map(of).collect::<Vec<_>>().join(". ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        Timeline {
            id: "snapshot/region/timeline".to_owned(),
            step: 5000.0,
            began: 10_000.0,
            stores: vec![9, 9, 1, 0, 9],
            longest: vec![2.0, 3.0, 400.0, 0.0, 2.5],
        }
    }

    #[test]
    fn each_step_is_a_stair_and_a_standstill_a_gap() {
        let (along, axis) = (Axis::linear(25.0, (0.0, 250.0)), Axis::linear(500.0, (100.0, 0.0)));
        let expected = "M0.0,99.6 H50.0 L50.0,99.4 H100.0 L100.0,20.0 H150.0 M200.0,99.5 H250.0 ";
        assert_eq!(outline(&timeline(), &along, &axis), expected);
    }

    #[test]
    fn words_say_what_the_drawing_shows() {
        let zipf = Timeline { id: "snapshot/region/timeline-zipf".to_owned(), ..timeline() };
        let page = render("t", &[timeline(), zipf]).into_string();
        assert!(
            page.contains("snapshot/region/timeline: 3.00 before, 400.0 from then on"),
            "{page}"
        );
        assert!(page.contains(">region</text>") && page.contains(">region-zipf</text>"), "{page}");
    }
}
