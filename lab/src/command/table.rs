//! A record as tables of at most 80 columns.

// Writing to a String cannot fail, so the results of `writeln!` are dropped.
use std::fmt::Write;

use anstyle::Style;
use hugekit_lab::EXPERIMENTS;
use hugekit_lab::finding::{finding, notices};
use hugekit_lab::record::{Experiment, Machine, Record};
use hugekit_lab::table::record::tables;
use hugekit_lab::table::terminal;
use hugekit_machine::size::Size;

use super::claims;
use super::summary::{self, render_indented};
use hugekit_terminal::text::{COLUMNS, wrap};

const BOLD: Style = Style::new().bold();

/// The whole record, as a run prints it: the results first.
pub(super) fn whole(record: &Record) -> String {
    let mut text = summary::heading();
    for experiment in &record.experiments {
        text.push_str(&summary::line(&experiment.name, &finding(experiment)));
    }
    text + &details(record)
}

/// All but the results, which were printed while they came.
pub(super) fn details(record: &Record) -> String {
    let mut text = "\n".to_owned();
    render_machine(&mut text, &record.machine);
    record.experiments.iter().for_each(|experiment| render_experiment(&mut text, experiment));
    summary::render_uncontrolled(&mut text, record);
    claims::render(&mut text, record);
    text
}

pub(super) fn render_machine(text: &mut String, of: &Machine) {
    for line in wrap(&machine(of), COLUMNS) {
        text.push_str(&line);
        text.push('\n');
    }
}

fn machine(machine: &Machine) -> String {
    let hypervisor =
        machine.hypervisor.as_ref().map_or("no hypervisor".into(), |name| format!("under {name}"));
    format!(
        "{}, {} CPUs, {}, Linux {}, {hypervisor}; hardware counters {}",
        machine.cpu,
        machine.cpus,
        Size(usize::try_from(machine.memory_bytes).unwrap_or(usize::MAX)),
        machine.kernel,
        machine.hardware_counters
    )
}

fn render_experiment(text: &mut String, experiment: &Experiment) {
    let definition = EXPERIMENTS.iter().find(|definition| definition.name == experiment.name);
    let repeats = definition.map_or("", |definition| definition.repeats);
    let heading = wrap(&format!("{}: {repeats}", experiment.name), COLUMNS).join("\n  ");
    let _ = match heading.strip_prefix(&experiment.name) {
        Some(rest) => writeln!(text, "\n{BOLD}{}{BOLD:#}{rest}", experiment.name),
        // A name with spaces was broken too.
        None => writeln!(text, "\n{heading}"),
    };
    if let Some(skipped) = &experiment.skipped {
        render_indented(text, "", &format!("skipped: {}; {}", skipped.reason, skipped.remedy));
        return;
    }
    for table in tables(experiment) {
        let _ = write!(text, "\n{}", terminal::render(&table));
    }
    render_notes(text, experiment);
}

/// Facts that a reader of the tables must know, and then the warnings.
fn render_notes(text: &mut String, experiment: &Experiment) {
    text.push('\n');
    for notice in notices(experiment) {
        render_indented(text, "· ", &notice);
    }
    summary::render_warnings(text, experiment);
}

#[cfg(test)]
mod tests {
    use hugekit_lab::record::Failure;
    use hugekit_lab::record::Noise;
    use hugekit_machine::Root;

    use super::*;

    #[test]
    fn a_record_is_tables_of_80_columns() {
        let text = include_str!("../../tests/data/record.json");
        let mut record = Record::parse(text).unwrap();
        let warning =
            "the hypervisor gave 3.0 % of the CPUs' time to others: repeat when it does not";
        let noise = Noise { warnings: vec![warning.to_owned()], ..Noise::default() };
        record.experiments[0].noise = Some(noise);
        record.uncontrolled = vec!["which physical pages were given".to_owned()];
        let text = anstream::adapter::strip_str(&whole(&record)).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    #[ignore = "nightly: it prints many reports"]
    fn the_header_of_every_machine_fits_80_columns() {
        let text = include_str!("../../tests/data/record.json");
        for description in hugekit_invented_machines::MACHINES {
            let files = description.files().unwrap();
            let mut record = Record::parse(text).unwrap();
            record.machine = hugekit_lab::measure::machine::describe(&Root::at(files.path()));
            let plain = anstream::adapter::strip_str(&whole(&record)).to_string();
            assert!(plain.lines().all(|line| line.chars().count() <= COLUMNS), "{plain}");
            let header = plain.split("\n\n").nth(1).unwrap().replace('\n', " ");
            assert!(header.starts_with(&record.machine.cpu), "{header}");
            assert!(hugekit_lab::report::page(&[("a".into(), record)]).contains("</html>"));
        }
    }

    #[test]
    fn failures_stand_with_their_experiment_and_in_the_summary() {
        let failure = Failure { case: "fault/latency".into(), reason: "cannot map 512MiB".into() };
        let mut record = Record::parse(include_str!("../../tests/data/record.json")).unwrap();
        record.experiments = vec![Experiment {
            name: "fault".into(),
            failures: vec![failure],
            ..Experiment::default()
        }];
        let plain = anstream::adapter::strip_str(&whole(&record)).to_string();
        assert!(plain.contains("! fault/latency failed: cannot map 512MiB"), "{plain}");
        assert!(plain.contains("fault      failed, cannot map 512MiB"), "{plain}");
        let page = hugekit_lab::report::page(&[("a".into(), record)]);
        assert!(page.contains("fault/latency failed: cannot map 512MiB"), "{page}");
    }
}
