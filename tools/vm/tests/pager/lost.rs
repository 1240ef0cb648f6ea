//! VMs whose message was lost with the pager that they had sent it to.
//!
//! The pager is stopped before the VMM connects: the kernel accepts the connection and the message,
//! so the VMM goes on, and the pager is killed before it has seen either.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Instant;

use hugekit_guests::{Pages, Request, SmallVmm};
use hugekit_testing::trials::{self, Checks};
use libtest_mimic::Trial;
use rustix::fs::{FlockOperation, flock};

use crate::fixture::Fixture;
use crate::memory_file::{MIB, MemoryFile};
use crate::pager_process::{LONGEST_WAIT, Options, PagerProcess};
use crate::small::state_files;

const LEN: u64 = 16 * MIB;

/// The second one lies behind the first one in the file.
const REGIONS: [u64; 2] = [12 * MIB, 4 * MIB];

const CHECKS: Checks = &[
    ("lost::vm_whose_message_was_lost_is_served", is_served),
    ("lost::vm_that_waits_meanwhile_is_served", waiting_one_is_served),
    ("lost::vm_lost_by_a_pager_before_the_last_is_served", is_served_after_two_kills),
    ("lost::regions_are_distinguished_by_an_earlier_vm", regions_by_an_earlier_vm),
    ("lost::regions_are_distinguished_by_a_later_vm", regions_by_a_later_vm),
    ("lost::regions_that_cannot_be_distinguished_end_the_vm", ambiguous_regions_end_the_vm),
    ("lost::vm_that_is_complete_is_not_claimed", complete_vm),
    ("lost::vm_of_another_pager_is_left_to_it", vm_of_another_pager),
    ("lost::vm_of_another_file_shows_that_file", vm_of_another_file),
    ("lost::vm_of_a_file_that_was_replaced_ends", vm_of_a_replaced_file),
];

pub(crate) fn trials() -> Vec<Trial> {
    trials::trials(CHECKS, None)
}

/// Starts a VM whose message the pager never sees, and kills the pager.
fn lose(fixture: &mut Fixture, regions: &[u64]) -> SmallVmm {
    fixture.pager.freeze();
    let mut vm = fixture.vm_of(regions);
    // It answers when it has sent its message.
    vm.serial.ask(Request::Reply).unwrap();
    fixture.pager.kill();
    vm
}

fn is_served() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = lose(&mut fixture, &[LEN]);
    fixture.start_next();
    let line = fixture.pager.await_line("taken over");
    assert!(line.starts_with(&format!("{}:", vm.pid())), "{line}");
    fixture.check(&mut vm, None);
    await_records_of_one_pager(&fixture, || ());
}

fn waiting_one_is_served() {
    let mut fixture = Fixture::new(LEN);
    fixture.pager.freeze();
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Reply).unwrap();
    vm.serial.send(Request::Touch { start: MIB, len: 2 * MIB }).unwrap();
    vm.serial.send(Request::Remove { start: 4 * MIB, len: MIB }).unwrap();
    fixture.pager.kill();
    fixture.start_next();
    for _ in 0..2 {
        vm.serial.answer_within(LONGEST_WAIT).unwrap();
    }
    fixture.check(&mut vm, Some((4 * MIB, MIB)));
}

/// The second pager is killed before it has looked at what the first one has lost.
fn is_served_after_two_kills() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut first = lose(&mut fixture, &[LEN]);
    fixture.start_next();
    let mut second = lose(&mut fixture, &[LEN]);
    fixture.start_next();
    for vm in [&mut first, &mut second] {
        fixture.check(vm, None);
    }
}

fn regions_by_an_earlier_vm() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut earlier = fixture.vm_of(&REGIONS);
    fixture.check(&mut earlier, None);
    drop(earlier);
    fixture.pager.await_line("ended");
    let mut vm = lose(&mut fixture, &REGIONS);
    fixture.start_next();
    fixture.check(&mut vm, None);
}

