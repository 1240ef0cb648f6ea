//! What is read of the machine, and the profile.

use hugekit::fault::Handling;
use hugekit::machine::{self, Root};
use hugekit::parallel::Placement;
use hugekit::pool::Backing;
use hugekit::{Clear, Profile};

use super::Run;
use crate::case::Point;

pub(super) const EACH: &[(&str, Run)] =
    &[("the_machine_is_read", the_machine_is_read), ("the_profile_is_found", the_profile_is_found)];

/// Whatever cannot be read is an error that names the file, and nothing else.
fn the_machine_is_read(point: &Point, _: Backing, _: Handling) {
    let root = &Root::default();
    point.refuse(|| {
        let _ = machine::cache::read(root);
        let _ = machine::cgroup::Cgroups::read(root).map(|groups| groups.memory());
        let _ = machine::hugepages::read(root);
        let _ = machine::kvm::api_version(root);
        let _ = machine::limits::max_map_count(root);
        let _ = machine::mappings::read(root);
        let _ = machine::thp::page_sizes(root);
        let _ = machine::threads::ids(root);
        let _ = machine::userfaultfd::Userfaultfd::read(root);
        let _ = machine::host::Host::read(root);
        let _ = machine::Memory::read(root);
        let _ = Placement::read(root);
    });
}

fn the_profile_is_found(point: &Point, _: Backing, _: Handling) {
    let mut memory = vec![7_u8; 1 << 16];
    point.refuse(|| {
        let _ = Profile::current();
        let _ = Clear::new().run(&mut memory);
    });
    point.check(super::is_zero(&memory), "not cleared");
}
