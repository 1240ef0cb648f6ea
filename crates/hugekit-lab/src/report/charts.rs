//! Which drawings an experiment gets: decided by what its workloads are, never by its name.
//!
//! - workloads that are sizes, three or more: lines by size, and the ratios by size with what was
//!   published; one drawing for what follows the size in a label (`-cold`, `+touch-4KiB`);
//! - workloads that are numbers of threads: speed-up over one, and the ideal;
//! - operations call by call: a line by call, and what they are compared with as level ones;
//! - single events: histograms, and what a writer felt over time;
//! - everything else: points on the range of their samples.

use std::collections::BTreeMap;

use maud::Markup;

use super::chart::{Along, Chart, DISTINCT, Point, Role, Series};
use super::dots::{self, Group};
use super::{histogram, timeline};
use crate::finding::figure;
use crate::published::Published;
use crate::record::{Case, Experiment, Machine, Ratio, Sequence, Unit, parts};
use crate::size::Size;

/// Sizes below which a line says no more than points do.
const LEAST_SIZES: usize = 3;

/// Methods with a look of their own; the others are drawn beside them.
const FOREGROUND: usize = 6;

/// More published lines than these hide what was measured; the table has them all.
const MOST_PUBLISHED: usize = 3;

const CACHES: [&str; 3] = ["L1d", "L2", "last level"];

/// A case, its method, and where it lies.
type Placed<'a> = (&'a str, f64, &'a Case);

/// The same of a comparison.
type Compared<'a> = (&'a str, f64, &'a Ratio);

/// All drawings of an experiment.
pub(super) fn of(experiment: &Experiment, machine: &Machine) -> Vec<Markup> {
    let (looks, caches) = (looks(experiment), marks(machine));
    let (by_size, rest) = by_size(experiment);
    let (by_threads, rest) = by_threads(rest);
    let mut charts: Vec<Chart> = by_size
        .iter()
        .map(|((unit, suffix), cases)| sizes(*unit, suffix, cases, &looks, &caches))
        .collect();
    // Only where sizes are of what passes through a cache do its marks say anything.
    let is_bandwidth = by_size.iter().any(|((unit, _), _)| *unit == Unit::GibPerSecond);
    charts.extend(ratios_by_size(experiment, if is_bandwidth { &caches } else { &[] }));
    charts.extend(speed_ups(experiment, &by_threads));
    charts.extend(experiment.sequences.iter().map(by_call));
    let id = |index: usize| format!("{}-{index}", experiment.name);
    let mut drawn: Vec<Markup> =
        charts.iter().enumerate().map(|(index, chart)| chart.render(&id(index))).collect();
    for (unit, groups) in groups(&rest, &looks) {
        drawn.push(dots::render(&id(drawn.len()), unit, &groups));
    }
    let mut units: Vec<Unit> = experiment.distributions.iter().map(|one| one.unit).collect();
    units.dedup();
    for unit in units {
        let of_unit: Vec<_> =
            experiment.distributions.iter().filter(|one| one.unit == unit).collect();
        drawn.push(histogram::render(&id(drawn.len()), unit, &of_unit));
    }
    if !experiment.timelines.is_empty() {
        drawn.push(timeline::render(&id(drawn.len()), &experiment.timelines));
    }
    drawn
}

/// Each method's look: first those of the first comparison, then those that most is said about.
fn looks(experiment: &Experiment) -> BTreeMap<&str, usize> {
    let method = |id| parts(id).map(|(method, _)| method);
    let first = experiment.ratios.first();
    let first = first.map(|ratio| [ratio.subject.as_str(), ratio.baseline.as_str()]);
    let first = first.into_iter().flatten().filter_map(method);
    let mut said: Vec<(&str, usize)> = first.map(|name| (name, usize::MAX / 2)).collect();
    let fair = experiment.ratios.iter().filter(|ratio| !ratio.id.contains("/best-vs-"));
    let compared = fair.flat_map(|ratio| [ratio.baseline.as_str(), ratio.subject.as_str()]);
    for name in
        compared.chain(experiment.cases.iter().map(|case| case.id.as_str())).filter_map(method)
    {
        match said.iter_mut().find(|(other, _)| *other == name) {
            Some((_, times)) => *times += 1,
            None => said.push((name, 1)),
        }
    }
    said.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    said.into_iter().enumerate().map(|(look, (name, _))| (name, look)).collect()
}

