//! Published figures, which stand beside measured ones only where the workload is the same.
//!
//! A figure from `data/published.toml` comes as a [`Figure`] with its workload, and the only way to a record
//! is [`Beside::of`], which asks for the workload that was measured here.

use serde::{Deserialize, Serialize};

use crate::conditions::{Conditions, Difference};
use crate::size::{GIB, Size};

/// A figure from published work, in the unit of the case or ratio it stands beside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The work it comes from.
    pub source: String,
    /// The CPU it was measured on.
    pub cpu: String,
    /// The figure.
    pub value: f64,
    /// Its spread over several runs, in percent of it, where the source says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_percent: Option<f64>,
}

/// A figure that was published for another workload than the one it is nearest to here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Id of the case or ratio.
    pub beside: String,
    /// The figure, in that one's unit.
    pub published: Published,
    /// What differs.
    pub differs: Vec<Difference>,
}

/// A published figure with the workload that it is of.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    published: Published,
    workload: Conditions,
}

/// The published figures of one case or ratio, by whether they may stand beside it.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// The workload is the same.
    pub(crate) same: Vec<Published>,
    /// It is not.
    pub(crate) elsewhere: Vec<Elsewhere>,
}

impl Beside {
    /// Compares the workload behind each figure with the one of this case or ratio.
    pub(crate) fn of(id: &str, ours: &Conditions, figures: Vec<Figure>) -> Self {
        let mut beside = Self::default();
        for Figure { published, workload } in figures {
            let differs = ours.differences(&workload);
            match differs.is_empty() {
                true => beside.same.push(published),
                false => {
                    beside.elsewhere.push(Elsewhere { beside: id.to_owned(), published, differs });
                }
            }
        }
        beside
    }
}

/// The file, a list of tables for each published work.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    clear: Vec<Table<ClearRow>>,
    stores: Vec<Table<StoresRow>>,
    parallel: Vec<Table<ParallelRow>>,
    fork: Vec<Table<ForkRow>>,
    cow: Vec<Table<CowRow>>,
}

impl Tables {
    /// The figures that ship with the lab. A test reads the same embedded text.
    fn load() -> Self {
        let text = include_str!("../data/published.toml");
        toml::from_str(text).expect("data/published.toml is part of the crate and tested")
    }
}

#[derive(Debug, Deserialize)]
struct Table<Row> {
    source: String,
    /// The CPU of all rows, where they do not name their own.
    #[serde(default)]
    cpu: String,
    workload: Conditions,
    rows: Vec<Row>,
}

impl<Row> Table<Row> {
    /// A figure on this CPU, of the table's workload with what is the row's own.
    fn figure(
        &self,
        cpu: &str,
        (value, spread_percent): (f64, Option<f64>),
        own: impl FnOnce(Conditions) -> Conditions,
    ) -> Figure {
        let (source, cpu) = (self.source.clone(), cpu.to_owned());
        let published = Published { source, cpu, value, spread_percent };
        Figure { published, workload: own(self.workload.clone()) }
    }
}

/// The spread of a ratio whose sides spread independently of each other, in percent.
fn of_ratio(one: f64, other: f64) -> f64 {
    one.hypot(other)
}

/// Huge pages cleared page by page and in extents, in GiB/s of demand faults.
#[derive(Debug, Deserialize)]
struct ClearRow {
    cpu: String,
    page: String,
    page_at_a_time: f64,
    extents: f64,
}

/// GiB/s of demand faults on pages of this size, of either kernel.
pub(crate) fn demand(page: &str) -> Vec<Figure> {
    let of_table = |table: &Table<ClearRow>| -> Vec<Figure> {
        let kernel = |row: &ClearRow, value, how: &str| {
            table.figure(&row.cpu, (value, None), |workload| Conditions {
                kernel: format!("{}, clearing {how}", workload.kernel),
                pages: Some(row.page.clone()),
                ..workload
            })
        };
        let rows = table.rows.iter().filter(|row| row.page == page);
        let both = |row: &ClearRow| {
            [
                kernel(row, row.page_at_a_time, "page by page"),
                kernel(row, row.extents, "in extents"),
            ]
        };
        rows.flat_map(both).collect()
    };
    Tables::load().clear.iter().flat_map(of_table).collect()
}

/// `fork(2)` on folios of one size, in seconds.
#[derive(Debug, Deserialize)]
struct ForkRow {
    folio: String,
    unbatched: f64,
    batched: f64,
}

/// How many times faster `fork(2)` was by runs.
pub(crate) fn fork_speed_up(folio: usize) -> Vec<Figure> {
    fork(folio, |row| row.unbatched / row.batched)
}

/// Microseconds of `fork(2)`, tables copied by runs.
pub(crate) fn fork_microseconds(folio: usize) -> Vec<Figure> {
    fork(folio, |row| row.batched * 1e6)
}

