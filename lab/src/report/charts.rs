//! Which drawings an experiment gets: decided by what its workloads are, never by its name.
//!
//! - workloads that are sizes, three or more: lines by size, and the ratios by size with what was
//!   published; one drawing for what follows the size in a label (`-cold`, `+touch-4KiB`);
//! - workloads that are numbers of threads: speed-up over one, and the ideal;
//! - operations call by call: a line by call, and what they are compared with as level ones;
//! - single events: histograms, and what a writer felt over time (`rows.rs`);
//! - everything else: the samples of all rounds, and their median (`rows.rs`).

use std::collections::BTreeMap;

use crate::record::{Case, Experiment, Machine, Published, Ratio, Sequence, Unit, parts};
use crate::table::record::grouped;
use crate::table::{figure, sides};
use hugekit_machine::size::Size;

use super::plot::{LOOKS, Mark, MarkLook, Plot, PlotAxis};
use super::rows;

/// Sizes below which a line says no more than points do.
const LEAST_SIZES: usize = 3;

/// More published lines than these hide what was measured; the table has them all.
const MOST_PUBLISHED: usize = 3;

const CACHES: [&str; 3] = ["L1d", "L2", "last level"];

const HEIGHT: u32 = 520;

/// Each method's look: the measured ones of most comparisons have one of their own.
pub(super) type Looks<'a> = BTreeMap<&'a str, usize>;

/// All drawings of an experiment.
pub(super) fn of(experiment: &Experiment, machine: &Machine) -> Vec<Plot> {
    let looks = looks(experiment);
    let caches = machine.cache_bytes.iter().map(|&bytes| bytes as f64).zip(CACHES);
    let caches: Vec<(f64, &str)> = caches.collect();
    let sized = experiment.cases.iter().filter_map(|case| {
        let (method, size, suffix) = sized(&case.id)?;
        Some(((case.unit, suffix), Sized { name: method, size, of: case }))
    });
    let mut rest: Vec<&Case> = experiment.cases.iter().collect();
    let mut drawn = Vec::new();
    let mut has_bandwidth = false;
    for ((unit, suffix), family) in grouped(sized) {
        let family = with_enough_sizes(family);
        if !family.is_empty() {
            rest.retain(|case| family.iter().all(|one| one.of.id != case.id));
            // Only where sizes are of what passes through a cache do its marks say anything.
            let is_bandwidth = unit == Unit::GibPerSecond;
            has_bandwidth |= is_bandwidth;
            drawn.push(by_size(
                unit,
                suffix,
                &family,
                &looks,
                if is_bandwidth { &caches } else { &[] },
            ));
        }
    }
    drawn.extend(ratios_by_size(experiment, if has_bandwidth { &caches } else { &[] }));
    drawn.extend(speed_ups(experiment, &mut rest));
    drawn.extend(experiment.sequences.iter().map(by_call));
    drawn.extend(rows::of(experiment, &rest, &looks));
    drawn
}

/// First the methods of the first comparison, then those that most comparisons are of.
fn looks(experiment: &Experiment) -> Looks<'_> {
    let fair = experiment.ratios.iter().filter(|ratio| !ratio.id.contains("/best-vs-"));
    let first = experiment.ratios.iter().take(1);
    let first = first.flat_map(|ratio| [(ratio.subject.as_str(), 2000), (&ratio.baseline, 1000)]);
    let compared = fair.flat_map(|ratio| [(ratio.baseline.as_str(), 1), (&ratio.subject, 1)]);
    let all = first.chain(compared).chain(experiment.cases.iter().map(|case| (&*case.id, 1)));
    let methods = all.filter_map(|(id, count)| Some((parts(id)?.0, count)));
    let mut counts = grouped(methods);
    counts.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().sum::<u32>()));
    counts.into_iter().enumerate().map(|(look, (name, _))| (name, look)).collect()
}

/// The last look is for lines beside the others.
fn main_look(look: usize) -> MarkLook {
    if look < LOOKS - 1 { MarkLook::Main(look) } else { MarkLook::Beside }
}

struct Sized<'a, T> {
    name: &'a str,
    size: f64,
    of: &'a T,
}

