//! Published figures, which stand beside measured ones only where the workload is the same.
//!
//! A figure from `data/published.toml` comes with its workload. A record takes a figure only through
//! [`PublishedFigure::elsewhere`], which compares that workload with the one that was measured here (`conditions.rs`).

mod conditions;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use conditions::{Conditions, Kernel, PublishedFigure};

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
    /// The differences.
    pub differs: Vec<Difference>,
}

/// An aspect in which a published workload differs from the one that was measured here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The name of the aspect: `kernel`, `memory`.
    pub aspect: String,
    /// Its value here.
    pub here: String,
    /// Its value there.
    pub there: String,
}

/// The figures of one published work.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedTable {
    source: String,
    /// The CPU of all rows that do not name one.
    #[serde(default)]
    cpu: String,
    workload: Conditions,
    /// The work of the kernel before and after, if that is the change.
    kernels: Option<[String; 2]>,
    rows: Vec<PublishedRow>,
}

/// A baseline (`before`) and what was published as the change (`after`), or only by how many percent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedRow {
    cpu: Option<String>,
    metric: Option<String>,
    method: Option<String>,
    memory: Option<String>,
    pages: Option<String>,
    threads: Option<usize>,
    turbo: Option<String>,
    governor: Option<String>,
    /// True if only the ratio of the figures is right, and not the figures themselves.
    #[serde(default)]
    ratio_only: bool,
    before: Option<f64>,
    after: Option<f64>,
    change: Option<f64>,
    /// The printed factor. [`PublishedRow::factor`] computes it from the times.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the times"))]
    speedup: Option<f64>,
    pstdev: Option<[f64; 2]>,
    stdev: Option<[f64; 2]>,
}

impl PublishedRow {
    /// The ratio of `after` to `before`.
    fn factor(&self) -> Option<f64> {
        let of_both = self.before.zip(self.after).map(|(before, after)| after / before);
        of_both.or_else(|| Some(1.0 + self.change? / 100.0))
    }

    /// The spreads of both, in percent of each.
    fn spreads(&self) -> Option<[f64; 2]> {
        let seconds = self.stdev.zip(self.before.zip(self.after));
        self.pstdev.or_else(|| {
            seconds.map(|([one, other], (before, after))| {
                [one / before * 100.0, other / after * 100.0]
            })
        })
    }

    /// The spread of a ratio of both, which spread independently of each other.
    fn spread_of_ratio(&self) -> Option<f64> {
        self.spreads().map(|[one, other]| one.hypot(other))
    }
}

type Value = (f64, Option<f64>);

fn tables() -> BTreeMap<String, PublishedTable> {
    let text = include_str!("../../../data/published.toml");
    toml::from_str(text).expect("data/published.toml is part of the crate and tested")
}

/// The figures of a work's rows that have a value, with its spread.
fn figures(work: &str, value: impl Fn(&PublishedRow) -> Option<Value>) -> Vec<PublishedFigure> {
    let PublishedTable { source, cpu, workload, rows, .. } = table(work);
    let figure = |row: PublishedRow| {
        let (value, spread_percent) = value(&row)?;
        let (source, cpu) = (source.clone(), row.cpu.unwrap_or_else(|| cpu.clone()));
        let published = Published { source, cpu, value, spread_percent };
        let ours = Conditions {
            memory: row.memory.or_else(|| workload.memory.clone()),
            pages: row.pages.or_else(|| workload.pages.clone()),
            threads: row.threads.or(workload.threads),
            turbo: row.turbo.or_else(|| workload.turbo.clone()),
            governor: row.governor.or_else(|| workload.governor.clone()),
            ..workload.clone()
        };
        Some(PublishedFigure { published, workload: ours })
    };
    rows.into_iter().filter_map(figure).collect()
}

fn table(work: &str) -> PublishedTable {
    tables().remove(work).expect("data/published.toml has every work that is asked for")
}

