//! One guest that is saved in each of the ways.

use crate::measure::part::{Part, Rounds};
use crate::measure::{LabError, Observer};
use crate::record::Unit;
use hugekit_machine::size::MIB;

use super::guest::{Guest, Kind, Origin, Seen};
use super::save::{Files, Saved};
use super::share::Share;
use super::ways::{Save, Way, stock_on_disk};

pub(super) fn measure(origin: &Origin, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let mut guests = Guests::start(origin, rounds.observer)?;
    let notice = guests.notice(origin)?;
    rounds.observer.begin("checkpoint: one guest");
    let ways = Way::all(origin);
    let names: Vec<String> = ways.iter().map(|way| way.case("throughput")).collect();
    let (mut part, seen) =
        rounds.measure_with("checkpoint", Unit::StoresPerSecond, &names, |index| {
            let (saved, seen) = guests.save(&ways[index], origin)?;
            Ok((seen.writes_per_second, (saved, seen)))
        })?;
    part.notices.extend(notice);
    for (way, seen) in ways.iter().zip(&seen) {
        add_cases(way, seen, &mut part);
    }
    compare(origin, &mut part);
    Ok(part)
}

/// A guest of each kind.
struct Guests<'a>(Vec<Guest<'a>>);

impl<'a> Guests<'a> {
    fn start(origin: &'a Origin, observer: &'a dyn Observer) -> Result<Self, LabError> {
        let start = |kind| Guest::start(kind, origin, observer);
        origin.kinds().into_iter().map(start).collect::<Result<_, _>>().map(Self)
    }

    fn of(&mut self, kind: Kind) -> &mut Guest<'a> {
        self.0
            .iter_mut()
            .find(|guest| guest.kind == kind)
            .expect("ways are of kinds that are there")
    }

    fn save(&mut self, way: &Way, origin: &Origin) -> Result<(Saved, Seen), LabError> {
        let guest = self.of(way.kind);
        let files = Files::at(way.place, origin)?;
        guest.vm.resume()?;
        let saved = files.save(way, guest)?;
        guest.vm.pause()?;
        Ok(saved)
    }

    /// A notice if less than 95 % of the memory is on transparent huge pages.
    fn notice(&mut self, origin: &Origin) -> Result<Option<String>, LabError> {
        let huge = self.of(Kind::Thp).vm.memory("AnonHugePages")? as usize;
        Ok((huge < origin.len() / 20 * 19).then(|| {
            let [huge, all] = [huge, origin.len()].map(hugekit_machine::size::Size);
            format!("only {huge} of {all} of the guest's memory are on transparent huge pages")
        }))
    }
}

fn add_cases(way: &Way, seen: &[(Saved, Seen)], part: &mut Part) {
    let mut add = |what: &str, unit: Unit, figure: &dyn Fn(&(Saved, Seen)) -> f64| {
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

fn compare(origin: &Origin, part: &mut Part) {
    let disk = stock_on_disk(origin);
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
