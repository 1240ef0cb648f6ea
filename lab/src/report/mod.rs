//! One page about records, for a browser, and verdicts on published claims.

mod charts;
pub mod claims;
mod comparison;
mod plot;
mod rows;
mod tables;

use crate::EXPERIMENTS;
use crate::finding::finding;
use crate::record::compare::Comparison;
use crate::record::{Experiment, Machine, Record};
use hugekit_machine::size::Size;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// Nothing is fetched and nothing runs, whatever a record says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The page of these records, each with the name to call it by. Of several, the first is what the others
/// are compared with.
#[must_use]
pub fn page(records: &[(String, Record)]) -> String {
    let names: Vec<&str> = records.iter().map(|(name, _)| name.as_str()).collect();
    let title = format!("hugekit lab: {}", names.join(", "));
    let comparisons = comparisons(records);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "hugekit lab" }
                    p { "Published memory-management experiments, repeated on the machine named below. " b { "Above 1 is faster" } " in every ratio; losses are " b { "bold" } "; medians throughout." }
                }
                main {
                    @for (index, comparison) in comparisons.iter().enumerate() {
                        (comparison::section(index + 1, comparison))
                    }
                    @for (index, (name, record)) in records.iter().enumerate() {
                        (section(index + 1, name, record))
                    }
                }
                footer { p { "Made by hugekit " (env!("CARGO_PKG_VERSION")) ". Every number here is in the record, whose raw samples say more." } }
            }
        }
    };
    page.into_string()
}

fn comparisons(records: &[(String, Record)]) -> Vec<Comparison> {
    let Some(((before, first), others)) = records.split_first() else { return Vec::new() };
    others
        .iter()
        .map(|(after, record)| Comparison::between((before, first), (after, record)))
        .collect()
}

/// The section of one record.
fn section(number: usize, name: &str, record: &Record) -> Markup {
    let anchor = |experiment: &Experiment| format!("r{number}-{}", experiment.name);
    html! {
        section.record aria-labelledby={ "r" (number) } {
            h2 id={ "r" (number) } { "Record " (name) }
            (machine(&record.machine))
            @if !record.uncontrolled.is_empty() {
                p.hint { "Not controlled: " (record.uncontrolled.join("; ")) "." }
            }
            p { "Made by " code { (record.command) } ", " (record.made.strftime("%Y-%m-%d %H:%M UTC")) }
            nav aria-label={ "Experiments of " (name) } {
                h3 { "What was found" }
                p.hint { "Like for like only. A star marks a ratio that is not like for like, and a note below the table has the reason." }
                ul {
                    @for experiment in &record.experiments {
                        li { a href={ "#" (anchor(experiment)) } { (experiment.name) } ": " (finding(experiment)) }
                    }
                }
            }
            @for experiment in &record.experiments {
                (article(&anchor(experiment), experiment, record))
            }
            (claims::section(record))
        }
    }
}

fn machine(machine: &Machine) -> Markup {
    let caches = machine.cache_bytes.iter().map(|&bytes| Size(bytes).to_string());
    let memory = Size(usize::try_from(machine.memory_bytes).unwrap_or(usize::MAX));
    html! {
        dl {
            div { dt { "CPU" } dd { (machine.cpu) ", " (machine.cpus) " may be used" } }
            div { dt { "Caches: L1d, L2, last level" } dd { (caches.collect::<Vec<_>>().join(", ")) } }
            div { dt { "Memory" } dd { (memory) } }
            div { dt { "System" } dd { "Linux " (machine.kernel) @if let Some(host) = &machine.hypervisor { ", under " (host) } } }
            div { dt { "Hardware counters" } dd { (machine.hardware_counters) } }
        }
    }
}

/// The article of one experiment: its purpose, the finding, charts, tables, and the noise.
fn article(anchor: &str, experiment: &Experiment, record: &Record) -> Markup {
    html! {
        article #(anchor) data-experiment=(experiment.name) {
            h3 { (experiment.name) }
            p { (why(&experiment.name)) }
            p { "Repeat it: " code { (command_of(experiment, &record.command)) } }
            @if let Some(skipped) = &experiment.skipped {
                p.skipped { b { "Skipped: " } (skipped.reason) ". Remedy: " (skipped.remedy) "." }
            } @else {
                p.verdict { b { "Found: " } (finding(experiment)) }
                (tables::of_warnings(experiment))
                div.charts { @for plot in charts::of(experiment, &record.machine) { (plot.render()) } }
                (tables::all(experiment))
            }
        }
    }
}

/// The work it repeats, and the use of it.
fn why(name: &str) -> &'static str {
    let definition = EXPERIMENTS.iter().find(|definition| definition.name == name);
    definition.map_or("Made by a hugekit that knows more experiments than this one.", |one| one.why)
}

/// The run's command, reduced to this experiment and what bears on its result.
fn command_of(experiment: &Experiment, command: &str) -> String {
    let mut kept = vec!["hugekit", "lab", experiment.name.as_str()];
    let mut words = command.split(' ').skip(2);
    while let Some(word) = words.next() {
        match word {
            "--quick" | "--setup" => kept.push(word),
            "--memory" | "--rounds" | "--routine" => {
                kept.extend([word].into_iter().chain(words.next()));
            }
            _ if word.starts_with("--memory=") || word.starts_with("--rounds=") => kept.push(word),
            _ => {}
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_reduced_to_what_bears_on_one_experiment() {
        let fork = Experiment { name: "fork".into(), ..Experiment::default() };
        let command = "hugekit lab stores fork --quick --memory 2GiB --json a.json --rounds=3";
        assert_eq!(command_of(&fork, command), "hugekit lab fork --quick --memory 2GiB --rounds=3");
        assert_eq!(command_of(&fork, "hugekit lab"), "hugekit lab fork");
    }

    #[test]
    fn what_a_record_says_is_text_and_never_markup() {
        let mut record = Record::parse(include_str!("../../tests/data/record.json")).unwrap();
        record.command = "<script>alert(1)</script>".into();
        record.experiments[0].name = "\"><img src=x>".into();
        record.experiments[0].cases[0].id = "a/<b>/<i>".into();
        let page = page(&[("<name>".into(), record)]);
        for injected in ["<script", "<img", "<b>/", "<i>", "<name>"] {
            assert!(!page.contains(injected), "{injected}");
        }
    }

    #[test]
    fn a_page_refers_to_nothing_outside() {
        let record = Record::parse(include_str!("../../tests/data/record.json")).unwrap();
        let page = page(&[("a".into(), record.clone()), ("b".into(), record)]);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_namespace.contains(outside), "{outside}");
        }
    }
}
