//! A record as tables of at most 80 columns.

// Writing to a String cannot fail, so the results of `writeln!` are dropped.
use std::fmt::Write;

use anstyle::Style;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use hugekit_lab::EXPERIMENTS;
use hugekit_lab::finding::{elsewhere, figure, finding, reasons};
use hugekit_lab::record::Published;
use hugekit_lab::record::{Case, Distribution, Experiment, Machine, Ratio, Record, Unit, parts};
use hugekit_machine::size::Size;

use super::claims;
use super::summary::{self, render_indented};
use hugekit_terminal::text::{COLUMNS, wrap};

const WIDTH: u16 = COLUMNS as u16;

/// A longer name of a ratio leaves too little room for the numbers beside it.
const LONGEST_NAME: usize = 48;

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
    let _ = writeln!(text, "\n{BOLD}{}{BOLD:#}: {repeats}", experiment.name);
    if let Some(skipped) = &experiment.skipped {
        render_indented(text, "", &format!("skipped: {}; {}", skipped.reason, skipped.remedy));
        return;
    }
    for (unit, of_unit) in by_unit(&experiment.cases) {
        let _ = writeln!(text, "\nmedian, {}", unit.name());
        for table in cases(&of_unit) {
            let _ = writeln!(text, "{table}");
        }
    }
    if !experiment.ratios.is_empty() {
        let _ = writeln!(text, "\nratio of pairs within a round\n{}", ratios(&experiment.ratios));
    }
    render_published(text, &experiment.ratios);
    render_footnotes(text, &experiment.ratios);
    if !experiment.distributions.is_empty() {
        let _ = writeln!(text, "\nsingle events\n{}", distributions(&experiment.distributions));
    }
    render_notes(text, experiment);
}

/// What the reader of the tables should know, and then what is wrong with them.
fn render_notes(text: &mut String, experiment: &Experiment) {
    text.push('\n');
    let elsewhere = elsewhere(experiment);
    for notice in experiment.memory.iter().chain(&experiment.notices).chain(&elsewhere) {
        render_indented(text, "· ", notice);
    }
    summary::render_warnings(text, experiment);
}

/// The cases of each unit, units in the order of their first case.
fn by_unit(cases: &[Case]) -> Vec<(Unit, Vec<&Case>)> {
    let mut groups: Vec<(Unit, Vec<&Case>)> = Vec::new();
    for case in cases {
        match groups.iter_mut().find(|(unit, _)| *unit == case.unit) {
            Some((_, group)) => group.push(case),
            None => groups.push((case.unit, vec![case])),
        }
    }
    groups
}

fn render_footnotes(text: &mut String, ratios: &[Ratio]) {
    for reason in reasons(ratios) {
        let mark = mark(ratios, Some(reason));
        for line in wrap(&format!("{mark} not like for like: {reason}"), COLUMNS) {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

/// The mark at a ratio and at its reason: a star, numbered where there are several reasons.
fn mark(ratios: &[Ratio], moved: Option<&str>) -> String {
    let reasons = reasons(ratios);
    let index = reasons.iter().position(|reason| Some(*reason) == moved);
    match index.filter(|_| reasons.len() > 1) {
        Some(index) => format!("*{}", index + 1),
        None => "*".to_owned(),
    }
}

/// Methods and workloads of the cases, each once and in order: the middle and last part of an id.
fn axes<'a>(cases: &[&'a Case]) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut methods, mut workloads) = (Vec::new(), Vec::new());
    for (method, workload) in cases.iter().filter_map(|case| parts(&case.id)) {
        if !methods.contains(&method) {
            methods.push(method);
        }
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    (methods, workloads)
}

/// Medians, one table or several: methods across where that fits, else workloads across, as many
/// as fit beside each other.
fn cases(cases: &[&Case]) -> Vec<Table> {
    let (methods, workloads) = axes(cases);
    let across = fitting(&workloads, &methods);
    if across.len() == 1 {
        return vec![medians(cases, &workloads, &methods, |row, column| (column, row))];
    }
    let groups = fitting(&methods, &workloads);
    groups
        .into_iter()
        .map(|group| medians(cases, &methods, group, |row, column| (row, column)))
        .collect()
}

/// The columns in groups that fit beside the rows' labels.
fn fitting<'a, 'b>(rows: &[&str], columns: &'a [&'b str]) -> Vec<&'a [&'b str]> {
    let cell = |label: &&str| label.len().max(6) + 2;
    let room = usize::from(WIDTH) - rows.iter().map(cell).max().unwrap_or(0);
    let mut groups = Vec::new();
    let mut rest = columns;
    while !rest.is_empty() {
        let widths = rest.iter().scan(0, |sum, label| {
            *sum += cell(label);
            Some(*sum)
        });
        let (group, after) = rest.split_at(widths.take_while(|&sum| sum <= room).count().max(1));
        groups.push(group);
        rest = after;
    }
    groups
}

