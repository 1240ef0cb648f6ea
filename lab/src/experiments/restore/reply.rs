//! How soon a restored guest answers, in many short rounds: the time varies from restore to restore
//! by more than the ways differ.

use std::time::Instant;

use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::micro_vm::MicroVm;
use crate::measure::{LabError, Observer};
use crate::record::Unit;
use hugekit_guests::Request;

use super::one::LOADED_EARLIER;
use super::saved_guest::SavedGuest;
use super::ways::RestoreWay;

pub(super) const FIRST_REPLY: &str = "first-reply";

pub(super) fn measure(saved: &SavedGuest, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let ways: Vec<RestoreWay> =
        RestoreWay::all(saved).into_iter().filter(RestoreWay::replies_soon).collect();
    rounds.observer.begin("restore: first reply");
    let names: Vec<String> =
        ways.iter().map(|way| format!("{}/{FIRST_REPLY}", way.method)).collect();
    let mut part = rounds.measure("restore", Unit::Microseconds, &names, |index| {
        restore(&ways[index], saved, rounds.observer)
    })?;
    let disk = saved.folders.disk_name();
    for pair in [
        ("on-demand-4k", "pager"),
        ("on-demand-4k", "pager-working-set"),
        ("pager", "control-pager"),
        ("image", "control-image"),
    ] {
        part.compare(pair, FIRST_REPLY, None);
    }
    part.compare((disk, "image"), FIRST_REPLY, Some(LOADED_EARLIER));
    Ok(part)
}

/// Microseconds from the request until the guest's answer.
fn restore(way: &RestoreWay, saved: &SavedGuest, observer: &dyn Observer) -> Result<f64, LabError> {
    let server = way.serve(saved)?;
    let mut vm = MicroVm::start(saved.folders.sockets.path(), "clone", observer)?;
    let start = Instant::now();
    way.restore(&vm, &server, observer)?;
    vm.ask(Request::Reply)?;
    let time = start.elapsed();
    drop(vm);
    server.end()?;
    Ok(time.as_secs_f64() * 1e6)
}