fn fork(folio: usize, pick: impl Fn(&ForkRow) -> f64) -> Vec<Figure> {
    let same = |row: &&ForkRow| row.folio.parse::<Size>().is_ok_and(|printed| printed.0 == folio);
    let of_table = |table: &Table<ForkRow>| -> Vec<Figure> {
        let pages = || Some(Size(folio).to_string());
        let figure = |row: &ForkRow| {
            let own = |workload| Conditions { pages: pages(), ..workload };
            table.figure(&table.cpu, (pick(row), None), own)
        };
        table.rows.iter().filter(same).map(figure).collect()
    };
    Tables::load().fork.iter().flat_map(of_table).collect()
}

/// Writers that diverge from one origin, the target copied last: by how many percent something changed,
/// or what it was before and after.
#[derive(Debug, Deserialize)]
struct CowRow {
    metric: String,
    change: Option<f64>,
    before: Option<f64>,
    after: Option<f64>,
}

impl CowRow {
    /// What it was afterwards, before being 1.
    fn factor(&self) -> Option<f64> {
        match (self.change, self.before.zip(self.after)) {
            (Some(change), _) => Some(1.0 + change / 100.0),
            (None, Some((before, after))) => Some(after / before),
            (None, None) => None,
        }
    }
}

/// How many times as fast all writers together were with the target copied last.
pub(crate) fn cow_throughput() -> Vec<Figure> {
    cow("throughput", |factor| factor)
}

/// How many times as little user time they took.
pub(crate) fn cow_user_time() -> Vec<Figure> {
    cow("user time", |factor| 1.0 / factor)
}

/// How many times as many instructions a cycle had.
pub(crate) fn cow_instructions_per_cycle() -> Vec<Figure> {
    cow("instructions per cycle", |factor| factor)
}

fn cow(metric: &str, ratio: fn(f64) -> f64) -> Vec<Figure> {
    let of_table = |table: &Table<CowRow>| -> Vec<Figure> {
        let rows = table.rows.iter().filter(|row| row.metric == metric);
        let ratios = rows.filter_map(CowRow::factor).map(ratio);
        ratios.map(|ratio| table.figure(&table.cpu, (ratio, None), |same| same)).collect()
    };
    Tables::load().cow.iter().flat_map(of_table).collect()
}

/// Gigantic pages cleared by several threads.
#[derive(Debug, Deserialize)]
struct ParallelRow {
    cpu: String,
    gib: usize,
    threads: usize,
    seconds: f64,
    stdev: f64,
}

impl ParallelRow {
    fn spread_percent(&self) -> f64 {
        self.stdev / self.seconds * 100.0
    }
}

/// How many times as fast as one so many threads were, on each CPU and for each size.
pub(crate) fn parallel_speed_up(threads: usize) -> Vec<Figure> {
    let of_table = |table: &Table<ParallelRow>| -> Vec<Figure> {
        let rows = table.rows.iter().filter(|row| row.threads == threads);
        let figure = |row: &ParallelRow| {
            let alone =
                |one: &&ParallelRow| one.threads == 1 && one.cpu == row.cpu && one.gib == row.gib;
            let one = table.rows.iter().find(alone)?;
            let spread = of_ratio(one.spread_percent(), row.spread_percent());
            let speed_up = (one.seconds / row.seconds, Some(spread));
            Some(table.figure(&row.cpu, speed_up, |workload| Conditions {
                memory: Some(Size(row.gib * GIB).to_string()),
                threads: Some(threads),
                ..workload
            }))
        };
        rows.filter_map(figure).collect()
    };
    Tables::load().parallel.iter().flat_map(of_table).collect()
}

/// String stores against `movnti`, in GiB/s.
#[derive(Debug, Deserialize)]
struct StoresRow {
    cpu: String,
    baseline: String,
    size: String,
    string: f64,
    streaming: f64,
    string_pstdev: f64,
    streaming_pstdev: f64,
}

impl StoresRow {
    /// The string instruction by our name.
    fn string_routine(&self) -> String {
        self.baseline.replace(' ', "_")
    }
}

/// GiB/s of the routine with this name of ours, at this size.
pub(crate) fn stores(routine: &str, size: &str) -> Vec<Figure> {
    stores_of(size, |row| match routine {
        "movnti" => Some((row.streaming, Some(row.streaming_pstdev))),
        _ => (row.string_routine() == routine).then_some((row.string, Some(row.string_pstdev))),
    })
}

/// How many times faster `movnti` was than this string routine, at this size.
pub(crate) fn stores_speed_up(string_routine: &str, size: &str) -> Vec<Figure> {
    stores_of(size, |row| {
        let spread = of_ratio(row.string_pstdev, row.streaming_pstdev);
        let same = row.string_routine() == string_routine;
        same.then_some((row.streaming / row.string, Some(spread)))
    })
}