/// The size that a label begins with, and what follows it.
fn size_and_suffix(label: &str) -> Option<(f64, &str)> {
    let end = label.find(['-', '+']).unwrap_or(label.len());
    let (size, suffix) = label.split_at(end);
    let starts_as_size = size.ends_with('B') && size.starts_with(|c: char| c.is_ascii_digit());
    let bytes = starts_as_size.then(|| size.parse::<Size>().ok())??;
    Some((bytes.0 as f64, suffix))
}

fn distinct(values: impl Iterator<Item = f64>) -> usize {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values.len()
}

type Sized<'a> = Vec<((Unit, &'a str), Vec<Placed<'a>>)>;

/// Cases whose workloads are sizes, by unit and what follows the size; and the others.
fn by_size(experiment: &Experiment) -> (Sized<'_>, Vec<&Case>) {
    let mut families: Sized<'_> = Vec::new();
    let mut rest = Vec::new();
    for case in &experiment.cases {
        let sized =
            parts(&case.id).and_then(|(method, label)| Some((method, size_and_suffix(label)?)));
        let Some((method, (size, suffix))) = sized else {
            rest.push(case);
            continue;
        };
        let key = (case.unit, suffix);
        let placed = (method, size, case);
        match families.iter_mut().find(|(other, _)| *other == key) {
            Some((_, family)) => family.push(placed),
            None => families.push((key, vec![placed])),
        }
    }
    for (_, family) in &mut families {
        let enough = |method: &str| {
            let sizes = family.iter().filter(|(other, ..)| *other == method).map(|placed| placed.1);
            distinct(sizes) >= LEAST_SIZES
        };
        let lines: Vec<bool> = family.iter().map(|(method, ..)| enough(method)).collect();
        let mut lines = lines.into_iter();
        family.retain(|placed| {
            let is_line = lines.next().unwrap_or(false);
            if !is_line {
                rest.push(placed.2);
            }
            is_line
        });
    }
    families.retain(|(_, family)| !family.is_empty());
    (families, rest)
}

/// Cases whose workloads are numbers of threads, one among them; and the others.
fn by_threads<'a>(cases: Vec<&'a Case>) -> (Vec<Placed<'a>>, Vec<&'a Case>) {
    let threads = |case: &Case| {
        let (_, label) = parts(&case.id)?;
        label.parse::<u32>().ok().filter(|&threads| threads > 0)
    };
    let method = |case: &'_ Case| parts(&case.id).map(|(method, _)| method.to_owned());
    let alone: Vec<String> = cases
        .iter()
        .filter(|case| threads(case) == Some(1))
        .filter_map(|case| method(case))
        .collect();
    let (placed, rest): (Vec<&Case>, Vec<&Case>) = cases.into_iter().partition(|case| {
        threads(case).is_some() && method(case).is_some_and(|method| alone.contains(&method))
    });
    let place = |case: &'a Case| {
        let (method, label) = parts(&case.id)?;
        Some((method, f64::from(label.parse::<u32>().ok()?), case))
    };
    (placed.into_iter().filter_map(place).collect(), rest)
}

fn role(look: usize) -> Role {
    if look < FOREGROUND { Role::Main(look) } else { Role::Beside }
}

