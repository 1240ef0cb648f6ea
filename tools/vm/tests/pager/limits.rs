//! VMs in control groups that leave little memory.

use hugekit_guests::Request;
use hugekit_testing::control_group::ControlGroup;
use hugekit_testing::trials;
use libtest_mimic::Trial;

use crate::fixture::Fixture;
use crate::memory_file::MIB;

/// The group has room for a part of the memory.
const LEN: u64 = 128 * MIB;
const LIMIT: u64 = 64 * MIB;

const CHECKS: trials::Checks = &[(
    "limits::reading_ahead_ends_before_the_group_of_the_vm_is_full",
    reading_ahead_ends_in_time,
)];

pub(crate) fn trials() -> Vec<Trial> {
    trials::trials(CHECKS, ControlGroup::lacking("memory"))
}

fn reading_ahead_ends_in_time() {
    let group = ControlGroup::new("memory").unwrap();
    group.limit(LIMIT as usize);
    let fixture = Fixture::new(LEN);
    let mut vm = group.with_this_process(|| fixture.vm());
    let line = fixture.pager.await_line("nothing more is read ahead");
    assert!(line.contains(group.folder.to_str().unwrap()), "{line}");
    // Memory that the VM touches is supplied still.
    vm.serial.ask(Request::Touch { start: 0, len: 4 * MIB }).unwrap();
    vm.serial.ask(Request::Touch { start: LEN - MIB, len: MIB }).unwrap();
    assert!(vm.ending_within(std::time::Duration::ZERO).unwrap().is_none(), "the VM has ended");
}
