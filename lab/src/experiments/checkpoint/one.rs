//! One guest that is saved in each of the ways.

use crate::measure::part::{Part, Rounds};
use crate::measure::{LabError, Observer};
use crate::record::Unit;
use hugekit_machine::size::MIB;

use super::guest::{Guest, GuestPages, GuestSnapshots, GuestWrites};
use super::save::{Files, SaveCost};
use super::share::Share;
use super::ways::{Save, SaveWay, stock_on_disk};

pub(super) fn measure(snapshots: &GuestSnapshots, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let mut guests = Guests::start(snapshots, rounds.observer)?;
    let notice = guests.notice(snapshots)?;
    rounds.observer.begin("checkpoint: one guest");
    let ways = SaveWay::all(snapshots);
    let names: Vec<String> = ways.iter().map(|way| way.case("throughput")).collect();
    let (mut part, seen) =
        rounds.measure_with("checkpoint", Unit::StoresPerSecond, &names, |index| {
            let (saved, seen) = guests.save(&ways[index], snapshots)?;
            Ok((seen.writes_per_second, (saved, seen)))
        })?;
    part.notices.extend(notice);
    for (way, seen) in ways.iter().zip(&seen) {
        add_cases(way, seen, &mut part);
    }
    compare(snapshots, &mut part);
    Ok(part)
}

/// A guest of each kind.
struct Guests<'a>(Vec<Guest<'a>>);

impl<'a> Guests<'a> {
    fn start(snapshots: &'a GuestSnapshots, observer: &'a dyn Observer) -> Result<Self, LabError> {
        let start = |kind| Guest::start(kind, snapshots, observer);
        snapshots.kinds().into_iter().map(start).collect::<Result<_, _>>().map(Self)
    }

    fn of(&mut self, kind: GuestPages) -> &mut Guest<'a> {
        self.0
            .iter_mut()
            .find(|guest| guest.kind == kind)
            .expect("ways are of kinds that are there")
    }

    fn save(
        &mut self,
        way: &SaveWay,
        snapshots: &GuestSnapshots,
    ) -> Result<(SaveCost, GuestWrites), LabError> {
        let guest = self.of(way.kind);
        let files = Files::at(way.place, snapshots)?;
        guest.vm.resume()?;
        let saved = files.save(way, guest)?;
        guest.vm.pause()?;
        Ok(saved)
    }

    /// A notice if less than 95 % of the memory is on transparent huge pages.
    fn notice(&mut self, snapshots: &GuestSnapshots) -> Result<Option<String>, LabError> {
        let huge = self.of(GuestPages::Thp).vm.memory("AnonHugePages")? as usize;
        Ok((huge < snapshots.len() / 20 * 19).then(|| {
            let [huge, all] = [huge, snapshots.len()].map(hugekit_machine::size::Size);
            format!("only {huge} of {all} of the guest's memory are on transparent huge pages")
        }))
    }
}

fn add_cases(way: &SaveWay, seen: &[(SaveCost, GuestWrites)], part: &mut Part) {
    let mut add = |what: &str, unit: Unit, figure: &dyn Fn(&(SaveCost, GuestWrites)) -> f64| {
        part.add_case(&way.case(what), unit, seen.iter().map(figure).collect());
    };
    add("stall", Unit::Microseconds, &|(_, seen)| seen.longest);
    if way.save == Save::Idle {
        return;
    }
    add("paused", Unit::Microseconds, &|(saved, _)| saved.paused.as_secs_f64() * 1e6);
    add("complete", Unit::Microseconds, &|(saved, _)| saved.complete.as_secs_f64() * 1e6);
    add("bytes", Unit::Mebibytes, &|(saved, _)| saved.bytes as f64 / MIB as f64);
}

const ALL: &[&str] = &["paused", "stall", "throughput", "complete", "bytes"];

fn compare(snapshots: &GuestSnapshots, part: &mut Part) {
    let disk = stock_on_disk(snapshots);
    let compared: [(&str, &str, &[&str]); 18] = [
        ("stock-full-tmpfs", "checkpoint", &["paused", "stall", "throughput"]),
        ("stock-full-tmpfs", "checkpoint-tmpfs", &["complete", "bytes"]),
        ("stock-full-tmpfs", "checkpoint-base", &["paused", "stall", "throughput"]),
        ("stock-full-tmpfs", "checkpoint-hugetlb", &["paused", "stall", "throughput"]),
        (&disk, "checkpoint", ALL),
        ("stock-diff", "delta", ALL),
        ("stock-diff", "delta-in-series", ALL),
        ("checkpoint", "delta", ALL),
        ("checkpoint", "delta-in-series", ALL),
        ("delta", "delta-in-series", ALL),
        ("checkpoint-base", "checkpoint", ALL),
        ("checkpoint-hugetlb", "checkpoint", ALL),
        ("idle", "checkpoint", &["throughput"]),
        ("idle-base", "checkpoint-base", &["throughput"]),
        ("idle-hugetlb", "checkpoint-hugetlb", &["throughput"]),
        ("idle", "delta", &["throughput"]),
        ("idle", "delta-in-series", &["throughput"]),
        ("idle", "idle-logged", &["throughput"]),
    ];
    for (baseline, subject, whats) in compared {
        for what in whats.iter().flat_map(|what| Share::ALL.map(|share| share.case(what))) {
            part.compare((baseline, subject), &what, None);
        }
    }
}