/// On pages of this size: figures of the kernel before, and those of the kernel after.
fn of_both_kernels(
    work: &str,
    pages: &str,
    value: impl Fn(&PublishedRow, f64) -> Option<f64>,
) -> Vec<PublishedFigure> {
    let [before, after] = table(work).kernels.expect("the work changed the kernel");
    let of = |does: &str, pick: fn(&PublishedRow) -> Option<f64>| {
        let all = on_pages(work, pages, |row| value(row, pick(row)?)).into_iter();
        all.map(|figure| figure.of_kernel(does)).collect::<Vec<_>>()
    };
    let kernels = of(&before, |row| row.before).into_iter().zip(of(&after, |row| row.after));
    kernels.flat_map(|(one, other)| [one, other]).collect()
}

/// GiB/s of demand faults on pages of this size.
pub fn demand(page: &str) -> Vec<PublishedFigure> {
    of_both_kernels("clear", page, |_, value| Some(value))
}

/// Page faults of that process.
pub fn demand_faults(page: &str) -> Vec<PublishedFigure> {
    of_both_kernels("clear_counts", page, |row, value| {
        let is_right = row.metric.as_deref() == Some("page-faults") && !row.ratio_only;
        is_right.then_some(value)
    })
}

/// The number of times fewer of these events in extents, on pages of this size.
pub fn clear_counts(event: &str, page: &str) -> Vec<PublishedFigure> {
    on_pages("clear_counts", page, |row| fewer(row, event))
}

/// The number of times fewer of these events, or seconds of the whole process, with `movnti`.
pub fn store_counts(event: &str) -> Vec<PublishedFigure> {
    figures("store_counts", |row| Some((fewer(row, event)?, None)))
}

/// Microseconds of the whole process that writes by this routine.
///
/// # Panics
/// The published data lack the kernels of that table.
pub fn store_microseconds(routine: &str) -> Vec<PublishedFigure> {
    let [does, _] = table("store_counts").kernels.expect("the kernel clears fresh pages");
    let times = figures("store_counts", |row| {
        let is_time = row.metric.as_deref() == Some("seconds");
        let seconds = match routine {
            "movnti" => row.after,
            _ => row.before.filter(|_| row.method.as_deref() == Some(routine)),
        };
        seconds.filter(|_| is_time).map(|seconds| (seconds * 1e6, None))
    });
    times.into_iter().map(|figure| figure.of_kernel(&does)).collect()
}

fn fewer(row: &PublishedRow, event: &str) -> Option<f64> {
    Some(1.0 / row.factor().filter(|_| row.metric.as_deref() == Some(event))?)
}

/// The number of times as fast that demand faults on pages of this size were in extents.
pub fn clear_speed_up(page: &str) -> Vec<PublishedFigure> {
    on_pages("clear", page, PublishedRow::factor)
}

/// The number of times as fast that `fork(2)` was by runs, on folios of this size.
pub fn fork_speed_up(folio: &str) -> Vec<PublishedFigure> {
    on_pages("fork", folio, |row| Some(1.0 / row.factor()?))
}

/// Microseconds of `fork(2)` on folios of this size.
pub fn fork_microseconds(folio: &str) -> Vec<PublishedFigure> {
    of_both_kernels("fork", folio, |_, seconds| Some(seconds * 1e6))
}

/// The values of a work's rows on pages of this size.
fn on_pages(
    work: &str,
    pages: &str,
    value: impl Fn(&PublishedRow) -> Option<f64>,
) -> Vec<PublishedFigure> {
    figures(work, |row| {
        value(row).filter(|_| row.pages.as_deref() == Some(pages)).map(|value| (value, None))
    })
}

/// The effect of copying the target last on `throughput`, `user time` or `instructions per cycle`, as a ratio
/// above one if it gained.
pub fn cow(metric: &str) -> Vec<PublishedFigure> {
    figures("cow", |row| {
        let factor = row.factor().filter(|_| row.metric.as_deref() == Some(metric))?;
        Some((if metric == "user time" { 1.0 / factor } else { factor }, None))
    })
}