/// A size on an axis, and what has it.
type Mark = (f64, &'static str);

fn marks(machine: &Machine) -> Vec<Mark> {
    machine.cache_bytes.iter().map(|&bytes| bytes as f64).zip(CACHES).collect()
}

/// One family of sizes: a line for each method, dashed ones for what was published.
fn sizes(
    unit: Unit,
    suffix: &str,
    cases: &[Placed<'_>],
    looks: &BTreeMap<&str, usize>,
    marks: &[Mark],
) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    let mut published = Lines::default();
    for (method, size, case) in cases {
        let look = looks.get(method).copied().unwrap_or(DISTINCT);
        let median = case.median();
        let label = format!("{}: {} {}", case.id, figure(median), unit.name());
        let point = Point { x: *size, y: median, label, hollow: false };
        push(&mut series, method, role(look), point);
        published.add(method, *size, &case.published);
    }
    series.sort_by_key(|series| match series.role {
        Role::Main(look) | Role::Published(look) => look,
        Role::Beside | Role::Ideal => DISTINCT,
    });
    let title = match suffix {
        "" => format!("{} by size", unit.name()),
        suffix => format!("{} by size, {}", unit.name(), suffix.trim_start_matches(['-', '+'])),
    };
    let description = describe(&series, Along::Bytes);
    series.extend(published.few(series.iter().filter(|s| matches!(s.role, Role::Main(_))).count()));
    Chart {
        title,
        description,
        along: Along::Bytes,
        x_label: "size",
        y_label: unit.name().to_owned(),
        series,
        marks: if unit == Unit::GibPerSecond { marks.to_vec() } else { Vec::new() },
        level: None,
    }
}

fn push(series: &mut Vec<Series>, name: &str, role: Role, point: Point) {
    match series.iter_mut().find(|series| series.name == name) {
        Some(series) => series.points.push(point),
        None => series.push(Series { name: name.to_owned(), role, points: vec![point] }),
    }
}

/// Published figures as lines, one for each name and CPU.
#[derive(Debug, Default)]
struct Lines(Vec<Series>);

impl Lines {
    fn add(&mut self, name: &str, x: f64, figures: &[Published]) {
        for published in figures {
            let name = format!("{name}, published: {}", published.cpu);
            let label =
                format!("{} on {}, {}", figure(published.value), published.cpu, published.source);
            let point = Point { x, y: published.value, label, hollow: false };
            push(&mut self.0, &name, Role::Ideal, point);
        }
    }

    /// The lines, if they are few enough not to hide what was measured; looks from this one on.
    fn few(self, first: usize) -> Vec<Series> {
        if self.0.len() > MOST_PUBLISHED {
            return Vec::new();
        }
        let looked = self.0.into_iter().enumerate();
        looked.map(|(index, s)| Series { role: Role::Published(first + index), ..s }).collect()
    }
}

/// All comparisons whose workloads are sizes, with the line of equal speed.
fn ratios_by_size(experiment: &Experiment, marks: &[Mark]) -> Vec<Chart> {
    let mut families: Vec<(&str, Vec<Compared<'_>>)> = Vec::new();
    for ratio in &experiment.ratios {
        let Some((methods, label)) = parts(&ratio.id) else { continue };
        let Some((size, suffix)) = size_and_suffix(label) else { continue };
        match families.iter_mut().find(|(other, _)| *other == suffix) {
            Some((_, family)) => family.push((methods, size, ratio)),
            None => families.push((suffix, vec![(methods, size, ratio)])),
        }
    }
    let lines = |(suffix, family): (&str, Vec<Compared<'_>>)| {
        let sizes = |methods: &str| {
            distinct(
                family.iter().filter(|(other, ..)| *other == methods).map(|(_, size, _)| *size),
            )
        };
        let enough = |(methods, ..): &&Compared<'_>| sizes(methods) >= LEAST_SIZES;
        let lines: Vec<_> = family.iter().filter(enough).copied().collect();
        (!lines.is_empty()).then(|| ratio_chart(suffix, &lines, marks))
    };
    families.into_iter().filter_map(lines).collect()
}

fn ratio_chart(suffix: &str, family: &[Compared<'_>], marks: &[Mark]) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    let mut published = Lines::default();
    for (methods, size, ratio) in family {
        let name = methods.replacen("-vs-", " → ", 1);
        let unlike = if ratio.like_for_like { "" } else { ", not like for like" };
        let label = format!("{}: {} times as fast{unlike}", ratio.id, figure(ratio.median));
        let look = series.iter().position(|s| s.name == name).unwrap_or(series.len());
        let point = Point { x: *size, y: ratio.median, label, hollow: !ratio.like_for_like };
        push(&mut series, &name, role(look), point);
        published.add(&name, *size, &ratio.published);
    }
    let description = describe(&series, Along::Bytes);
    let measured = series.len();
    series.extend(published.few(measured));
    let suffix = suffix.trim_start_matches(['-', '+']);
    let comma = if suffix.is_empty() { "" } else { ", " };
    Chart {
        title: format!("Times as fast, by size{comma}{suffix} (hollow: not like for like)"),
        description,
        along: Along::Bytes,
        x_label: "size",
        y_label: "times as fast".to_owned(),
        series,
        marks: marks.to_vec(),
        level: Some(1.0),
    }
}

/// How much faster several threads are than one, from the ratios that say so.
fn speed_ups(experiment: &Experiment, cases: &[Placed<'_>]) -> Option<Chart> {
    let mut series: Vec<Series> = Vec::new();
    let mut most = 1.0_f64;
    for (method, threads, case) in cases {
        let against_one = |ratio: &&Ratio| {
            ratio.subject == case.id && parts(&ratio.baseline) == Some((*method, "1"))
        };
        let Some(ratio) = experiment.ratios.iter().find(against_one) else { continue };
        most = most.max(*threads);
        let look = series.iter().position(|s| s.name == **method).unwrap_or(series.len());
        let one = Point { x: 1.0, y: 1.0, label: format!("{method}, one thread"), hollow: false };
        if look == series.len() {
            push(&mut series, method, role(look), one);
        }
        let label = format!("{}: {} times as fast", ratio.id, figure(ratio.median));
        let point = Point { x: *threads, y: ratio.median, label, hollow: !ratio.like_for_like };
        push(&mut series, method, role(look), point);
    }
    if series.is_empty() {
        return None;
    }
    let description = describe(&series, Along::Threads);
    let ideal = [1.0, most].map(|x| Point { x, y: x, label: String::new(), hollow: false });
    series.push(Series { name: "ideal".to_owned(), role: Role::Ideal, points: ideal.into() });
    Some(Chart {
        title: "Times as fast as one thread".to_owned(),
        description,
        along: Along::Threads,
        x_label: "threads",
        y_label: "times as fast".to_owned(),
        series,
        marks: Vec::new(),
        level: None,
    })
}

/// One operation from its first call on.
fn by_call(sequence: &Sequence) -> Chart {
    let unit = sequence.unit.name();
    let point = |x: usize, y: f64, name: &str| Point {
        x: x as f64,
        y,
        label: format!("{name}: {} {unit}", figure(y)),
        hollow: false,
    };
    let calls = sequence.calls.iter().enumerate();
    let calls = calls.map(|(before, &y)| point(before + 1, y, &format!("call {}", before + 1)));
    let calls =
        Series { name: "call by call".to_owned(), role: Role::Main(0), points: calls.collect() };
    let description = describe(std::slice::from_ref(&calls), Along::Calls);
    let level = |(index, (name, y)): (usize, &(String, f64))| Series {
        name: name.clone(),
        role: Role::Published(index + 1),
        points: [1, sequence.calls.len()].map(|x| point(x, *y, name)).into(),
    };
    let levels: Vec<Series> = sequence.levels.iter().enumerate().map(level).collect();
    let beside = sequence.levels.iter().map(|(name, y)| format!(" {name}: {}.", figure(*y)));
    Chart {
        title: format!("{} of a process's first calls, {unit}", sequence.id),
        description: description + &beside.collect::<String>(),
        along: Along::Calls,
        x_label: "call",
        y_label: unit.to_owned(),
        series: std::iter::once(calls).chain(levels).collect(),
        marks: Vec::new(),
        level: None,
    }
}

/// The points of what the drawing is about, in words.
fn describe(series: &[Series], along: Along) -> String {
    let x = |x: f64| match along {
        Along::Bytes => Size(x as usize).to_string(),
        Along::Threads => format!("{x} threads"),
        Along::Calls => format!("call {x}"),
    };
    let of = |series: &Series| {
        let points =
            series.points.iter().map(|point| format!("{} at {}", figure(point.y), x(point.x)));
        format!("{}: {}", series.name, points.collect::<Vec<_>>().join(", "))
    };
    let main = series.iter().filter(|series| series.role != Role::Beside);
    main.map(of).collect::<Vec<_>>().join(". ") + "."
}

/// The rest, by unit and workload.
fn groups<'a>(cases: &[&'a Case], looks: &BTreeMap<&str, usize>) -> Vec<(Unit, Vec<Group<'a>>)> {
    let mut units: Vec<(Unit, Vec<Group<'a>>)> = Vec::new();
    for case in cases {
        let (method, workload) = parts(&case.id).unwrap_or((&case.id, ""));
        let look = looks.get(method).map_or(0, |look| look % DISTINCT);
        let index = units.iter().position(|(unit, _)| *unit == case.unit).unwrap_or_else(|| {
            units.push((case.unit, Vec::new()));
            units.len() - 1
        });
        let groups = &mut units[index].1;
        match groups.iter_mut().find(|group| group.name == workload) {
            Some(group) => group.rows.push((method, look, case)),
            None => groups.push(Group { name: workload, rows: vec![(method, look, case)] }),
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_drawn_with_what_they_are_compared_with() {
        let sequence = Sequence {
            id: "learn/1GiB".to_owned(),
            unit: Unit::GibPerSecond,
            calls: vec![9.0, 11.0, 12.0],
            levels: vec![("memcpy".to_owned(), 8.0), ("best: movdir64b".to_owned(), 12.5)],
        };
        let experiment = Experiment { sequences: vec![sequence], ..Experiment::default() };
        let drawn = of(&experiment, &Machine::default());
        let [page] = &drawn[..] else { panic!("{} drawings", drawn.len()) };
        let page = page.clone().into_string();
        for words in [
            "9.00 at call 1, 11.0 at call 2, 12.0 at call 3.",
            "memcpy: 8.00. best: movdir64b: 12.5.",
            ">memcpy</li>",
            "call 3: 12.0 GiB/s",
            ">2</text>",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        // Of three calls, the third one has no label of its own.
        assert!(!page.contains(">3</text>"), "{page}");
    }
}
