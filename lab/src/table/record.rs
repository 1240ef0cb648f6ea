//! The tables of an experiment: its comparisons, published figures, the medians of all cases, single events, and counts.

use crate::record::{Case, Counters, Distribution, Experiment, Ratio, Unit, parts};

use super::{Cell, Column, Figure, Row, Table, name};

/// All tables of an experiment, the results first.
#[must_use]
pub fn tables(experiment: &Experiment) -> Vec<Table> {
    let Experiment { cases, ratios, distributions, .. } = experiment;
    let medians = grouped(cases.iter().map(|case| (case.unit, case)));
    let events = grouped(distributions.iter().map(|one| (one.unit, one)));
    let tables = [compared(ratios), published(experiment)].into_iter();
    let medians = medians.into_iter().map(|(unit, cases)| self::medians(unit, &cases));
    let events = events.into_iter().map(|(unit, all)| self::events(unit, &all));
    tables.chain(medians).chain(events).filter(|table| !table.rows.is_empty()).collect()
}

/// Puts values with the same key together, in the order of the first of each.
pub(crate) fn grouped<K: PartialEq, V>(all: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in all {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Ratios with the range of their pairs. A note has the reason of those that are not like for like.
fn compared(ratios: &[Ratio]) -> Table {
    let reason = |ratio: &Ratio| {
        let moved = ratio.moved.as_deref().unwrap_or("the record does not have the reason");
        (!ratio.like_for_like).then(|| format!("not like for like: {moved}"))
    };
    let notes = grouped(ratios.iter().filter_map(|ratio| Some((reason(ratio)?, ()))));
    let notes: Vec<String> = notes.into_iter().map(|(note, _)| note).collect();
    let row = |ratio: &Ratio| {
        let median = Figure::ratio(ratio.median);
        let note = reason(ratio).and_then(|reason| notes.iter().position(|note| *note == reason));
        let median = note.map_or(median.clone(), |note| median.noted(note));
        let figures = [median, Figure::ratio(ratio.min), Figure::ratio(ratio.max)];
        let pairs = Cell::Text(ratio.pairs.to_string());
        let cells = figures.into_iter().map(Cell::Figure).chain([pairs]).collect();
        Row { head: name(&ratio.id), cells }
    };
    Table {
        title: "How many times as fast, by pairs within a round".to_owned(),
        columns: ["median", "min", "max", "pairs"].map(Column::numbers).into(),
        rows: ratios.iter().map(row).collect(),
        notes,
        ..Table::default()
    }
}

/// Methods by workloads.
fn medians(unit: Unit, cases: &[&Case]) -> Table {
    let placed = || cases.iter().filter_map(|case| Some((parts(&case.id)?, *case)));
    let methods = grouped(placed().map(|((method, workload), case)| (method, (workload, case))));
    let workloads = grouped(placed().map(|((_, workload), _)| (workload, ())));
    let row = |(method, cases): (&str, Vec<(&str, &Case)>)| {
        let cell = |(workload, _): &(&str, _)| {
            let case = cases.iter().find(|(other, _)| other == workload);
            Cell::optional(case.map(|(_, case)| Figure::plain(case.median())))
        };
        Row { head: method.to_owned(), cells: workloads.iter().map(cell).collect() }
    };
    Table {
        title: format!("Medians, {}", unit.name()),
        columns: workloads.iter().map(|(workload, _)| Column::numbers(*workload)).collect(),
        rows: methods.into_iter().map(row).collect(),
        turns: true,
        ..Table::default()
    }
}

/// A row for each case, a column for each percentile.
fn events(unit: Unit, all: &[&Distribution]) -> Table {
    let percents = grouped(all.iter().flat_map(|one| &one.percentiles).map(|(at, _)| (*at, ())));
    let mut percents: Vec<f64> = percents.into_iter().map(|(at, _)| at).collect();
    percents.sort_by(f64::total_cmp);
    let named = |percent: &f64| match percent {
        100.0 => Column::numbers("max"),
        percent => Column::numbers(format!("p{percent}")),
    };
    let row = |one: &&Distribution| {
        let value = |percent: &f64| {
            let found = one.percentiles.iter().find(|(at, _)| at == percent);
            Cell::optional(found.map(|(_, value)| Figure::plain(*value)))
        };
        let count = Cell::Text(one.count.to_string());
        Row { head: name(&one.id), cells: percents.iter().map(value).chain([count]).collect() }
    };
    Table {
        title: format!("Single events, {}", unit.name()),
        columns: percents.iter().map(named).chain([Column::numbers("count")]).collect(),
        rows: all.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Ratios and cases that were published for the same methods and workload.
fn published(experiment: &Experiment) -> Table {
    let ratios = experiment
        .ratios
        .iter()
        .map(|ratio| (name(&ratio.id), Figure::ratio(ratio.median), &ratio.published));
    let cases = experiment.cases.iter().map(|case| {
        let head = format!("{}, {}", name(&case.id), case.unit.name());
        (head, Figure::plain(case.median()), &case.published)
    });
    let row = |(head, here, published): (String, Figure, &Vec<_>)| {
        let cells = vec![Cell::Figure(here), Cell::Published(published.clone())];
        (!published.is_empty()).then_some(Row { head, cells })
    };
    Table {
        title: "Published for the same methods and workload".to_owned(),
        columns: vec![Column::numbers("here"), Column::words("published")],
        rows: ratios.chain(cases).filter_map(row).collect(),
        ..Table::default()
    }
}

/// Events that were counted for each case.
#[must_use]
pub fn counted(counters: &[Counters]) -> Table {
    let events =
        grouped(counters.iter().flat_map(|one| one.per_round.keys()).map(|name| (name, ())));
    let row = |one: &Counters| {
        let count = |(event, _): &(&String, _)| {
            Cell::optional(one.per_round.get(*event).copied().map(Figure::plain))
        };
        Row { head: name(&one.id), cells: events.iter().map(count).collect() }
    };
    Table {
        title: "Counted per round, preparation of the case included".to_owned(),
        columns: events.iter().map(|(event, _)| Column::numbers(event.as_str())).collect(),
        rows: counters.iter().map(row).collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Published;
    use crate::table::{markdown, terminal};

    #[test]
    fn each_reason_is_one_note_and_ratios_refer_to_it() {
        let moved = |reason| Ratio::example("snapshot/a-vs-b/stall", 2.0).unlike(reason);
        let without =
            Ratio { like_for_like: false, ..Ratio::example("snapshot/a-vs-b/stall", 2.0) };
        let ratios = vec![
            moved("pages"),
            moved("pool"),
            Ratio::example("x/a-vs-b/c", 0.5),
            moved("pages"),
            without,
        ];
        let table = compared(&ratios);
        let reasons = ["pages", "pool", "the record does not have the reason"];
        assert_eq!(table.notes, reasons.map(|reason| format!("not like for like: {reason}")));
        let printed = markdown::render(&table);
        let medians: Vec<&str> =
            printed.lines().skip(2).map(|line| line.split(" | ").nth(1).unwrap()).collect();
        assert_eq!(medians, ["2.00 \\*1", "2.00 \\*2", "**0.50**", "2.00 \\*1", "2.00 \\*3"]);
    }

    #[test]
    fn an_experiment_has_its_results_first_and_a_table_for_each_unit() {
        let published = |value| {
            let (source, cpu) = ("a paper".to_owned(), "AMD Rome".to_owned());
            vec![Published { source, cpu, value, spread_percent: None }]
        };
        let case = |id: &str, unit, value| Case::new(id, unit, vec![value]);
        let slow = case("s/memset/4KiB", Unit::GibPerSecond, 10.0);
        let fast = case("s/auto/4KiB", Unit::GibPerSecond, 20.0);
        let comparison = Ratio::between("s/memset-vs-auto/4KiB".into(), &slow, &fast);
        let events = |id: &str, unit| Distribution {
            id: id.to_owned(),
            unit,
            count: 7,
            percentiles: vec![(50.0, 1.0), (100.0, 1234.0)],
            buckets: Vec::new(),
        };
        let experiment = Experiment {
            ratios: vec![Ratio { published: published(1.31), ..comparison }],
            cases: vec![
                Case { published: published(9.5), ..slow },
                fast,
                case("s/call/1GiB", Unit::Microseconds, 3.0),
            ],
            distributions: vec![
                events("s/call/1GiB", Unit::Microseconds),
                events("s/memset/4KiB", Unit::GibPerSecond),
            ],
            ..Experiment::default()
        };
        let tables = tables(&experiment);
        let titles: Vec<&str> = tables.iter().map(|table| table.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "How many times as fast, by pairs within a round",
                "Published for the same methods and workload",
                "Medians, GiB/s",
                "Medians, µs",
                "Single events, µs",
                "Single events, GiB/s"
            ]
        );
        let printed: String = tables.iter().map(terminal::render).collect();
        insta::assert_snapshot!(printed.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"));
    }
}
