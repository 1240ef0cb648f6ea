//! Drawings of one row per case: the samples of all rounds, how often latencies occurred, and what a writer felt
//! over time.

use crate::record::stats::Summary;
use crate::record::{BUCKET, Case, Distribution, Experiment, Timeline, Unit, parts};
use crate::table::figure;
use crate::table::record::grouped;

use super::charts::Looks;
use super::plot::{LOOKS, Mark, MarkLook, Plot, PlotAxis};

/// The longest name of a row that is shown whole.
const LONGEST: usize = 28;

/// All drawings of an experiment that have rows. Samples are drawn of these cases.
pub(super) fn of<'a>(
    experiment: &'a Experiment,
    cases: &'a [&Case],
    looks: &'a Looks<'_>,
) -> impl Iterator<Item = Plot> + 'a {
    let by_unit = grouped(cases.iter().map(|case| (case.unit, *case)));
    let samples = by_unit.into_iter().map(|(unit, cases)| samples(unit, &cases, looks));
    let by_unit = grouped(experiment.distributions.iter().map(|one| (one.unit, one)));
    let events = by_unit.into_iter().map(|(unit, all)| events(unit, &all));
    let timelines = &experiment.timelines;
    samples.chain(events).chain((!timelines.is_empty()).then(|| over_time(timelines)))
}

