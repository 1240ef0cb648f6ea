//! A drawing of latencies, one row per case: how often each occurred, on a logarithmic axis, because what
//! matters is the rare ones far to the right.

use maud::{Markup, html};

use super::axis::Axis;
use super::chart::{LETTER, WIDTH, line, text};
use crate::finding::figure;
use crate::record::{BUCKET, Distribution, Unit, parts};

const ROW: f64 = 30.0;
const TOP: f64 = 12.0;

/// Percentiles that are marked, and their classes.
const MARKED: [(f64, &str); 2] = [(50.0, "median"), (99.0, "tail")];

/// Distributions of one unit.
pub(super) fn render(id: &str, unit: Unit, distributions: &[&Distribution]) -> Markup {
    let names = names(distributions);
    let letters = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = letters as f64 * LETTER + 14.0;
    let bottom = TOP + distributions.len() as f64 * ROW;
    let values = distributions.iter().flat_map(|one| &one.percentiles).map(|(_, value)| *value);
    let axis = Axis::log(values.collect::<Vec<_>>().into_iter(), (left, WIDTH - 16.0));
    let title = format!("Single events, {}", unit.name());
    html! {
        figure {
            figcaption { (title) " (height: how often, as a square root; line: median; dashed: 99 %; dot: the longest)" }
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {:.0}", bottom + 20.0)) role="img" aria-labelledby={ (id) "-t " (id) "-d" } {
                title id={ (id) "-t" } { (title) }
                desc id={ (id) "-d" } { (describe(distributions)) }
                g.grid {
                    @for (value, label) in axis.ticks() {
                        (line(axis.place(value), TOP, axis.place(value), bottom))
                        (text(axis.place(value), bottom + 14.0, "middle", &label))
                    }
                }
                @for (index, (distribution, name)) in distributions.iter().zip(&names).enumerate() {
                    @let base = TOP + (index + 1) as f64 * ROW;
                    (text(left - 8.0, base - 4.0, "end", name))
                    (row(&axis, base, distribution))
                }
            }
        }
    }
}

/// The rows' names: by their method, and by the workload too where several have the same.
fn names(distributions: &[&Distribution]) -> Vec<String> {
    let method = |one: &Distribution| parts(&one.id).map(|(method, _)| method.to_owned());
    let name = |one: &&Distribution| {
        let alike = distributions.iter().filter(|other| method(other) == method(one)).count();
        match parts(&one.id) {
            Some((method, workload)) if alike > 1 => format!("{method} {workload}"),
            Some((method, _)) => method.to_owned(),
            None => one.id.clone(),
        }
    };
    distributions.iter().map(name).collect()
}

fn row(axis: &Axis, base: f64, distribution: &Distribution) -> Markup {
    let at = |percent: f64| {
        distribution.percentiles.iter().find(|(at, _)| *at == percent).map(|(_, value)| *value)
    };
    html! {
        g.series.s0 {
            path.area d=(area(axis, base, distribution)) { title { (distribution.id) } }
            @for (percent, class) in MARKED {
                @if let Some(value) = at(percent) {
                    path class={ "line " (class) } d=(format!("M{0:.1},{1:.1} L{0:.1},{base:.1}", axis.place(value), base - ROW + 4.0)) {
                        title { (percent) " %: " (figure(value)) }
                    }
                }
            }
            @if let Some(longest) = at(100.0) {
                circle.point cx=(format!("{:.1}", axis.place(longest))) cy=(format!("{:.1}", base - 3.0)) r="2.5" { title { "longest: " (figure(longest)) } }
            }
        }
    }
}

/// The outline of the counts, each bucket from the end of the one before it. Records before version 2
/// have none, and show their percentiles only.
fn area(axis: &Axis, base: f64, distribution: &Distribution) -> String {
    let most = distribution.buckets.iter().map(|(_, count)| *count).max().unwrap_or(1) as f64;
    let mut path = String::new();
    for (index, &(end, count)) in distribution.buckets.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| distribution.buckets[index].0);
        // Empty buckets are left out of the record, so the one before may end far to the left.
        let start = before.map_or(end / BUCKET, |before| before.max(end / BUCKET));
        let height = (count as f64 / most).sqrt() * (ROW - 6.0);
        let (left, right) = (axis.place(start), axis.place(end));
        path += &format!("M{left:.1},{base:.1} V{:.1} H{right:.1} V{base:.1} Z ", base - height);
    }
    path
}

fn describe(distributions: &[&Distribution]) -> String {
    let of = |distribution: &&Distribution| {
        let values = distribution.percentiles.iter();
        let values = values.map(|(percent, value)| format!("{percent} % {}", figure(*value)));
        format!("{}: {}", distribution.id, values.collect::<Vec<_>>().join(", "))
    };
    distributions.iter().map(of).collect::<Vec<_>>().join(". ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_method_are_told_apart() {
        let ids = ["fault/clean-thp/2MiB", "snapshot/region/before", "snapshot/region/during"];
        let distributions = ids.map(|id| Distribution {
            id: id.to_owned(),
            unit: Unit::Microseconds,
            count: 1,
            percentiles: vec![(50.0, 1.0)],
            buckets: vec![(1.0, 1)],
        });
        let all: Vec<&Distribution> = distributions.iter().collect();
        assert_eq!(names(&all), ["clean-thp", "region before", "region during"]);
    }
}
