//! Published figures, to stand beside measured ones where the workload is the same.

use serde::{Deserialize, Serialize};

use crate::size::Size;

/// A figure from published work, in the unit of the case or ratio it stands beside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The work it comes from.
    pub source: String,
    /// The CPU it was measured on.
    pub cpu: String,
    /// The figure.
    pub value: f64,
}

/// The parts of `data/published.toml` that an experiment of this version repeats.
#[derive(Debug, Deserialize)]
struct Tables {
    clear: Vec<ClearTable>,
    stores: Vec<StoresTable>,
    parallel: Vec<ParallelTable>,
    fork: Vec<ForkTable>,
    cow: Vec<CowTable>,
}

impl Tables {
    /// The figures that ship with the lab. A test reads the same embedded text.
    fn load() -> Self {
        let text = include_str!("../data/published.toml");
        toml::from_str(text).expect("data/published.toml is part of the crate and tested")
    }
}

/// Huge pages cleared page by page and in extents, in GiB/s of demand faults.
#[derive(Debug, Deserialize)]
struct ClearTable {
    source: String,
    rows: Vec<ClearRow>,
}

#[derive(Debug, Deserialize)]
struct ClearRow {
    cpu: String,
    page: String,
    page_at_a_time: f64,
    extents: f64,
}

/// String stores against `movnti`, in GiB/s.
#[derive(Debug, Deserialize)]
struct StoresTable {
    source: String,
    rows: Vec<StoresRow>,
}

#[derive(Debug, Deserialize)]
struct StoresRow {
    cpu: String,
    baseline: String,
    size: String,
    string: f64,
    streaming: f64,
}

/// Gigantic pages cleared by several threads.
#[derive(Debug, Deserialize)]
struct ParallelTable {
    rows: Vec<ParallelRow>,
}

#[derive(Debug, Deserialize)]
struct ParallelRow {
    cpu: String,
    threads: usize,
    speedup: Option<f64>,
}

/// Published bandwidths of demand faults.
#[derive(Debug)]
pub(crate) struct Demand(Tables);

impl Demand {
    /// The figures that ship with the lab.
    pub(crate) fn load() -> Self {
        Self(Tables::load())
    }

    /// GiB/s of a kernel that clears pages of this size base page by base page.
    pub(crate) fn page_at_a_time(&self, page: &str) -> Vec<Published> {
        let of_table = |table: &ClearTable| -> Vec<Published> {
            let rows = table.rows.iter().filter(|row| row.page == page);
            rows.map(|row| Published {
                source: table.source.clone(),
                cpu: row.cpu.clone(),
                value: row.page_at_a_time,
            })
            .collect()
        };
        self.0.clear.iter().flat_map(of_table).collect()
    }

    /// The figures of clearing in extents: `2MiB 8.76 to 11.82 Intel Ice Lake-X`.
    pub(crate) fn changes(&self) -> Vec<String> {
        let rows = self.0.clear.iter().flat_map(|table| &table.rows);
        rows.map(|row| {
            let cpu: Vec<_> = row
                .cpu
                .split(' ')
                .take_while(|word| *word != "Platinum" && *word != "EPYC")
                .collect();
            format!("{} {} to {} {}", row.page, row.page_at_a_time, row.extents, cpu.join(" "))
        })
        .collect()
    }
}

/// `fork(2)` of 1 GiB on folios of one size.
#[derive(Debug, Deserialize)]
struct ForkTable {
    source: String,
    workload: String,
    rows: Vec<ForkRow>,
}

#[derive(Debug, Deserialize)]
struct ForkRow {
    folio: String,
    unbatched: f64,
    batched: f64,
    change: f64,
}

/// Published times of `fork(2)` by folio size.
#[derive(Debug)]
pub(crate) struct Fork(Tables);

impl Fork {
    /// The figures that ship with the lab.
    pub(crate) fn load() -> Self {
        Self(Tables::load())
    }

    /// The change in time in percent by copying tables by runs, as printed.
    pub(crate) fn change(&self, folio: usize) -> Option<f64> {
        self.rows(folio).map(|(_, row)| row.change).next()
    }

    /// How many times faster all of `fork(2)` was by runs.
    pub(crate) fn speed_up(&self, folio: usize) -> Vec<Published> {
        self.figures(folio, |row| row.unbatched / row.batched)
    }

    /// Microseconds of all of `fork(2)`, tables copied by runs as kernels since then do.
    pub(crate) fn microseconds(&self, folio: usize) -> Vec<Published> {
        self.figures(folio, |row| row.batched * 1e6)
    }

    fn figures(&self, folio: usize, pick: impl Fn(&ForkRow) -> f64) -> Vec<Published> {
        let figure = |(table, row): (&ForkTable, &ForkRow)| Published {
            source: table.source.clone(),
            cpu: table.workload.rsplit(", ").next().unwrap_or_default().to_owned(),
            value: pick(row),
        };
        self.rows(folio).map(figure).collect()
    }

    fn rows(&self, folio: usize) -> impl Iterator<Item = (&ForkTable, &ForkRow)> {
        let same =
            move |row: &&ForkRow| row.folio.parse::<Size>().is_ok_and(|printed| printed.0 == folio);
        self.0
            .fork
            .iter()
            .flat_map(move |table| table.rows.iter().filter(same).map(move |row| (table, row)))
    }
}