/// One table; `id` says which of a row's and a column's label is the method and which the workload.
fn medians<'a>(
    cases: &[&Case],
    rows: &[&'a str],
    columns: &[&'a str],
    id: impl Fn(&'a str, &'a str) -> (&'a str, &'a str),
) -> Table {
    let mut table = new_table(std::iter::once("").chain(columns.iter().copied()));
    for row in rows {
        let cell = |column: &&'a str| {
            let case = cases.iter().find(|case| parts(&case.id) == Some(id(row, column)));
            Cell::new(case.map_or(String::new(), |case| figure(case.median())))
        };
        table.add_row(std::iter::once(Cell::new(row)).chain(columns.iter().map(cell)));
    }
    align_numbers(&mut table);
    table
}

fn ratios(ratios: &[Ratio]) -> Table {
    let mut table = new_table(["", "median", "min", "max", "pairs"].into_iter());
    for ratio in ratios {
        let mark = match ratio.like_for_like {
            true => String::new(),
            false => format!(" {}", mark(ratios, ratio.moved.as_deref())),
        };
        let numbers = [ratio.median, ratio.min, ratio.max].map(|number| format!("{number:.2}"));
        let mut row = vec![lines(&format!("{}{mark}", name(ratio)))];
        row.extend(numbers);
        row.push(ratio.pairs.to_string());
        table.add_row(row);
    }
    align_numbers(&mut table);
    table
}

/// A ratio's name without its experiment's.
fn name(ratio: &Ratio) -> &str {
    ratio.id.split_once('/').map_or("", |(_, rest)| rest)
}

/// Methods and workload of a long name are on a line each.
fn lines(name: &str) -> String {
    match name.rsplit_once('/') {
        Some((methods, workload)) if name.len() > LONGEST_NAME => {
            format!("{methods}/\n  {workload}")
        }
        _ => name.to_owned(),
    }
}

/// Published figures of the same workloads, a paragraph for each ratio that has some.
fn render_published(text: &mut String, ratios: &[Ratio]) {
    for ratio in ratios.iter().filter(|ratio| !ratio.published.is_empty()) {
        let published = published_of(&ratio.published);
        render_indented(text, "", &format!("published for {}: {published}", name(ratio)));
    }
}

/// A row for each case, a column for each percentile.
fn distributions(distributions: &[Distribution]) -> Table {
    let percentiles = distributions.first().map_or(&[][..], |first| &first.percentiles);
    let headers: Vec<String> = percentiles
        .iter()
        .map(|(at, _)| if *at == 100.0 { "max".to_owned() } else { format!("p{at}") })
        .collect();
    let headers = std::iter::once("").chain(headers.iter().map(String::as_str));
    let mut table = new_table(headers.chain(["count"]));
    for distribution in distributions {
        let id = distribution.id.split_once('/').map_or("", |(_, rest)| rest);
        let mut row = vec![id.to_owned()];
        row.extend(distribution.percentiles.iter().map(|(_, value)| figure(*value)));
        row.push(distribution.count.to_string());
        table.add_row(row);
    }
    align_numbers(&mut table);
    table
}

/// The figures, each with the short name of its CPU: the second word, after the maker.
fn published_of(published: &[Published]) -> String {
    let figure = |published: &Published| {
        let cpu = published.cpu.split(' ').nth(1).unwrap_or(&published.cpu);
        format!("{:.2} {cpu}", published.value)
    };
    published.iter().map(figure).collect::<Vec<_>>().join(", ")
}

fn new_table<'a>(headers: impl Iterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(headers);
    table
}

/// Numbers to the right, the labels in the first column to the left and never broken.
fn align_numbers(table: &mut Table) {
    if let Some(labels) = table.column_mut(0) {
        labels.set_constraint(ColumnConstraint::ContentWidth);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
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
    fn long_name_of_a_ratio_leaves_room_for_the_numbers() {
        let text = include_str!("../../tests/data/record.json");
        let record = Record::parse(text).unwrap();
        let mut ratio = record.experiments[0].ratios[0].clone();
        (ratio.id, ratio.median) =
            (format!("x/{}-vs-{}/{}", "a".repeat(22), "b".repeat(22), "c".repeat(40)), 1234.56);
        let table = ratios(&[ratio]).to_string();
        assert!(table.lines().all(|line| line.chars().count() <= COLUMNS), "{table}");
        assert!(table.contains("median") && table.contains("1234.56"), "{table}");
    }

    #[test]
    #[ignore = "nightly: it prints many reports"]
    fn the_header_of_every_machine_fits_80_columns() {
        let text = include_str!("../../tests/data/record.json");
        for description in hugekit_machines::MACHINES {
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
        assert!(plain.contains("fault     failed, cannot map 512MiB"), "{plain}");
        let page = hugekit_lab::report::page(&[("a".into(), record)]);
        assert!(page.contains("fault/latency failed: cannot map 512MiB"), "{page}");
    }

    #[test]
    fn columns_are_grouped_by_what_fits_beside_the_rows() {
        let rows = ["a label of twenty six letters"];
        let columns = ["123456789012345678"; 5];
        let groups = fitting(&rows, &columns);
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn a_column_wider_than_the_room_stands_alone() {
        let wide = "w".repeat(100);
        assert_eq!(fitting(&["row"], &[&wide, &wide]).len(), 2);
    }
}
