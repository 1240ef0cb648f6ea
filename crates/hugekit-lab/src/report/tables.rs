//! The tables below the drawings, which say all that these do.

use maud::{Markup, html};

use super::grouped;
use crate::record::finding::{elsewhere, figure, reasons};
use crate::record::published::Published;
use crate::record::{Case, Counters, Distribution, Experiment, Noise, Ratio, Unit, parts};

/// Everything that an experiment has.
pub(super) fn all(experiment: &Experiment) -> Markup {
    html! {
        @if !experiment.ratios.is_empty() { (ratios(&experiment.ratios)) }
        @for (unit, cases) in grouped(experiment.cases.iter().map(|case| (case.unit, case))) { (medians(unit, &cases)) }
        @if !experiment.distributions.is_empty() { (distributions(&experiment.distributions)) }
        @if experiment.cases.iter().any(|case| !case.published.is_empty()) { (published(&experiment.cases)) }
        @if let Some(noise) = &experiment.noise { (conditions(noise)) }
        @let elsewhere = elsewhere(experiment);
        @if experiment.memory.is_some() || !experiment.notices.is_empty() || !elsewhere.is_empty() {
            h4 { "To know before judging" }
            ul.notices { @for notice in experiment.memory.iter().chain(&experiment.notices).chain(&elsewhere) { li { (notice) } } }
        }
    }
}

/// Warnings and failures, where no reader overlooks them.
pub(super) fn warnings(experiment: &Experiment) -> Markup {
    let failures = experiment.failures.iter();
    let failures = failures.map(|failure| format!("{} failed: {}", failure.case, failure.reason));
    let warnings = experiment.noise.iter().flat_map(|noise| noise.warnings.iter().cloned());
    let warnings = failures.chain(warnings);
    html! {
        @if warnings.clone().next().is_some() {
            div.warnings {
                b { "Warnings" }
                ul { @for warning in warnings { li { (warning) } } }
            }
        }
    }
}

/// A table within a box of its own, which scrolls where the screen is narrower.
pub(super) fn scrolling(caption: &str, table: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table { caption { (caption) } (table) }
        }
    }
}

/// Methods by workloads.
fn medians(unit: Unit, cases: &[&Case]) -> Markup {
    let placed = || cases.iter().filter_map(|case| Some((parts(&case.id)?, *case)));
    let methods = grouped(placed().map(|((method, workload), case)| (method, (workload, case))));
    let workloads = grouped(placed().map(|((_, workload), _)| (workload, ())));
    let cell = |cases: &[(&str, &Case)], workload: &str| {
        let case = cases.iter().find(|(other, _)| *other == workload);
        case.map_or(String::new(), |(_, case)| figure(case.median()))
    };
    scrolling(
        &format!("Medians, {}", unit.name()),
        &html! {
            thead { tr { th {} @for (workload, _) in &workloads { th scope="col" { (workload) } } } }
            tbody {
                @for (method, cases) in &methods {
                    tr { th scope="row" { (method) } @for (workload, _) in &workloads { td { (cell(cases, workload)) } } }
                }
            }
        },
    )
}

