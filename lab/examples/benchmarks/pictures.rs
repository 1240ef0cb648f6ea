//! The pictures: all ratios of the kept records, and the cases that `benchmarks.toml` names.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use hugekit_lab::record::{Record, Unit};
use hugekit_lab::table::Figure;
use hugekit_terminal::text::wrap;
use serde::Deserialize;

use super::figure::find;
use super::page::Page;
use super::svg::{DecadeAxis, Drawing, StyleClass};

/// Columns of prose in a Markdown page.
const MARKDOWN: usize = 100;

/// A file in `docs/pictures`, and its text for readers who do not see it.
pub(crate) struct Picture {
    pub(crate) name: String,
    pub(crate) words: String,
    pub(crate) svg: String,
}

impl Picture {
    /// The image in a Markdown page, with the way from that page to `docs`.
    pub(crate) fn link(&self, way: &str) -> String {
        let image = format!("![{}]({way}pictures/{}.svg)", self.words, self.name);
        wrap(&image, MARKDOWN).join("\n") + "\n"
    }
}

/// A picture of times: a line for each row, from one case to another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    pub(crate) name: String,
    title: String,
    set: String,
    /// The names of hugekit's methods together, and of the others.
    legend: [String; 2],
    groups: Vec<(String, Vec<TimesRow>)>,
}

/// The name of a row, the case at which its line begins, the case at which the line ends, and whether the method is one of
/// hugekit.
#[derive(Debug, Deserialize)]
struct TimesRow(String, String, String, bool);

impl Times {
    /// The cases that the picture needs.
    pub(crate) fn cases(&self) -> impl Iterator<Item = &str> {
        let lines = self.groups.iter().flat_map(|(_, lines)| lines);
        lines.flat_map(|TimesRow(_, from, to, _)| [from.as_str(), to.as_str()])
    }

    pub(crate) fn draw(&self, page: &Page) -> Result<Picture> {
        let machines = page.by_machine();
        let (_, runs) = machines
            .iter()
            .find(|(name, _)| *name == self.set)
            .with_context(|| format!("picture {}: no set has the name {}", self.name, self.set))?;
        let find = |id: &str| {
            let figure = find(runs, id).filter(|figure| figure.unit() == Some(Unit::Microseconds));
            figure.with_context(|| format!("picture {}: no kept time has {id}", self.name))
        };
        let all: Vec<Figure> = self.cases().map(find).collect::<Result<_>>()?;
        let axis = DecadeAxis::of(all.iter().map(|figure| figure.value() / 1e3), |ms| match ms {
            ms if ms < 1000.0 => format!("{ms} ms"),
            ms => format!("{} s", ms / 1e3),
        });
        let mut drawing = Drawing::new(axis);
        let mut words = Vec::new();
        for (heading, lines) in &self.groups {
            drawing.heading(heading);
            let mut of_group = Vec::new();
            for TimesRow(name, from, to, is_ours) in lines {
                let (from, to) = (find(from)?.value() / 1e3, find(to)?.value() / 1e3);
                let y = drawing.row(name, 27.0);
                let class = if *is_ours { StyleClass::Gain } else { StyleClass::Other };
                drawing.line(class, (from, to), y);
                drawing.dot(class, true, (to, y), 5.5);
                drawing.dot(class, false, (from, y), 4.5);
                let said = format!("{}, {}", milliseconds(from), milliseconds(to));
                drawing.words(&said, (from.min(to), from.max(to)), y);
                of_group.push(format!("{name} {said}"));
            }
            words.push(format!("{heading}: {}", of_group.join("; ")));
        }
        let words = format!("{}. {}.", self.title, words.join(". "));
        let legend = self.legend.iter().zip([StyleClass::Gain, StyleClass::Other]);
        let legend: Vec<_> = legend.map(|(name, class)| (class, false, name.clone())).collect();
        let svg = drawing.finish(&self.title, &words, &legend, None);
        Ok(Picture { name: self.name.clone(), words, svg })
    }
}

fn milliseconds(value: f64) -> String {
    format!("{} ms", hugekit_lab::table::figure(value))
}

/// A row of the picture of all ratios: its name, and the experiments whose ratios it has.
#[derive(Debug, Deserialize)]
pub(crate) struct RatioRow(String, Vec<String>);