/// Method or methods, the size that the workload of an ID begins with, and what follows it.
fn sized(id: &str) -> Option<(&str, f64, &str)> {
    let (method, label) = parts(id)?;
    let end = label.find(['-', '+']).unwrap_or(label.len());
    let (size, suffix) = label.split_at(end);
    let starts_as_size = size.ends_with('B') && size.starts_with(|c: char| c.is_ascii_digit());
    let bytes = starts_as_size.then(|| size.parse::<Size>().ok())??;
    Some((method, bytes.0 as f64, suffix))
}

/// Keeps those whose method has enough sizes for a line.
fn with_enough_sizes<T>(family: Vec<Sized<'_, T>>) -> Vec<Sized<'_, T>> {
    let sizes = |name: &str| {
        let of_name = family.iter().filter(|one| one.name == name);
        grouped(of_name.map(|one| (one.size.to_bits(), ()))).len()
    };
    let enough: Vec<bool> = family.iter().map(|one| sizes(one.name) >= LEAST_SIZES).collect();
    let kept = family.into_iter().zip(enough).filter(|(_, enough)| *enough);
    kept.map(|(one, _)| one).collect()
}

/// Points by one name, hollow if not like for like.
struct ChartLine {
    name: String,
    look: MarkLook,
    points: Vec<(f64, f64, bool)>,
}

/// The published figures beside measured ones, a line for each CPU; none if they are so many that they would hide
/// what was measured.
fn published<'a>(
    figures: impl Iterator<Item = (&'a str, f64, &'a [Published])>,
    first_look: usize,
) -> Vec<ChartLine> {
    let points = figures.flat_map(|(name, x, figures)| {
        figures
            .iter()
            .map(move |one| (format!("{name}, published: {}", one.cpu), (x, one.value, false)))
    });
    let lines = grouped(points);
    let few = if lines.len() > MOST_PUBLISHED { Vec::new() } else { lines };
    let line = |(look, (name, points))| ChartLine { name, look: MarkLook::Dashed(look), points };
    (first_look..).zip(few).map(line).collect()
}

/// The meaning of the x axis, which decides how its values are printed.
#[derive(Clone, Copy)]
enum Along {
    Bytes,
    Threads,
    Calls,
}

impl Along {
    fn print(self, x: f64) -> String {
        match self {
            Self::Bytes => Size(x as usize).to_string(),
            Self::Threads | Self::Calls => format!("{x}"),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "size",
            Self::Threads => "threads",
            Self::Calls => "call",
        }
    }
}

/// A drawing of lines, with vertical rules at `marks` and a horizontal one at `level`.
fn plot(
    title: String,
    along: Along,
    y_label: &str,
    lines: Vec<ChartLine>,
    marks: &[(f64, &str)],
    level: Option<f64>,
) -> Plot {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut xs: Vec<f64> = points().map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    // Of many calls, every label would touch its neighbours.
    let has_label = |x: &f64| !matches!(along, Along::Calls) || (*x as u64).is_power_of_two();
    let labels = xs.iter().filter(|x| has_label(x)).map(|&x| (x, along.print(x)));
    let x = PlotAxis::log(&xs).labelled(labels);
    let y = PlotAxis::of(&points().map(|point| point.1).chain(level).collect::<Vec<_>>());
    let mut drawn = Vec::new();
    for (at, name) in marks.iter().filter(|(at, _)| (x.from..=x.to).contains(at)) {
        drawn.push(Mark::Line(MarkLook::Rule, vec![(*at, y.from), (*at, y.to)]));
        drawn.push(Mark::Words((*at, y.to), (*name).to_owned()));
    }
    drawn.extend(
        level.map(|level| Mark::Line(MarkLook::Rule, vec![(x.from, level), (x.to, level)])),
    );
    // The drawing's subject comes to lie above the rest.
    let (subjects, others): (Vec<&ChartLine>, Vec<&ChartLine>) =
        lines.iter().partition(|line| matches!(line.look, MarkLook::Main(_)));
    for ChartLine { look, points, .. } in others.into_iter().chain(subjects) {
        drawn.push(Mark::Line(*look, points.iter().map(|&(x, y, _)| (x, y)).collect()));
        if let MarkLook::Main(look) | MarkLook::Dashed(look) = *look {
            let point = |&(x, y, is_hollow)| Mark::Point { look, at: (x, y), is_hollow };
            drawn.extend(points.iter().map(point));
        }
    }
    let description = describe(&title, &lines, along);
    let (y_label, legend) = (y_label.to_owned(), legend(lines));
    let x_label = along.name();
    Plot { title, description, x, y, x_label, y_label, height: HEIGHT, marks: drawn, legend }
}