/// The number of times as fast as one thread that this many were, on each CPU and for each size.
pub fn parallel_speed_up(threads: usize) -> Vec<PublishedFigure> {
    figures("parallel", |row| {
        let factor = row.factor().filter(|_| row.threads == Some(threads))?;
        Some((1.0 / factor, row.spread_of_ratio()))
    })
}

/// GiB/s of the routine with this name of ours, at this size.
pub fn stores(routine: &str, size: &str) -> Vec<PublishedFigure> {
    figures("stores", |row| {
        let of_size = row.memory.as_deref() == Some(size);
        let string = row.method.as_deref() == Some(routine);
        let spreads = row.spreads().filter(|_| of_size)?;
        match routine {
            "movnti" => Some((row.after?, Some(spreads[1]))),
            _ => row.before.filter(|_| string).map(|value| (value, Some(spreads[0]))),
        }
    })
}

/// The number of times as fast as this string routine that `movnti` was, at this size.
pub fn stores_speed_up(string_routine: &str, size: &str) -> Vec<PublishedFigure> {
    figures("stores", |row| {
        let same = row.method.as_deref() == Some(string_routine);
        let same = same && row.memory.as_deref() == Some(size);
        row.factor().filter(|_| same).map(|factor| (factor, row.spread_of_ratio()))
    })
}

