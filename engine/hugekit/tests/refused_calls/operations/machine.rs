//! What is read of the machine, and the profile.

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{ClearOptions, Profile};
use hugekit_bulk::parallel::Placement;
use hugekit_machine as machine;
use hugekit_machine::Root;

use super::Run;
use crate::case::Point;

pub(super) const EACH: &[(&str, Run)] =
    hugekit_testing::checks![the_machine_is_read, the_machine_is_examined, the_profile_is_found,];

/// Whatever cannot be read is an error that names the file, and nothing else.
/// Of these, those that promise to work when memory is short.
pub(super) const SHORT: &[(&str, Run)] = hugekit_testing::checks![the_profile_is_found];

fn the_machine_is_read(point: &Point, _: Backing, _: FaultMode) {
    let root = &Root::default();
    point.refuse(|| {
        let _ = machine::cache::read(root);
        let _ = machine::cgroup::Cgroups::read(root).map(|groups| groups.memory());
        let _ = machine::hugepages::read(root);
        let _ = machine::limits::max_map_count(root);
        let _ = machine::mappings::read(root);
        let _ = machine::threads::ids(root);
        let _ = machine::userfaultfd::Userfaultfd::read(root);
        let _ = machine::Memory::read(root);
        let _ = Placement::read(root);
    });
}

/// The doctor says what it could not find out.
fn the_machine_is_examined(point: &Point, _: Backing, _: FaultMode) {
    let report = point.refuse(|| hugekit_doctor::examine(&Root::default()));
    match report {
        Some(report) => point.check(!report.lines.is_empty(), "nothing was found"),
        None => point.check(point.refused().is_some(), "no report"),
    }
}

fn the_profile_is_found(point: &Point, _: Backing, _: FaultMode) {
    let mut memory = vec![7_u8; 1 << 16];
    point.refuse(|| {
        let _ = Profile::current();
        let _ = ClearOptions::new().run(&mut memory);
    });
    point.check(super::is_zero(&memory), "not cleared");
}