/// The points of what the drawing is about, in words.
fn describe(title: &str, lines: &[ChartLine], along: Along) -> String {
    let of = |line: &ChartLine| {
        let point = |&(x, y, _): &(f64, f64, bool)| {
            format!("{} at {} {}", figure(y), along.name(), along.print(x))
        };
        format!("{}: {}", line.name, line.points.iter().map(point).collect::<Vec<_>>().join(", "))
    };
    let lines = lines.iter().filter(|line| line.look != MarkLook::Beside).map(of);
    format!("{title}. {}.", lines.collect::<Vec<_>>().join(". "))
}

/// Lines that the drawing is not about have one entry together.
fn legend(lines: Vec<ChartLine>) -> Vec<(MarkLook, String)> {
    let (beside, named): (Vec<ChartLine>, Vec<ChartLine>) =
        lines.into_iter().partition(|line| line.look == MarkLook::Beside);
    let others: Vec<String> = beside.into_iter().map(|line| line.name).collect();
    let others = (!others.is_empty()).then(|| (MarkLook::Beside, others.join(", ")));
    named.into_iter().map(|line| (line.look, line.name)).chain(others).collect()
}

/// `-cold` as `, cold`.
fn of_suffix(suffix: &str) -> String {
    let suffix = suffix.trim_start_matches(['-', '+']);
    if suffix.is_empty() { String::new() } else { format!(", {suffix}") }
}

/// Draws one family of sizes: a line for each method, and dashed lines for published figures.
fn by_size(
    unit: Unit,
    suffix: &str,
    family: &[Sized<'_, Case>],
    looks: &Looks<'_>,
    caches: &[(f64, &str)],
) -> Plot {
    let points = family.iter().map(|one| (one.name, (one.size, one.of.median(), false)));
    let look = |name: &str| looks.get(name).copied().unwrap_or(LOOKS);
    let mut lines: Vec<ChartLine> = grouped(points)
        .into_iter()
        .map(|(name, points)| ChartLine {
            name: name.to_owned(),
            look: main_look(look(name)),
            points,
        })
        .collect();
    lines.sort_by_key(|line| look(&line.name));
    let figures = family.iter().map(|one| (one.name, one.size, &one.of.published[..]));
    lines.extend(published(figures, LOOKS - 3));
    let title = format!("{} by size{}", unit.name(), of_suffix(suffix));
    plot(title, Along::Bytes, unit.name(), lines, caches, None)
}

/// All comparisons whose workloads are sizes, with the line of equal speed.
fn ratios_by_size(experiment: &Experiment, caches: &[(f64, &str)]) -> Vec<Plot> {
    let ratios = experiment.ratios.iter().filter_map(|ratio| {
        let (name, size, suffix) = sized(&ratio.id)?;
        Some((suffix, Sized { name, size, of: ratio }))
    });
    let drawing = |(suffix, family): (&str, Vec<Sized<'_, Ratio>>)| {
        let family = with_enough_sizes(family);
        let points =
            family.iter().map(|one| (one.name, (one.size, one.of.median, !one.of.like_for_like)));
        let mut lines: Vec<ChartLine> = grouped(points)
            .into_iter()
            .enumerate()
            .map(|(look, (name, points))| ChartLine {
                name: sides(name),
                look: main_look(look),
                points,
            })
            .collect();
        let figures = family.iter().map(|one| (one.name, one.size, &one.of.published[..]));
        let published = published(figures, lines.len()).into_iter();
        lines.extend(published.map(|line| ChartLine { name: sides(&line.name), ..line }));
        let title =
            format!("Times as fast, by size{} (hollow: not like for like)", of_suffix(suffix));
        (!family.is_empty())
            .then(|| plot(title, Along::Bytes, "times as fast", lines, caches, Some(1.0)))
    };
    grouped(ratios).into_iter().filter_map(drawing).collect()
}

/// Draws the speed-up of several threads over one, from their ratios. Takes all cases whose workload is a
/// number of threads from the rest, if one thread is among those of their method.
fn speed_ups(experiment: &Experiment, rest: &mut Vec<&Case>) -> Option<Plot> {
    let threads = |id: &str| parts(id)?.1.parse::<u32>().ok().filter(|&threads| threads > 0);
    let alone: Vec<String> = rest
        .iter()
        .filter(|case| threads(&case.id) == Some(1))
        .filter_map(|case| Some(parts(&case.id)?.0.to_owned()))
        .collect();
    let is_alone =
        |id: &str| parts(id).is_some_and(|(method, _)| alone.iter().any(|one| one == method));
    rest.retain(|case| threads(&case.id).is_none() || !is_alone(&case.id));
    let points = experiment.ratios.iter().filter_map(|ratio| {
        let (method, _) = parts(&ratio.subject)?;
        let against_one = is_alone(&ratio.subject) && parts(&ratio.baseline) == Some((method, "1"));
        let threads = threads(&ratio.subject).filter(|_| against_one)?;
        Some((method, (f64::from(threads), ratio.median, !ratio.like_for_like)))
    });
    let lines = grouped(points).into_iter().enumerate().map(|(look, (name, mut points))| {
        points.insert(0, (1.0, 1.0, false));
        ChartLine { name: name.to_owned(), look: main_look(look), points }
    });
    let mut lines: Vec<ChartLine> = lines.collect();
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.0).reduce(f64::max)?;
    let points = vec![(1.0, 1.0, false), (most, most, false)];
    lines.push(ChartLine { name: "ideal".to_owned(), look: MarkLook::Rule, points });
    let title = "Times as fast as one thread".to_owned();
    Some(plot(title, Along::Threads, "times as fast", lines, &[], None))
}

