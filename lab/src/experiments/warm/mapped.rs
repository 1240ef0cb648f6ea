//! Processes that map the file, or copy it.

use std::io;
use std::path::Path;

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::Pages;
use crate::record::Unit;
use hugekit_machine::size::Size;

use super::process::{Access, Figures};
use super::{FileCache, Files};

const WARMED_EARLIER: &str =
    "the file was put on huge pages of the page cache before, once for all processes";

const COPIES_ALL: &str = "the copy reads all bytes, the mapping a byte of each page";

/// A way to the bytes: its name in IDs, the state of the page cache, and the access.
#[derive(Clone, Copy, Debug)]
struct Way {
    method: &'static str,
    cache: FileCache,
    access: Access,
}

const fn way(method: &'static str, cache: FileCache, access: Access) -> Way {
    Way { method, cache, access }
}

const WAYS: [Way; 5] = [
    way("small", FileCache::Small, Access::Map),
    way("warmed", FileCache::Warmed, Access::Map),
    way("control-warmed", FileCache::Warmed, Access::Map),
    way("read", FileCache::Small, Access::Read(Pages::Base)),
    way("read-thp", FileCache::Small, Access::Read(Pages::Thp)),
];

impl Way {
    /// A sample, after the state of the page cache was checked. The figures are of the same bytes as those before.
    fn sample(self, files: &Files, sum: &mut Option<u64>) -> Result<Figures, LabError> {
        let path: &Path = match self.cache {
            FileCache::Warmed => &files.warmed,
            FileCache::Small | FileCache::Cold => &files.small,
        };
        self.cache.prepare(path)?;
        let figures = self.access.sample(path, files.bytes)?;
        if *sum.get_or_insert(figures.sum) != figures.sum {
            let differ = io::Error::other(format!("{} has loaded other bytes", self.method));
            return Err(LabError::Saved(differ));
        }
        Ok(figures)
    }
}

pub(super) fn measure(files: &Files, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("warm: processes");
    let size = Size(files.bytes);
    let names = WAYS.map(|way| format!("{}/touch-{size}", way.method));
    let mut sum = None;
    let (mut part, seen) = rounds.measure_with("warm", Unit::Microseconds, &names, |index| {
        let figures = WAYS[index].sample(files, &mut sum)?;
        Ok((micros(figures.touch), figures))
    })?;
    for (way, seen) in WAYS.iter().zip(&seen) {
        let mut add = |what: &str, unit, figure: fn(&Figures) -> f64| {
            let name = format!("{}/{what}-{size}", way.method);
            part.add_case(&name, unit, seen.iter().map(figure).collect());
        };
        add("touch-cpu", Unit::Microseconds, |seen| micros(seen.cpu));
        add("touch-faults", Unit::Faults, |seen| seen.faults as f64);
        add("loads", Unit::Microseconds, |seen| micros(seen.loads));
        let share = |seen: &Figures| seen.huge as f64 / files.bytes as f64 * 100.0;
        let name = format!("{}/huge-{size}", way.method);
        part.add_case(&name, Unit::Percent, seen.iter().map(share).collect());
    }
    compare(size, &mut part);
    Ok(part)
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn compare(size: Size, part: &mut Part) {
    for what in ["touch", "touch-cpu", "touch-faults", "loads"] {
        let workload = format!("{what}-{size}");
        let of_touch = |moved| (what != "loads").then_some(moved);
        part.compare(("small", "warmed"), &workload, of_touch(WARMED_EARLIER));
        part.compare(("read", "warmed"), &workload, of_touch(COPIES_ALL));
        part.compare(("read-thp", "warmed"), &workload, of_touch(COPIES_ALL));
        part.compare(("warmed", "control-warmed"), &workload, None);
    }
}