/// A drawing of rows of a height, each with a name.
fn rows(title: String, x: PlotAxis, y: PlotAxis, height: u32, marks: Vec<Mark>) -> Plot {
    let (x_label, y_label, legend) = ("", String::new(), Vec::new());
    let height = (y.from as u32) * height + 80;
    let description = title.clone();
    Plot { title, description, x, y, x_label, y_label, height, marks, legend }
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Every sample as a dot and the median as a point on their range, grouped by workload.
fn samples(unit: Unit, cases: &[&Case], looks: &Looks<'_>) -> Plot {
    let values: Vec<f64> = cases.iter().flat_map(|case| case.samples.iter().copied()).collect();
    let x = PlotAxis::of(&values);
    let (mut marks, mut ticks, mut words, mut row) = (Vec::new(), Vec::new(), Vec::new(), 0.5);
    let placed = cases.iter().map(|case| {
        let (method, workload) = parts(&case.id).unwrap_or((&case.id, ""));
        (workload, (method, *case))
    });
    for (workload, cases) in grouped(placed) {
        marks.push(Mark::Words((x.from, row - 0.4), workload.to_owned()));
        let mut of_workload = Vec::new();
        for (method, case) in cases {
            row += 1.0;
            let look = looks.get(method).map_or(0, |look| look % LOOKS);
            let Summary { median, min, max } = Summary::of(&case.samples);
            marks.push(Mark::Line(MarkLook::Beside, vec![(min, row), (max, row)]));
            marks.extend(case.samples.iter().map(|&sample| Mark::Dot(look, (sample, row))));
            marks.push(Mark::Point { look, at: (median, row), is_hollow: false });
            ticks.push((row, shortened(method)));
            of_workload.push(format!("{method} {}", figure(median)));
        }
        words.push(format!("{workload}: {}", of_workload.join(", ")));
        row += 1.0;
    }
    let title = format!("Medians, {}, and the samples of all rounds", unit.name());
    let plot = rows(title, x, PlotAxis::rows((row - 0.5) as usize, ticks), 34, marks);
    let description = format!("{}. {}.", plot.title, words.join(". "));
    Plot { description, ..plot }
}

/// Histograms on a logarithmic axis, because what matters is the rare ones far to the right.
fn events(unit: Unit, all: &[&Distribution]) -> Plot {
    let values = all.iter().flat_map(|one| &one.percentiles).map(|(_, value)| *value);
    let x = PlotAxis::log(&values.collect::<Vec<_>>());
    let mut marks = Vec::new();
    for (row, one) in all.iter().enumerate() {
        let base = (row + 1) as f64;
        marks.extend(outline(one, base));
        let at = |percent: f64| one.percentiles.iter().find(|(at, _)| *at == percent);
        for (percent, look) in [(50.0, MarkLook::Main(6)), (99.0, MarkLook::Rule)] {
            let line = at(percent).map(|&(_, value)| vec![(value, base), (value, base - 0.9)]);
            marks.extend(line.map(|line| Mark::Line(look, line)));
        }
        let longest = at(100.0).map(|&(_, value)| (value, base - 0.1));
        marks.extend(longest.map(|at| Mark::Point { look: 0, at, is_hollow: false }));
    }
    let ticks = (0..).zip(names(all)).map(|(row, name)| (f64::from(row) + 0.6, shortened(&name)));
    let title = format!(
        "Single events, {} (height: how often, as a square root; line: median; dashed: 99 %; dot: the longest)",
        unit.name()
    );
    let plot = rows(title, x, PlotAxis::rows(all.len(), ticks.collect()), 60, marks);
    let of = |one: &&Distribution| {
        let values = one.percentiles.iter();
        let values = values.map(|(percent, value)| format!("{percent} % {}", figure(*value)));
        format!("{}: {}", one.id, values.collect::<Vec<_>>().join(", "))
    };
    let words: Vec<String> = all.iter().map(of).collect();
    Plot { description: format!("{}. {}.", plot.title, words.join(". ")), ..plot }
}

/// The counts, each bucket from the end of the one before it.
fn outline(one: &Distribution, base: f64) -> impl Iterator<Item = Mark> {
    let most = one.buckets.iter().map(|(_, count)| *count).max().unwrap_or(1) as f64;
    let mut before = 0.0;
    one.buckets.iter().map(move |&(end, count)| {
        // Empty buckets are left out of the record, so the one before may end far to the left.
        let start = f64::max(before, end / BUCKET);
        before = end;
        let height = (count as f64 / most).sqrt() * 0.85;
        Mark::Box(0, [(start, base), (end, base - height)])
    })
}

/// The rows' names: by their method, and by the workload too where several have the same.
fn names(all: &[&Distribution]) -> Vec<String> {
    let method = |one: &Distribution| parts(&one.id).map(|(method, _)| method.to_owned());
    let name = |one: &&Distribution| {
        let alike = all.iter().filter(|other| method(other) == method(one)).count();
        match parts(&one.id) {
            Some((method, workload)) if alike > 1 => format!("{method} {workload}"),
            Some((method, _)) => method.to_owned(),
            None => one.id.clone(),
        }
    };
    all.iter().map(name).collect()
}

/// The longest store in each step, before, while and after the memory is saved; on the same axes for all.
fn over_time(all: &[Timeline]) -> Plot {
    let duration = all.iter().map(|one| one.longest.len() as f64 * one.step).fold(0.0, f64::max);
    let x = PlotAxis::linear(duration / 1e3);
    let of_row = PlotAxis::log(&all.iter().flat_map(|one| one.longest.clone()).collect::<Vec<_>>());
    let (mut marks, mut ticks, mut words) = (Vec::new(), Vec::new(), Vec::new());
    for (row, one) in all.iter().enumerate() {
        let place = |value: f64| (row + 1) as f64 - 0.05 - 0.7 * of_row.share(value);
        // Two labels for each row, so that they do not touch.
        let labels = of_row.ticks();
        let ends = labels.iter().rev().take(1).chain(labels.iter().take(1));
        ticks.extend(ends.map(|(value, label)| (place(*value), label.clone())));
        marks.push(Mark::Words((x.from, row as f64 + 0.02), name(one)));
        let began = one.began / 1e3;
        marks.push(Mark::Line(
            MarkLook::Rule,
            vec![(began, row as f64 + 0.15), (began, (row + 1) as f64)],
        ));
        marks.extend(stairs(one, place).map(|stair| Mark::Line(MarkLook::Main(0), stair)));
        let at = (one.began / one.step) as usize;
        let (before, after) = one.longest.split_at(at.min(one.longest.len()));
        let longest = |steps: &[f64]| figure(steps.iter().copied().fold(0.0, f64::max));
        words.push(format!(
            "{}: {} before, {} from then on",
            one.id,
            longest(before),
            longest(after)
        ));
    }
    let title =
        "Longest store over time in ms, µs, logarithmic (dashed: the snapshot is asked for)";
    let plot = rows(title.to_owned(), x, PlotAxis::rows(all.len(), ticks), 128, marks);
    Plot { description: format!("{title}. {}.", words.join(". ")), ..plot }
}

/// The method, and what kind of writer it was if not the usual one: `region-zipf`.
fn name(timeline: &Timeline) -> String {
    let kind = |workload: &str| workload.strip_prefix("timeline").unwrap_or_default().to_owned();
    let name = parts(&timeline.id).map(|(method, workload)| method.to_owned() + &kind(workload));
    name.unwrap_or_else(|| timeline.id.clone())
}

/// The value of each step from its beginning to its end, in ms. Steps without any store are gaps.
fn stairs(one: &Timeline, place: impl Fn(f64) -> f64) -> impl Iterator<Item = Vec<(f64, f64)>> {
    let at = |step: usize| step as f64 * one.step / 1e3;
    let steps: Vec<(usize, f64)> = one.longest.iter().copied().enumerate().collect();
    let stores = steps.split(|(_, longest)| *longest <= 0.0).filter(|stores| !stores.is_empty());
    let stair = |stores: &[(usize, f64)]| {
        let ends = stores.iter().flat_map(|&(step, longest)| {
            [(at(step), place(longest)), (at(step + 1), place(longest))]
        });
        ends.collect()
    };
    stores.map(stair).collect::<Vec<_>>().into_iter()
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
        let stairs: Vec<_> = stairs(&timeline(), |longest| longest).collect();
        let before =
            [(0.0, 2.0), (5.0, 2.0), (5.0, 3.0), (10.0, 3.0), (10.0, 400.0), (15.0, 400.0)];
        assert_eq!(stairs, [before.to_vec(), vec![(20.0, 2.5), (25.0, 2.5)]]);
    }

    #[test]
    fn words_say_what_the_drawing_shows() {
        let zipf = Timeline { id: "snapshot/region/timeline-zipf".to_owned(), ..timeline() };
        let page = over_time(&[timeline(), zipf]).render().into_string();
        let words = "snapshot/region/timeline: 3.00 before, 400 from then on";
        assert!(page.contains(words) && page.contains("region-zipf"), "{page}");
    }

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
