//! One guest that is restored: its first answer, and its memory read twice.

use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::machine::usage::process_time;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::micro_vm::{Faults, MicroVm};
use crate::record::Unit;
use hugekit_guests::Request;
use hugekit_sys::thread::cpu_time;

use super::reply::FIRST_REPLY;
use super::saved_guest::SavedGuest;
use super::ways::{RestoreWay, workload};
use crate::Observer;

pub(super) const LOADED_EARLIER: &str = "the image was loaded and put on huge pages before, once for all restores; a notice has \
     the time";

const WARMED_EARLIER: &str =
    "the file was put on huge pages of the page cache before, once for all restores";

const COPIED_EARLIER: &str =
    "the pager had copied all memory before the guest was resumed; load-and-touch counts that";

/// The measurements of one restored guest.
#[derive(Clone, Copy, Debug)]
struct RestoreFigures {
    /// From the request until the guest's first answer.
    first_reply: Duration,
    touch: Duration,
    /// The same touch again.
    again: Duration,
    /// The faults of the VMM during the first touch.
    faults: Faults,
    /// CPU time of the handler or pager, from its start to the end of the first touch.
    cpu: Duration,
    /// Bytes on transparent huge pages, if that is of interest.
    huge: Option<u64>,
}

pub(super) fn measure(saved: &SavedGuest, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let ways = RestoreWay::all(saved);
    rounds.observer.begin("restore: one guest");
    let touch = workload("touch", saved.len());
    let names: Vec<String> = ways.iter().map(|way| format!("{}/{touch}", way.method)).collect();
    let (mut part, seen) = rounds.measure_with("restore", Unit::Microseconds, &names, |index| {
        let seen = restore(&ways[index], saved, rounds.observer)?;
        Ok((micros(seen.touch), seen))
    })?;
    for (way, seen) in ways.iter().zip(&seen) {
        add_cases(way, seen, saved, &mut part);
    }
    part.notices.extend(major_faults(&ways, &seen));
    compare(saved, &mut part);
    Ok(part)
}

fn restore(
    way: &RestoreWay,
    saved: &SavedGuest,
    observer: &dyn Observer,
) -> Result<RestoreFigures, LabError> {
    let cpu_before = others_time();
    let server = way.serve(saved)?;
    let mut vm = MicroVm::start(saved.folders.sockets.path(), "clone", observer)?;
    let start = Instant::now();
    way.restore(&vm, &server, observer)?;
    vm.ask(Request::Reply)?;
    let first_reply = start.elapsed();
    let before = vm.faults()?;
    let touch = timed(&mut vm, saved.touch())?;
    let cpu = others_time().saturating_sub(cpu_before);
    let faults = vm.faults()?.since(before);
    let again = timed(&mut vm, saved.touch())?;
    let huge = way.huge_field().map(|field| vm.memory(field)).transpose()?;
    let wrong = vm.ask(saved.verify())?;
    drop(vm);
    server.end()?;
    if wrong > 0 {
        let differ = std::io::Error::other(format!("{wrong} words of the restored guest differ"));
        return Err(LabError::Program { name: "Firecracker", source: differ });
    }
    Ok(RestoreFigures { first_reply, touch, again, faults, cpu, huge })
}

fn timed(vm: &mut MicroVm<'_>, request: Request) -> Result<Duration, LabError> {
    let start = Instant::now();
    vm.ask(request)?;
    Ok(start.elapsed())
}

/// CPU time of the other threads of this process, which are those that serve the guest.
fn others_time() -> Duration {
    process_time().saturating_sub(cpu_time())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn add_cases(way: &RestoreWay, seen: &[RestoreFigures], saved: &SavedGuest, part: &mut Part) {
    let method = &way.method;
    let mut add = |what: &str, unit: Unit, figure: &dyn Fn(&RestoreFigures) -> f64| {
        part.add_case(&format!("{method}/{what}"), unit, seen.iter().map(figure).collect());
    };
    let of = |what: &str| workload(what, saved.len());
    if !way.replies_soon() {
        add(FIRST_REPLY, Unit::Microseconds, &|seen| micros(seen.first_reply));
    }
    let both = |seen: &RestoreFigures| micros(seen.first_reply + seen.touch);
    add(&of("load-and-touch"), Unit::Microseconds, &both);
    add(&of("warm-touch"), Unit::Microseconds, &|seen| micros(seen.again));
    add(&of("faults"), Unit::Faults, &|seen| seen.faults.minor as f64);
    if !matches!(way.backend, super::ways::Backend::File(_)) {
        add(&of("cpu"), Unit::Microseconds, &|seen| micros(seen.cpu));
    }
    if way.huge_field().is_some() {
        let share =
            |seen: &RestoreFigures| seen.huge.unwrap_or(0) as f64 / saved.len() as f64 * 100.0;
        add(&of("huge"), Unit::Percent, &|seen| share(seen).min(100.0));
    }
}

/// Major faults during touches, which should be none.
fn major_faults(ways: &[RestoreWay], seen: &[Vec<RestoreFigures>]) -> Option<String> {
    let most =
        |seen: &Vec<RestoreFigures>| seen.iter().map(|seen| seen.faults.major).max().unwrap_or(0);
    let some = ways.iter().zip(seen).filter(|(_, seen)| most(seen) > 0);
    let some: Vec<String> =
        some.map(|(way, seen)| format!("{} up to {}", way.method, most(seen))).collect();
    let has_some = !some.is_empty();
    has_some.then(|| format!("major faults of the VMM during the touch: {}", some.join(", ")))
}

/// The reason why the sides of a ratio do different work.
type Moved = Option<&'static str>;

fn compare(saved: &SavedGuest, part: &mut Part) {
    let of = |what: &str| workload(what, saved.len());
    let (touch, both, cpu) = (of("touch"), of("load-and-touch"), of("cpu"));
    let compared: [(&str, &str, &str, Moved); 14] = [
        ("on-demand-4k", "pager", &touch, None),
        ("on-demand-4k", "pager", &both, None),
        ("on-demand-4k", "pager-working-set", &touch, None),
        ("on-demand-4k", "pager-ahead", &touch, Some(COPIED_EARLIER)),
        ("on-demand-4k", "pager-ahead", &both, None),
        ("full-copy", "pager", &both, None),
        ("full-copy", "pager-ahead", &both, None),
        ("on-demand-4k", "hugetlb-on-demand", &touch, None),
        ("on-demand-4k", "hugetlb-ahead", &touch, Some(COPIED_EARLIER)),
        ("tmpfs", "image", &touch, Some(LOADED_EARLIER)),
        ("pager", "pager-working-set", &touch, None),
        ("pager", "pager-working-set", &cpu, None),
        ("image", "control-image", &touch, None),
        ("pager", "control-pager", &touch, None),
    ];
    for (baseline, subject, what, moved) in compared {
        part.compare((baseline, subject), what, moved);
    }
    for system in saved.cached.iter().map(|files| files.system.as_str()) {
        let [warmed, cold, advised] =
            ["warmed", "cold", "cold-transparent"].map(|state| format!("{system}-{state}"));
        part.compare((system, "image"), &touch, Some(LOADED_EARLIER));
        part.compare((system, &warmed), &touch, Some(WARMED_EARLIER));
        part.compare((&warmed, "image"), &touch, None);
        part.compare((&cold, &advised), &both, None);
    }
}
