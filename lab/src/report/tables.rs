//! The tables below the drawings, and the noise of an experiment.

use crate::finding::{notices, warnings};
use crate::record::{Experiment, Noise};
use crate::table::{figure, html, record};
use maud::{Markup, html};

/// All tables of an experiment.
pub(super) fn all(experiment: &Experiment) -> Markup {
    let notices = notices(experiment);
    html! {
        @for table in record::tables(experiment) { (html::render(&table)) }
        @if let Some(noise) = &experiment.noise { (conditions(noise)) }
        @if !notices.is_empty() {
            h4 { "To know before judging" }
            ul.notices { @for notice in notices { li { (notice) } } }
        }
    }
}

/// Warnings and failures, above everything else.
pub(super) fn of_warnings(experiment: &Experiment) -> Markup {
    list_of_warnings(&warnings(experiment))
}

pub(super) fn list_of_warnings(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            div.warnings { b { "Warnings" } ul { @for warning in warnings { li { (warning) } } } }
        }
    }
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
        @if !noise.counters.is_empty() { (html::render(&record::counted(&noise.counters))) }
    }
}