/// Writers that diverge from one origin, the target copied last.
#[derive(Debug, Deserialize)]
struct CowTable {
    workload: String,
    rows: Vec<CowRow>,
}

#[derive(Debug, Deserialize)]
struct CowRow {
    metric: String,
    change: Option<f64>,
    before: Option<f64>,
    after: Option<f64>,
}

/// Published changes of anon-cow-seq.
#[derive(Debug)]
pub(crate) struct Cow(Tables);

impl Cow {
    /// The figures that ship with the lab.
    pub(crate) fn load() -> Self {
        Self(Tables::load())
    }

    /// In words: `throughput +16.6 %, … (workload)`.
    pub(crate) fn changes(&self) -> String {
        let change = |row: &CowRow| match (row.change, row.before.zip(row.after)) {
            (Some(change), _) => Some(format!("{} {change:+.1} %", row.metric)),
            (None, Some((before, after))) => Some(format!("{} {before} to {after}", row.metric)),
            (None, None) => None,
        };
        let table = |table: &CowTable| {
            let changes: Vec<String> = table.rows.iter().filter_map(change).collect();
            format!("{} ({})", changes.join(", "), table.workload)
        };
        self.0.cow.iter().map(table).collect::<Vec<_>>().join("; ")
    }
}

/// Published speed-ups by number of threads.
#[derive(Debug)]
pub(crate) struct Parallel(Tables);

impl Parallel {
    /// The figures that ship with the lab.
    pub(crate) fn load() -> Self {
        Self(Tables::load())
    }

    /// The range of speed-ups over all sizes, for each CPU that was measured with so many threads:
    /// `2 threads 1.88-1.97 SPARC`.
    pub(crate) fn speed_ups(&self, threads: usize) -> Vec<String> {
        let rows = self.0.parallel.iter().flat_map(|table| &table.rows);
        let mut ranges: Vec<(&str, f64, f64)> = Vec::new();
        for row in rows.filter(|row| row.threads == threads) {
            let Some(speedup) = row.speedup else { continue };
            match ranges.iter_mut().find(|(cpu, ..)| *cpu == row.cpu) {
                Some((_, least, most)) => (*least, *most) = (least.min(speedup), most.max(speedup)),
                None => ranges.push((&row.cpu, speedup, speedup)),
            }
        }
        let show = |(cpu, least, most): &(&str, f64, f64)| {
            let name = cpu.split(['-', ',']).next().unwrap_or(cpu);
            format!("{threads} threads {least:.2}-{most:.2} {name}")
        };
        ranges.iter().map(show).collect()
    }
}

/// Published bandwidths of one routine and their ratios, for one size.
#[derive(Debug)]
pub(crate) struct Stores(Tables);

impl Stores {
    /// The figures that ship with the lab.
    pub(crate) fn load() -> Self {
        Self(Tables::load())
    }

    /// GiB/s of the routine with this name of ours, at this size.
    pub(crate) fn bandwidth(&self, routine: &str, size: &str) -> Vec<Published> {
        self.rows(size, |row| match routine {
            "movnti" => Some(row.streaming),
            _ if row.baseline.replace(' ', "_") == routine => Some(row.string),
            _ => None,
        })
    }

    /// How many times faster `movnti` was than this string routine, at this size.
    pub(crate) fn speed_up(&self, string_routine: &str, size: &str) -> Vec<Published> {
        self.rows(size, |row| {
            let same = row.baseline.replace(' ', "_") == string_routine;
            same.then(|| row.streaming / row.string)
        })
    }

    fn rows(&self, size: &str, pick: impl Fn(&StoresRow) -> Option<f64>) -> Vec<Published> {
        let of_table = |table: &StoresTable| -> Vec<Published> {
            let rows = table.rows.iter().filter(|row| row.size == size);
            rows.filter_map(|row| {
                Some(Published {
                    source: table.source.clone(),
                    cpu: row.cpu.clone(),
                    value: pick(row)?,
                })
            })
            .collect()
        };
        self.0.stores.iter().flat_map(of_table).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_routine_finds_its_published_rows() {
        let stores = Stores::load();
        assert_eq!(stores.bandwidth("rep_stosb", "16MiB").len(), 2);
        assert_eq!(stores.bandwidth("rep_stosq", "16MiB").len(), 1);
        assert_eq!(stores.bandwidth("movnti", "16MiB").len(), 3);
        assert_eq!(stores.bandwidth("movnti", "2MiB").len(), 0);
        assert_eq!(stores.bandwidth("clzero", "16MiB").len(), 0);
    }

    #[test]
    fn a_published_speed_up_is_streaming_over_string() {
        let rows = Stores::load().speed_up("rep_stosb", "1GiB");
        assert!((rows[0].value - 11.78 / 5.42).abs() < 1e-9);
    }

    #[test]
    fn a_folio_is_found_however_its_size_is_written() {
        let fork = Fork::load();
        assert_eq!(fork.change(4 << 10), Some(-2.0));
        assert_eq!(fork.change(2 << 20), Some(-30.0));
        assert_eq!(fork.change(8 << 10), None);
        let gain = &fork.speed_up(2 << 20)[0];
        assert!((gain.value - 14305.0 / 10076.0).abs() < 1e-9);
        assert_eq!(gain.cpu, "Xeon Silver 4210R");
        assert!((fork.microseconds(4 << 10)[0].value - 14035.0).abs() < 1e-6);
    }
}