/// Draws an operation from its first call on.
fn by_call(sequence: &Sequence) -> Plot {
    let unit = sequence.unit.name();
    let calls = sequence.calls.iter().enumerate();
    let points = calls.map(|(before, &y)| ((before + 1) as f64, y, false)).collect();
    let calls = ChartLine { name: "call by call".to_owned(), look: MarkLook::Main(0), points };
    let level = |(look, (name, y)): (usize, &(String, f64))| {
        let points = [1, sequence.calls.len()].map(|x| (x as f64, *y, false)).into();
        ChartLine { name: name.clone(), look: MarkLook::Dashed(look), points }
    };
    let levels = (1..).zip(&sequence.levels).map(level);
    let title = format!("{} of a process's first calls, {unit}", sequence.id);
    plot(title, Along::Calls, unit, std::iter::once(calls).chain(levels).collect(), &[], None)
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
        let [plot] = &drawn[..] else { panic!("{} drawings", drawn.len()) };
        let page = plot.render().into_string();
        for words in [
            "9.00 at call 1, 11.0 at call 2, 12.0 at call 3.",
            "memcpy: 8.00 at call 1, 8.00 at call 3. best: movdir64b: 12.5 at",
            "memcpy</li>",
            "<polyline",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        // Of three calls, the third one has no label of its own.
        assert_eq!(plot.x.ticks().iter().map(|(x, _)| *x).collect::<Vec<_>>(), [1.0, 2.0]);
    }

    #[test]
    fn sizes_and_threads_have_lines_and_the_rest_has_rows() {
        let case = |name: &str, samples: &[f64]| {
            Case::new(format!("x/{name}"), Unit::GibPerSecond, samples.to_vec())
        };
        let sizes = ["a/4KiB", "a/1MiB", "a/1GiB"].map(|name| case(name, &[1.0, 2.0]));
        let threads = ["b/1", "b/2"].map(|name| case(name, &[1.0, 2.0]));
        let mut experiment = Experiment::new("x");
        experiment.cases =
            sizes.into_iter().chain(threads).chain([case("c/odd", &[3.0])]).collect();
        experiment.ratio("serial-vs-threads/b/2", ("b/1", "b/2"), None);
        let titles: Vec<String> =
            of(&experiment, &Machine::default()).into_iter().map(|plot| plot.title).collect();
        assert_eq!(titles.len(), 3, "{titles:?}");
        assert!(titles[0].starts_with("GiB/s by size"), "{titles:?}");
        assert!(titles[1].starts_with("Times as fast as one thread"), "{titles:?}");
        assert!(titles[2].starts_with("Medians"), "{titles:?}");
    }
}
