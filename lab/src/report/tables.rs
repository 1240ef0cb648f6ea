//! The tables below the drawings, which say all that these do.

use crate::finding::{elsewhere, figure, reasons};
use crate::record::{
    Case, Counters, Distribution, Experiment, Noise, Published, Ratio, Unit, parts,
};
use maud::{Markup, html};

use super::grouped;

/// Everything that an experiment has.
pub(super) fn all(experiment: &Experiment) -> Markup {
    let Experiment { cases, ratios, distributions, .. } = experiment;
    let by_unit = grouped(cases.iter().map(|case| (case.unit, case)));
    let elsewhere = elsewhere(experiment);
    let notices = experiment.memory.iter().chain(&experiment.notices).chain(&elsewhere);
    html! {
        @if !ratios.is_empty() { (compared(ratios)) }
        @for (unit, cases) in by_unit { (medians(unit, &cases)) }
        @if !distributions.is_empty() { (events(distributions)) }
        @if cases.iter().any(|case| !case.published.is_empty()) { (published(cases)) }
        @if let Some(noise) = &experiment.noise { (conditions(noise)) }
        @if notices.clone().next().is_some() {
            h4 { "To know before judging" }
            ul.notices { @for notice in notices { li { (notice) } } }
        }
    }
}

/// Warnings and failures, where no reader overlooks them.
pub(super) fn warnings(experiment: &Experiment) -> Markup {
    let failures = experiment.failures.iter();
    let failures = failures.map(|failure| format!("{} failed: {}", failure.case, failure.reason));
    let warnings = experiment.noise.iter().flat_map(|noise| noise.warnings.iter().cloned());
    list_of_warnings(&failures.chain(warnings).collect::<Vec<_>>())
}

pub(super) fn list_of_warnings(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            div.warnings { b { "Warnings" } ul { @for warning in warnings { li { (warning) } } } }
        }
    }
}

/// The heads of a table's columns, and the cells of its rows behind their heads. Words are broken into lines.
pub(super) struct Table<'a> {
    pub(super) caption: &'a str,
    pub(super) columns: Vec<&'a str>,
    pub(super) rows: Vec<(String, Vec<Cell>)>,
}

pub(super) enum Cell {
    Number(String),
    Strong(String),
    Words(Markup),
    ShortWords(String),
}

impl Table<'_> {
    /// Within a box of its own, which scrolls where the screen is narrower.
    pub(super) fn render(&self) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label=(self.caption) {
                table {
                    caption { (self.caption) }
                    thead { tr { th {} @for column in &self.columns { th scope="col" { (column) } } } }
                    tbody {
                        @for (head, cells) in &self.rows {
                            tr { th scope="row" { (head) } @for cell in cells { (cell.render()) } }
                        }
                    }
                }
            }
        }
    }
}

impl Cell {
    pub(super) fn figure(value: f64) -> Self {
        Self::Number(figure(value))
    }

    fn optional(value: Option<f64>) -> Self {
        Self::Number(value.map_or(String::new(), figure))
    }

    fn render(&self) -> Markup {
        match self {
            Self::Number(number) => html! { td { (number) } },
            Self::Strong(number) => html! { td { b { (number) } } },
            Self::Words(words) => html! { td.words { (words) } },
            Self::ShortWords(words) => html! { td.words.short { (words) } },
        }
    }
}

/// An ID without its experiment.
fn rest(id: &str) -> &str {
    id.split_once('/').map_or("", |(_, rest)| rest)
}

/// Methods by workloads.
fn medians(unit: Unit, cases: &[&Case]) -> Markup {
    let placed = || cases.iter().filter_map(|case| Some((parts(&case.id)?, *case)));
    let methods = grouped(placed().map(|((method, workload), case)| (method, (workload, case))));
    let workloads = grouped(placed().map(|((_, workload), _)| (workload, ())));
    let columns: Vec<&str> = workloads.iter().map(|(workload, _)| *workload).collect();
    let cell = |cases: &[(&str, &Case)], workload: &&str| {
        let case = cases.iter().find(|(other, _)| other == workload);
        Cell::optional(case.map(|(_, case)| case.median()))
    };
    let row = |(method, cases): (&str, Vec<(&str, &Case)>)| {
        (method.to_owned(), columns.iter().map(|workload| cell(&cases, workload)).collect())
    };
    let rows = methods.into_iter().map(row).collect();
    let caption = format!("Medians, {}", unit.name());
    Table { caption: &caption, columns: columns.clone(), rows }.render()
}