fn regions_by_a_later_vm() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = lose(&mut fixture, &REGIONS);
    vm.serial.send(Request::Touch { start: 0, len: 4096 }).unwrap();
    fixture.start_next();
    let line = fixture.pager.await_line("cannot be distinguished yet");
    assert!(line.starts_with(&format!("{}: waits", vm.pid())), "{line}");
    let mut later = fixture.vm_of(&REGIONS);
    fixture.check(&mut later, None);
    vm.serial.answer_within(LONGEST_WAIT).unwrap();
    fixture.check(&mut vm, None);
}

fn ambiguous_regions_end_the_vm() {
    let at_once = |all| Options { prefetch: false, patience_ms: 0, ..all };
    let mut fixture = Fixture::with(LEN, at_once);
    let mut vm = lose(&mut fixture, &REGIONS);
    vm.serial.send(Request::Touch { start: 0, len: 4096 }).unwrap();
    fixture.start_next();
    assert!(vm.serial.answer_within(LONGEST_WAIT).is_err(), "the VM goes on");
    let line = fixture.pager.await_line("cannot be distinguished");
    assert!(line.starts_with(&format!("{}: refused", vm.pid())), "{line}");
    // The pager goes on.
    let mut other = fixture.vm_of(&REGIONS);
    fixture.check(&mut other, None);
}

/// The next pager looks whether the VM was lost, and a checkpoint can save it meanwhile.
fn complete_vm() {
    let mut fixture = Fixture::new(LEN);
    let mut vm = fixture.vm();
    fixture.pager.await_line("left to the kernel");
    fixture.pager.kill();
    fixture.start_next();
    let memory = File::open(format!("/proc/{}/mem", vm.pid())).unwrap();
    await_records_of_one_pager(&fixture, || {
        flock(&memory, FlockOperation::NonBlockingLockExclusive).unwrap();
        flock(&memory, FlockOperation::Unlock).unwrap();
    });
    fixture.check(&mut vm, None);
}

/// Waits until the pager needs no records of earlier ones, and does something meanwhile.
fn await_records_of_one_pager(fixture: &Fixture, meanwhile: impl Fn()) {
    let until = Instant::now() + LONGEST_WAIT;
    let is_pager = |path: &PathBuf| path.extension().is_some_and(|e| e == "pager");
    while state_files(fixture.folder()).iter().filter(|path| is_pager(path)).count() > 1 {
        assert!(Instant::now() < until, "the records are left");
        meanwhile();
    }
}

fn vm_of_another_pager() {
    let (mut one, mut two) = (Fixture::on_demand(LEN), Fixture::on_demand(LEN));
    let mut of_one = lose(&mut one, &[LEN]);
    let mut of_two = lose(&mut two, &[LEN]);
    one.start_next();
    one.check(&mut of_one, None);
    assert!(!one.pager.log().contains(&format!("{}:", of_two.pid())), "{}", one.pager.log());
    two.start_next();
    two.check(&mut of_two, None);
}

/// The next pager at the socket has another memory file.
fn vm_of_another_file() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = lose(&mut fixture, &[LEN]);
    let other = fixture.folder().join("other");
    fs::create_dir(&other).unwrap();
    let zeroes = other.join("memory.bin");
    File::create(&zeroes).unwrap().set_len(LEN).unwrap();
    let options = Options { memory: zeroes, ..fixture.options.clone() };
    fixture.pager = PagerProcess::start(fixture.folder(), &options);
    fixture.check(&mut vm, None);
}

fn vm_of_a_replaced_file() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = lose(&mut fixture, &[LEN]);
    fs::remove_file(&fixture.memory.path).unwrap();
    MemoryFile::create(fixture.folder(), LEN);
    fixture.start_next();
    assert!(vm.serial.ask(Request::Touch { start: 0, len: 4096 }).is_err(), "the VM goes on");
    fixture.pager.await_line("is not the one that the VM was restored from");
    let mut other = SmallVmm::start(&fixture.pager.socket, &[LEN], Pages::Base).unwrap();
    fixture.check(&mut other, None);
}