fn ratios(ratios: &[Ratio]) -> Markup {
    let name = |ratio: &Ratio| -> String {
        let (methods, workload) = parts(&ratio.id).unwrap_or((&ratio.id, ""));
        format!("{} {workload}", methods.replacen("-vs-", " → ", 1))
    };
    let with_published = ratios.iter().any(|ratio| !ratio.published.is_empty());
    let reasons = reasons(ratios);
    let number = |ratio: &Ratio| {
        let index = reasons.iter().position(|reason| Some(*reason) == ratio.moved.as_deref());
        index.map(|index| index + 1)
    };
    html! {
        (scrolling("How many times as fast, by pairs within a round", &html! {
            thead { tr {
                th {} th scope="col" { "median" } th scope="col" { "min" } th scope="col" { "max" } th scope="col" { "pairs" }
                th.words.short scope="col" { "like for like" }
                @if with_published { th.words scope="col" { "published" } }
            } }
            tbody {
                @for ratio in ratios {
                    tr {
                        th scope="row" { (name(ratio)) }
                        td { b { (figure(ratio.median)) } } td { (figure(ratio.min)) } td { (figure(ratio.max)) } td { (ratio.pairs) }
                        td.words.short { @if ratio.like_for_like { "yes" } @else { "no" @if let Some(number) = number(ratio) { " (" (number) ")" } } }
                        @if with_published { td.words {
                            @for published in &ratio.published { div { (figure(published.value)) " " (published.cpu) (spread(published)) ", " cite { (published.source) } } }
                        } }
                    }
                }
            }
        }))
        @for (index, reason) in reasons.iter().enumerate() { p.hint { "Not like for like (" (index + 1) "): " (reason) "." } }
    }
}

fn distributions(distributions: &[Distribution]) -> Markup {
    let percents: Vec<f64> = distributions.first().map_or(Vec::new(), |first| {
        first.percentiles.iter().map(|(percent, _)| *percent).collect()
    });
    let value = |distribution: &Distribution, percent: f64| {
        let found = distribution.percentiles.iter().find(|(at, _)| *at == percent);
        found.map_or(String::new(), |(_, value)| figure(*value))
    };
    let name =
        |percent: f64| if percent == 100.0 { "max".to_owned() } else { format!("p{percent}") };
    scrolling(
        "Single events",
        &html! {
            thead { tr { th {} @for percent in &percents { th scope="col" { (name(*percent)) } } th scope="col" { "count" } } }
            tbody {
                @for distribution in distributions {
                    tr {
                        th scope="row" { (distribution.id.split_once('/').map_or("", |(_, rest)| rest)) ", " (distribution.unit.name()) }
                        @for percent in &percents { td { (value(distribution, *percent)) } }
                        td { (distribution.count) }
                    }
                }
            }
        },
    )
}

/// `, ± 0.4 %`, where the source says so.
fn spread(published: &Published) -> String {
    published.spread_percent.map_or(String::new(), |percent| format!(", ± {percent:.1} %"))
}

fn published(cases: &[Case]) -> Markup {
    let rows =
        cases.iter().flat_map(|case| case.published.iter().map(move |figure| (case, figure)));
    scrolling(
        "Published for the same method and workload",
        &html! {
            thead { tr { th {} th scope="col" { "here" } th scope="col" { "published" } th.words scope="col" { "where" } } }
            tbody {
                @for (case, published) in rows {
                    tr {
                        th scope="row" { (case.id.split_once('/').map_or("", |(_, rest)| rest)) ", " (case.unit.name()) }
                        td { (figure(case.median())) } td { (figure(published.value)) }
                        td.words { (published.cpu) (spread(published)) ", " cite { (published.source) } }
                    }
                }
            }
        },
    )
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
    html! {
        h4 { "Meanwhile on the machine" }
        dl.facts {
            @for (name, value) in facts {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
        @if !noise.counters.is_empty() { (counted(&noise.counters)) }
    }
}

fn counted(counters: &[Counters]) -> Markup {
    let names = counters.iter().flat_map(|one| one.per_round.keys());
    let names: Vec<&str> =
        grouped(names.map(|name| (name.as_str(), ()))).into_iter().map(|(name, _)| name).collect();
    let cell =
        |one: &Counters, name: &str| one.per_round.get(name).map_or(String::new(), |n| figure(*n));
    scrolling(
        "Counted per round, preparation of the case included",
        &html! {
            thead { tr { th {} @for name in &names { th scope="col" { (name) } } } }
            tbody {
                @for one in counters {
                    tr { th scope="row" { (one.id.split_once('/').map_or("", |(_, rest)| rest)) } @for name in &names { td { (cell(one, name)) } } }
                }
            }
        },
    )
}