fn compared(ratios: &[Ratio]) -> Markup {
    let reasons = reasons(ratios);
    let fair = |ratio: &Ratio| {
        let index = reasons.iter().position(|reason| Some(*reason) == ratio.moved.as_deref());
        match (ratio.like_for_like, index) {
            (true, _) => "yes".to_owned(),
            (false, None) => "no".to_owned(),
            (false, Some(index)) => format!("no ({})", index + 1),
        }
    };
    let with_published = ratios.iter().any(|ratio| !ratio.published.is_empty());
    let row = |ratio: &Ratio| {
        let (methods, workload) = parts(&ratio.id).unwrap_or((&ratio.id, ""));
        let mut cells = vec![
            Cell::Strong(figure(ratio.median)),
            Cell::figure(ratio.min),
            Cell::figure(ratio.max),
            Cell::Number(ratio.pairs.to_string()),
            Cell::ShortWords(fair(ratio)),
        ];
        let each = ratio.published.iter().map(|one| (figure(one.value), source(one)));
        let published = html! { @for (value, source) in each { div { (value) " " (source) } } };
        cells.extend(with_published.then_some(Cell::Words(published)));
        (format!("{} {workload}", methods.replacen("-vs-", " → ", 1)), cells)
    };
    let mut columns = vec!["median", "min", "max", "pairs", "like for like"];
    columns.extend(with_published.then_some("published"));
    let caption = "How many times as fast, by pairs within a round";
    let rows = ratios.iter().map(row).collect();
    html! {
        (Table { caption, columns, rows }.render())
        @for (index, reason) in reasons.iter().enumerate() {
            p.hint { "Not like for like (" (index + 1) "): " (reason) "." }
        }
    }
}

fn events(distributions: &[Distribution]) -> Markup {
    let first = distributions.iter().take(1).flat_map(|first| &first.percentiles);
    let percents: Vec<f64> = first.map(|(percent, _)| *percent).collect();
    let name = |percent: &f64| match percent {
        100.0 => "max".to_owned(),
        percent => format!("p{percent}"),
    };
    let names: Vec<String> = percents.iter().map(name).collect();
    let row = |one: &Distribution| {
        let value = |percent: &f64| {
            let found = one.percentiles.iter().find(|(at, _)| at == percent);
            Cell::optional(found.map(|(_, value)| *value))
        };
        let count = Cell::Number(one.count.to_string());
        let head = format!("{}, {}", rest(&one.id), one.unit.name());
        (head, percents.iter().map(value).chain([count]).collect())
    };
    let columns = names.iter().map(String::as_str).chain(["count"]).collect();
    let rows = distributions.iter().map(row).collect();
    Table { caption: "Single events", columns, rows }.render()
}

/// The CPU with the spread, where the source says so, and the source.
fn source(published: &Published) -> Markup {
    let spread = published.spread_percent;
    let spread = spread.map_or(String::new(), |percent| format!(", ± {percent:.1} %"));
    html! { (published.cpu) (spread) ", " cite { (published.source) } }
}

fn published(cases: &[Case]) -> Markup {
    let figures =
        cases.iter().flat_map(|case| case.published.iter().map(move |figure| (case, figure)));
    let row = |(case, published): (&Case, &Published)| {
        let cells = vec![
            Cell::figure(case.median()),
            Cell::figure(published.value),
            Cell::Words(source(published)),
        ];
        (format!("{}, {}", rest(&case.id), case.unit.name()), cells)
    };
    let caption = "Published for the same method and workload";
    let rows = figures.map(row).collect();
    Table { caption, columns: vec!["here", "published", "where"], rows }.render()
}

/// Noise, and the counts of events.
fn conditions(noise: &Noise) -> Markup {
    let percent = |percent: Option<f64>| percent.map(|percent| format!("{} %", figure(percent)));
    let facts = [
        ("took", Some(format!("{} s", figure(noise.seconds)))),
        ("given to others by the hypervisor", percent(noise.steal_percent)),
        ("used by other processes, of one CPU", percent(noise.others_percent)),
        ("a thread waited for a CPU", percent(noise.waited_percent)),
        ("load average", noise.load_average.map(figure)),
        ("MHz", noise.megahertz.map(|(low, high)| format!("{} to {}", figure(low), figure(high)))),
    ];
    let facts = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    html! {
        h4 { "Meanwhile on the machine" }
        dl.facts { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } }
        @if !noise.counters.is_empty() { (counted(&noise.counters)) }
    }
}

fn counted(counters: &[Counters]) -> Markup {
    let names = counters.iter().flat_map(|one| one.per_round.keys());
    let names = grouped(names.map(|name| (name.as_str(), ())));
    let columns: Vec<&str> = names.into_iter().map(|(name, _)| name).collect();
    let row = |one: &Counters| {
        let cell = |name: &&str| Cell::optional(one.per_round.get(*name).copied());
        (rest(&one.id).to_owned(), columns.iter().map(cell).collect())
    };
    let caption = "Counted per round, preparation of the case included";
    Table { caption, columns: columns.clone(), rows: counters.iter().map(row).collect() }.render()
}