/// The radius of a ratio's dot, and the distance of two dots beside each other.
const RADIUS: f64 = 3.0;
const STEP: f64 = 7.0;

/// The height of the highest stack of dots. Dots of higher stacks would overlap more.
const STACK: f64 = 50.0;

/// The ratio of hugekit to a method that is not hugekit's, for each such ratio and machine.
pub(crate) fn ratios(page: &Page, groups: &[RatioRow]) -> Result<Picture> {
    let mut of_experiments: BTreeMap<&str, Vec<Figure>> = BTreeMap::new();
    let machines = page.by_machine();
    for (_, runs) in &machines {
        for id in ids(runs).filter(|id| page.is_ours_against_others(id)) {
            let experiment = id.split('/').next().unwrap_or_default();
            of_experiments.entry(experiment).or_default().extend(find(runs, id));
        }
    }
    for experiment in of_experiments.keys() {
        let has = |group: &&RatioRow| group.1.iter().any(|name| name == experiment);
        ensure!(groups.iter().filter(has).count() == 1, "ratios: {experiment} is not in one row");
    }
    let values = || of_experiments.values().flatten().map(Figure::value);
    let mut drawing = Drawing::new(DecadeAxis::of(values(), |times| format!("{times}×")));
    for RatioRow(name, experiments) in groups {
        let figures = experiments.iter().filter_map(|name| of_experiments.get(name.as_str()));
        draw_row(&mut drawing, name, figures.flatten());
    }
    let count =
        |one| of_experiments.values().flatten().filter(|figure| class(figure) == one).count();
    let [faster, slower, equal] =
        [StyleClass::Gain, StyleClass::Loss, StyleClass::Other].map(count);
    let all = faster + slower + equal;
    let words = format!(
        "Each of the {all} ratios of hugekit to another method in the kept runs is a dot: hugekit is faster in {faster}, slower \
         in {slower}, and equal in {equal}"
    );
    let title = format!("How many times as fast hugekit is: all {all} ratios of the kept runs");
    let legend = [
        (StyleClass::Gain, false, format!("faster ({faster})")),
        (StyleClass::Loss, false, format!("slower ({slower})")),
        (StyleClass::Other, false, format!("equal ({equal})")),
        (StyleClass::Other, true, "hollow: not like for like".to_owned()),
    ];
    let svg = drawing.finish(&title, &format!("{words}."), &legend, Some(1.0));
    Ok(Picture { name: "ratios".to_owned(), words, svg })
}

/// The IDs of all ratios, each once.
fn ids<'a>(runs: &[&'a Record]) -> impl Iterator<Item = &'a str> + use<'a> {
    let experiments = runs.iter().flat_map(|run| &run.experiments);
    let ids = experiments.flat_map(|one| &one.ratios).map(|ratio| ratio.id.as_str());
    ids.collect::<std::collections::BTreeSet<_>>().into_iter()
}

/// Dots at the same place are stacked, so that none hides another.
fn draw_row<'a>(drawing: &mut Drawing, name: &str, figures: impl Iterator<Item = &'a Figure>) {
    let mut stacks: BTreeMap<i64, Vec<&Figure>> = BTreeMap::new();
    for figure in figures {
        let place = (drawing.place(figure.value()) / STEP).round() as i64;
        stacks.entry(place).or_default().push(figure);
    }
    let most = stacks.values().map(Vec::len).max().unwrap_or(0);
    let step = STEP.min(STACK / most as f64);
    let middle = drawing.row(name, (most as f64 * step + 14.0).max(30.0));
    for stack in stacks.values_mut() {
        stack.sort_by(|one, other| one.value().total_cmp(&other.value()));
        for (index, figure) in stack.iter().enumerate() {
            let y = middle + (index as f64 - (stack.len() - 1) as f64 / 2.0) * step;
            drawing.dot(class(figure), figure.is_noted(), (figure.value(), y), RADIUS);
        }
    }
}

/// A ratio that prints as 1.00 is neither a gain nor a loss.
fn class(ratio: &Figure) -> StyleClass {
    match ratio.value() {
        _ if ratio.is_loss() => StyleClass::Loss,
        value if value < 1.005 => StyleClass::Other,
        _ => StyleClass::Gain,
    }
}