/// The number of times as fast as a string routine that `movnti` was, at these sizes.
pub fn streaming_speed_up(sizes: &[&str]) -> Vec<PublishedFigure> {
    figures("stores", |row| {
        let is_asked = row.memory.as_deref().is_some_and(|size| sizes.contains(&size));
        row.factor().filter(|_| is_asked).map(|factor| (factor, row.spread_of_ratio()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a printed figure with the one that follows from columns that are rounded by this much.
    fn assert_follows(
        row: &PublishedRow,
        printed: f64,
        follows: f64,
        rounded: f64,
        tolerance: f64,
    ) {
        let (before, after) = (row.before.unwrap(), row.after.unwrap());
        let off = follows * (rounded / before + rounded / after);
        assert!((printed - follows).abs() <= off + tolerance, "{row:?}: {follows}");
    }

    /// Half of the last digit of a figure that is printed with two decimals.
    const HALF: f64 = 0.005;

    /// Printed apart from their own columns, by this much.
    const APART: [(f64, f64); 2] = [(121.84, 1.13), (-69.28, 0.06)];

    #[test]
    fn printed_changes_follow_from_the_columns_beside_them() {
        let mut tables = tables();
        let works = [("clear", 4, HALF, HALF), ("fork", 9, 5e-7, 0.5), ("stores", 12, HALF, HALF)];
        for (work, count, rounded, of_change) in works {
            let rows = tables.remove(work).unwrap().rows;
            assert_eq!(rows.len(), count);
            for row in rows {
                let (change, factor) = (row.change.unwrap(), row.factor().unwrap());
                let apart = APART.iter().find(|(printed, _)| *printed == change);
                let of_change = apart.map_or(of_change, |(_, by)| *by);
                assert_follows(&row, 1.0 + change / 100.0, factor, rounded, of_change / 100.0);
            }
        }
        let rows = tables.remove("parallel").unwrap().rows;
        assert_eq!(rows.len(), 28);
        for row in rows {
            assert_follows(&row, row.speedup.unwrap(), 1.0 / row.factor().unwrap(), HALF, HALF);
        }
    }

    /// The program's rates are those of the process's time.
    #[test]
    fn elapsed_times_are_those_of_the_rates() {
        let mut tables = tables();
        let [rates, counts] =
            ["clear", "clear_counts"].map(|work| tables.remove(work).unwrap().rows);
        let is_time = |row: &&PublishedRow| row.metric.as_deref() == Some("seconds");
        let times: Vec<&PublishedRow> = counts.iter().filter(is_time).collect();
        assert_eq!((times.len(), counts.len()), (4, 50));
        for (rate, time) in rates.iter().zip(times) {
            assert_eq!((&rate.cpu, &rate.pages), (&time.cpu, &time.pages));
            for (rate, seconds) in [(rate.before, time.before), (rate.after, time.after)] {
                let from_time = 64.0 / seconds.unwrap();
                assert!((rate.unwrap() / from_time - 1.0).abs() < 0.005, "{rate:?} {from_time}");
            }
        }
        assert_eq!(tables["store_counts"].rows.len(), 21);
    }

    #[test]
    fn counts_are_figures_or_only_their_ratios() {
        assert_eq!(values(&demand_faults("2MiB")), [65636.0, 65636.0], "not those of Ice Lake-X");
        let instructions = values(&clear_counts("instructions", "1GiB"));
        assert!((instructions[0] - 25.29).abs() < 0.01 && (instructions[1] - 51.5).abs() < 0.01);
        let slower = values(&store_counts("seconds"));
        assert!(slower[0] > 1.0 && slower[1] < 1.0 && slower[2] < 1.0, "{slower:?}");
    }

    fn values(figures: &[PublishedFigure]) -> Vec<f64> {
        figures.iter().map(|figure| figure.published.value).collect()
    }

    #[test]
    fn each_case_finds_its_figures() {
        for (routine, size, count) in [
            ("rep_stosb", "16MiB", 2),
            ("rep_stosq", "16MiB", 1),
            ("movnti", "16MiB", 3),
            ("movnti", "2MiB", 0),
            ("clzero", "16MiB", 0),
        ] {
            assert_eq!(stores(routine, size).len(), count, "{routine} {size}");
        }
        let streaming = &stores_speed_up("rep_stosb", "1GiB")[0].published;
        assert_eq!(streaming.value, 11.78 / 5.42);
        assert_eq!(streaming.spread_percent, Some(0.13_f64.hypot(0.03)));
        assert!(fork_speed_up("8KiB").is_empty() && demand("4KiB").is_empty());
        let fork = &fork_speed_up("2MiB")[0];
        assert!((fork.published.value - 14305.0 / 10076.0).abs() < 1e-9);
        assert_eq!(
            (fork.published.cpu.as_str(), fork.workload.pages.as_deref()),
            ("Xeon Silver 4210R", Some("2MiB"))
        );
        let forks = values(&fork_microseconds("4KiB"));
        assert!((forks[0] - 14328.0).abs() < 1e-6 && (forks[1] - 14035.0).abs() < 1e-6);
        let two = parallel_speed_up(2);
        assert_eq!((two.len(), two[0].workload.memory.as_deref()), (7, Some("50GiB")));
        assert!((values(&two)[0] - 7.77 / 3.95).abs() < 1e-9);
        let spread = two[0].published.spread_percent.unwrap();
        assert!((spread - (2.0 / 7.77_f64).hypot(4.0 / 3.95)).abs() < 1e-9, "{spread}");
        for (metric, ratio) in [
            ("throughput", 1.166),
            ("user time", 1.0 / 0.928),
            ("instructions per cycle", 0.78 / 0.63),
        ] {
            assert!((values(&cow(metric))[0] - ratio).abs() < 1e-9, "{metric}");
        }
        let kernels: Vec<_> =
            demand("1GiB").iter().map(|one| one.workload.kernel.to_string()).collect();
        assert_eq!(kernels.len(), 4);
        assert!(kernels[0].ends_with("page by page") && kernels[1].ends_with("in ranges"));
    }

    /// The number of times as fast as half as many threads that this many were, on each CPU and for each size.
    fn gains_of(threads: usize) -> Vec<f64> {
        let rows = tables().remove("parallel").unwrap().rows;
        let seconds = |threads: usize, of: &PublishedRow| match threads {
            1 => of.before,
            _ => {
                rows.iter()
                    .find(|row| {
                        (row.threads, &row.cpu, &row.memory) == (Some(threads), &of.cpu, &of.memory)
                    })?
                    .after
            }
        };
        let of = rows.iter().filter(|row| row.threads == Some(threads));
        of.filter_map(|row| Some(seconds(threads / 2, row)? / row.after?)).collect()
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