fn stores_of(size: &str, pick: impl Fn(&StoresRow) -> Option<(f64, Option<f64>)>) -> Vec<Figure> {
    let of_table = |table: &Table<StoresRow>| -> Vec<Figure> {
        let rows = table.rows.iter().filter(|row| row.size == size);
        let figure = |row: &StoresRow| {
            let own = |workload| Conditions { memory: Some(row.size.clone()), ..workload };
            Some(table.figure(&row.cpu, pick(row)?, own))
        };
        rows.filter_map(figure).collect()
    };
    Tables::load().stores.iter().flat_map(of_table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure as printed, and what follows from the columns beside it.
    struct Printed {
        row: String,
        printed: f64,
        follows: f64,
        /// What the rounding of all three allows for.
        tolerance: f64,
    }

    impl Printed {
        fn assert(&self) {
            let Self { row, printed, follows, tolerance } = self;
            assert!((printed - follows).abs() <= *tolerance, "{row}: {printed}, not {follows}");
        }
    }

    /// Half of the last digit of what is printed with two decimals.
    const HALF: f64 = 0.005;

    /// A ratio of two columns that were rounded by so much, and how far that may put it off.
    fn ratio_of((one, other): (f64, f64), rounded: f64) -> (f64, f64) {
        let ratio = one / other;
        (ratio, ratio * (rounded / one + rounded / other))
    }

    fn number(row: &toml::Value, column: &str) -> f64 {
        let value = &row[column];
        value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).expect("a number")
    }

    fn rows<'a>(file: &'a toml::Table, table: &str) -> Vec<&'a toml::Value> {
        let tables = file[table].as_array().expect("tables");
        tables.iter().flat_map(|table| table["rows"].as_array().expect("rows")).collect()
    }

    /// Change in percent from one column to another, with what columns and change are rounded by.
    fn changes(
        file: &toml::Table,
        (table, from, to): (&str, &str, &str),
        (rounded, of_change): (f64, f64),
    ) -> Vec<Printed> {
        let printed = |row: &&toml::Value| {
            let (ratio, off) = ratio_of((number(row, to), number(row, from)), rounded);
            Printed {
                row: row.to_string(),
                printed: number(row, "change"),
                follows: (ratio - 1.0) * 100.0,
                tolerance: off * 100.0 + of_change,
            }
        };
        rows(file, table).iter().map(printed).collect()
    }

    /// Speed-ups, from the times of one thread and of several on the same CPU and memory.
    fn speed_ups(file: &toml::Table) -> Vec<Printed> {
        let all = rows(file, "parallel");
        let printed = |row: &&toml::Value| {
            let one = all.iter().find(|one| {
                number(one, "threads") == 1.0
                    && one["cpu"] == row["cpu"]
                    && one["gib"] == row["gib"]
            });
            let seconds = number(one.expect("one thread was measured"), "seconds");
            let (follows, off) = ratio_of((seconds, number(row, "seconds")), HALF);
            let printed = number(row, "speedup");
            Printed { row: row.to_string(), printed, follows, tolerance: off + HALF }
        };
        all.iter().filter(|row| number(row, "threads") > 1.0).map(printed).collect()
    }

    /// Printed apart from their own columns, by so much.
    const APART: [(f64, f64); 2] = [(121.84, 1.13), (-69.28, 0.06)];

    #[test]
    fn changes_that_were_printed_follow_from_the_columns_beside_them() {
        let file: toml::Table = include_str!("../data/published.toml").parse().unwrap();
        let clear = changes(&file, ("clear", "page_at_a_time", "extents"), (HALF, HALF));
        let fork = changes(&file, ("fork", "unbatched", "batched"), (5e-7, 0.5));
        let mut stores = changes(&file, ("stores", "string", "streaming"), (HALF, HALF));
        for one in &mut stores {
            let apart = APART.iter().find(|(printed, _)| *printed == one.printed);
            one.tolerance = apart.map_or(one.tolerance, |(_, by)| *by);
        }
        assert_eq!((clear.len(), fork.len(), stores.len()), (4, 9, 12));
        clear.iter().chain(&fork).chain(&stores).for_each(Printed::assert);
    }

    #[test]
    fn speed_ups_that_were_printed_follow_from_the_times() {
        let file: toml::Table = include_str!("../data/published.toml").parse().unwrap();
        let speed_ups = speed_ups(&file);
        assert_eq!(speed_ups.len(), 28);
        speed_ups.iter().for_each(Printed::assert);
    }

    #[test]
    fn each_routine_finds_its_published_rows() {
        assert_eq!(stores("rep_stosb", "16MiB").len(), 2);
        assert_eq!(stores("rep_stosq", "16MiB").len(), 1);
        assert_eq!(stores("movnti", "16MiB").len(), 3);
        assert_eq!(stores("movnti", "2MiB").len(), 0);
        assert_eq!(stores("clzero", "16MiB").len(), 0);
    }

    #[test]
    fn a_published_speed_up_is_streaming_over_string() {
        let row = &stores_speed_up("rep_stosb", "1GiB")[0].published;
        assert!((row.value - 11.78 / 5.42).abs() < 1e-9);
        assert!((row.spread_percent.unwrap() - 0.13_f64.hypot(0.03)).abs() < 1e-9);
    }

    #[test]
    fn a_folio_is_found_however_its_size_is_written() {
        assert_eq!(fork_speed_up(8 << 10).len(), 0);
        let gain = &fork_speed_up(2 << 20)[0];
        assert!((gain.published.value - 14305.0 / 10076.0).abs() < 1e-9);
        assert_eq!(gain.published.cpu, "Xeon Silver 4210R");
        assert_eq!(gain.workload.pages.as_deref(), Some("2MiB"));
        assert!((fork_microseconds(4 << 10)[0].published.value - 14035.0).abs() < 1e-6);
    }

    #[test]
    fn threads_are_compared_with_one_on_the_same_cpu_and_memory() {
        let two = parallel_speed_up(2);
        let figures: Vec<_> = two
            .iter()
            .map(|figure| (figure.workload.memory.as_deref().unwrap(), figure.published.value))
            .collect();
        assert_eq!(figures.len(), 7);
        assert!(
            figures.contains(&("50GiB", 7.77 / 3.95))
                && figures.contains(&("800GiB", 434.91 / 170.97))
        );
        let spread = two[0].published.spread_percent.unwrap();
        assert!((spread - (2.0 / 7.77_f64).hypot(4.0 / 3.95)).abs() < 1e-9, "{spread}");
    }

    #[test]
    fn what_the_target_last_changed_is_a_ratio_above_one_where_it_gained() {
        let ratios = [cow_throughput(), cow_user_time(), cow_instructions_per_cycle()];
        let ratios = ratios.map(|figures| figures[0].published.value);
        for (ratio, expected) in ratios.into_iter().zip([1.166, 1.0 / 0.928, 0.78 / 0.63]) {
            assert!((ratio - expected).abs() < 1e-9, "{ratio}");
        }
    }

    #[test]
    fn a_figure_stands_beside_ours_only_where_all_of_the_workload_is_the_same() {
        let figures = || stores("movnti", "1GiB");
        let same = figures()[0].workload.clone();
        let beside = Beside::of("stores/movnti/1GiB", &same, figures());
        assert_eq!((beside.same.len(), beside.elsewhere.len()), (3, 0));
        let other = Conditions { kernel: "Linux 6.18".into(), ..same };
        let beside = Beside::of("stores/movnti/1GiB", &other, figures());
        assert_eq!((beside.same.len(), beside.elsewhere.len()), (0, 3));
        let Elsewhere { beside, differs, .. } = &beside.elsewhere[0];
        assert_eq!((beside.as_str(), differs.len()), ("stores/movnti/1GiB", 1));
        assert_eq!((differs[0].here.as_str(), differs[0].there.as_str()), ("Linux 6.18", "none"));
    }

    #[test]
    fn both_kernels_of_demand_faults_are_told_apart() {
        let kernels: Vec<_> = demand("1GiB").into_iter().map(|one| one.workload.kernel).collect();
        assert_eq!(kernels.len(), 4);
        assert!(kernels[0].ends_with("page by page") && kernels[1].ends_with("in extents"));
        assert!(demand("4KiB").is_empty());
    }

    /// How much faster so many threads were than half as many, on each CPU and for each size.
    fn gains_of(threads: usize) -> Vec<f64> {
        let tables = Tables::load().parallel;
        let rows = || tables.iter().flat_map(|table| &table.rows);
        let same = |a: &ParallelRow, b: &ParallelRow| a.cpu == b.cpu && a.gib == b.gib;
        let half = |row| rows().find(|half| half.threads * 2 == threads && same(half, row));
        let of = rows().filter(|row| row.threads == threads);
        of.filter_map(|row| Some(half(row)?.seconds / row.seconds)).collect()
    }

    /// A table of other machines is no reason to go beyond it.
    #[test]
    fn built_in_cap_of_threads_is_the_most_that_still_gained_a_fifth_wherever_it_was_tried() {
        let cap = hugekit::Profile::builtin_here().thread_cap;
        let gains = gains_of(cap);
        assert!(!gains.is_empty() && gains.iter().all(|&gain| gain > 1.2), "{cap}: {gains:?}");
        let beyond = gains_of(cap * 2);
        assert!(beyond.is_empty() || beyond.iter().any(|&gain| gain <= 1.2), "{cap}: {beyond:?}");
    }
}
