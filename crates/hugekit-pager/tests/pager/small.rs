//! A small VMM, which needs no virtualization: bytes, memory given back, a memory file that is cut
//! off.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request, SmallVmm};
use libtest_mimic::{Failed, Trial};
use tempfile::TempDir;

use crate::memory_file::{MIB, MemoryFile};
use crate::pager_process::{Options, PagerProcess};

const LEN: u64 = 64 * MIB;

type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("every_byte_of_odd_regions_is_shown_on_demand", every_byte_of_odd_regions),
    ("every_byte_is_shown_by_single_pages", every_byte_by_single_pages),
    ("every_byte_is_there_when_the_pager_has_left", every_byte_when_the_pager_has_left),
    ("pager_that_stays_serves_what_is_given_back", pager_that_stays),
    ("memory_given_back_in_a_loop_reads_zero", memory_given_back_in_a_loop),
    ("memory_given_back_reads_zero_after_a_kill", memory_given_back_before_a_kill),
    ("memory_given_back_while_the_pager_leaves_hangs_no_vm", memory_given_back_while_leaving),
    ("message_that_a_killed_pager_had_read_is_not_lost", message_of_a_killed_pager),
    ("vm_that_a_killed_pager_was_leaving_is_left", leaving_of_a_killed_pager),
    ("one_fault_brings_in_two_mebibytes", one_fault_brings_in_a_block),
    ("second_restore_reads_what_the_first_one_touched", working_set_is_recorded),
    ("memory_file_that_is_cut_off_ends_the_vm_and_not_the_pager", memory_file_that_is_cut_off),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |&(name, check): &Check| {
        Trial::test(format!("small::{name}"), move || {
            check();
            Ok::<(), Failed>(())
        })
    };
    CHECKS.iter().map(trial).collect()
}

fn start(pager: &PagerProcess, regions: &[u64]) -> SmallVmm {
    SmallVmm::start(&pager.socket, regions, Pages::Base).unwrap()
}

/// Regions whose offsets are no multiples of 2 MiB, so that blocks lie in two of them.
fn every_byte_of_odd_regions() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { prefetch: false, ..Options::new(&memory.path) };
    let pager = PagerProcess::start(folder.path(), &options);
    let regions = [5 * MIB + 4096, 4096, 21 * MIB - 3 * 4096];
    let last = LEN - regions.iter().sum::<u64>();
    let mut vmm = start(&pager, &[&regions[..], &[last]].concat());
    // From the last byte on backwards first.
    for at in (0..LEN / MIB).rev() {
        vmm.serial.ask(Request::Touch { start: at * MIB, len: 4096 }).unwrap();
    }
    memory.check(&mut vmm.serial, None);
}

fn every_byte_by_single_pages() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN / 8);
    let options = Options { prefetch: false, around: 4096, ..Options::new(&memory.path) };
    let pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[memory.len]);
    memory.check(&mut vmm.serial, None);
}

fn every_byte_when_the_pager_has_left() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let mut pager = PagerProcess::start(folder.path(), &Options::new(&memory.path));
    let mut vmm = start(&pager, &[LEN]);
    pager.await_line("left to the kernel");
    pager.kill();
    memory.check(&mut vmm.serial, None);
    let left: Vec<_> = std::fs::read_dir(folder.path().join("pager.sock.state")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn pager_that_stays() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { stay: true, ..Options::new(&memory.path) };
    let pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    pager.await_line("still served");
    let removed = (2 * MIB, 6 * MIB);
    vmm.serial.ask(Request::Remove { start: removed.0, len: removed.1 }).unwrap();
    memory.check(&mut vmm.serial, Some(removed));
}

/// While everything is being read ahead. Pages that are given back again and again must never show
/// the file's bytes.
fn memory_given_back_in_a_loop() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    for _ in 0..4 {
        let pager = PagerProcess::start(folder.path(), &Options::new(&memory.path));
        let mut vmm = start(&pager, &[LEN]);
        let removed = (6 * MIB, 12 * MIB);
        for round in 0..200 {
            let len = MIB / 2;
            let start = removed.0 + round * len % removed.1;
            vmm.serial.ask(Request::Remove { start, len }).unwrap();
            assert_eq!(vmm.serial.ask(Request::NotZero { start, len }).unwrap(), 0, "{round}");
        }
        memory.check(&mut vmm.serial, Some(removed));
    }
}

fn memory_given_back_before_a_kill() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { prefetch: false, ..Options::new(&memory.path) };
    let mut pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    let removed = (2 * MIB, 3 * MIB);
    vmm.serial.ask(Request::Remove { start: removed.0, len: removed.1 }).unwrap();
    pager.kill();
    let _pager = PagerProcess::start(folder.path(), &options);
    memory.check(&mut vmm.serial, Some(removed));
}

fn working_set_is_recorded() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { record_ms: 500, ..Options::new(&memory.path) };
    let pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    for start in [8 * MIB, 4 * MIB] {
        vmm.serial.ask(Request::Touch { start, len: 4096 }).unwrap();
    }
    pager.await_line("working set of 4 MiB recorded");
    pager.await_line("complete");
    let set = std::fs::read_to_string(folder.path().join("memory.bin.working-set")).unwrap();
    assert!(set.contains("[4194304,6291456],[8388608,10485760]"), "{set}");
    // It is not waited for again.
    let started = pager.log().len();
    let mut vmm = start(&pager, &[LEN]);
    pager.await_line_behind(started, "complete");
    assert!(!pager.log()[started..].contains("recorded"));
    memory.check(&mut vmm.serial, None);
}

fn memory_file_that_is_cut_off() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { prefetch: false, ..Options::new(&memory.path) };
    let pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    let touch = |start| Request::Touch { start, len: 4096 };
    vmm.serial.ask(touch(0)).unwrap();
    std::fs::File::options().write(true).open(&memory.path).unwrap().set_len(LEN / 2).unwrap();
    vmm.serial.ask(touch(MIB)).unwrap();
    assert!(vmm.serial.ask(touch(LEN - 4096)).is_err(), "the VM goes on");
    let line = pager.await_line("ends before byte");
    assert!(line.contains(&format!("{}: error", vmm.pid())), "{line}");
    // A hole of the file is no hole where the file was cut off.
    let mut other = start(&pager, &[LEN]);
    assert!(other.serial.ask(touch(LEN / 2 + MIB)).is_err(), "the VM goes on");
}

/// The VM gives memory back without a pause. Its memory is no whole huge page, so the pager has
/// nothing to do after it has left the VM.
fn memory_given_back_while_leaving() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), MIB);
    let pager = PagerProcess::start(folder.path(), &Options::new(&memory.path));
    for _ in 0..30 {
        let mut vmm = start(&pager, &[memory.len]);
        for _ in 0..2000 {
            vmm.serial.send(Request::Remove { start: 0, len: 4096 }).unwrap();
        }
        for _ in 0..2000 {
            vmm.serial.answer_within(Duration::from_secs(30)).unwrap();
        }
    }
}

/// What a pager that was killed has left of its only VM: the mapped file, and the VM's first
/// address.
fn left(folder: &Path) -> (File, u64) {
    let state = folder.join("pager.sock.state");
    let with = |extension: &str| {
        let paths = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
        paths.into_iter().find(|path| path.extension().unwrap() == extension).unwrap()
    };
    let record = std::fs::read(with("json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let start = record["layout"]["regions"][0]["start"].as_u64().unwrap();
    (File::options().write(true).open(with("pages")).unwrap(), start)
}

/// The kernel has written the message, and the pager was killed before it looked at it.
fn message_of_a_killed_pager() {
    const MESSAGES: u64 = 64 * 8;
    const REMOVE: u64 = 0x15;
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { prefetch: false, ..Options::new(&memory.path) };
    let mut pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    vmm.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    pager.kill();
    let (pages, start) = left(folder.path());
    let removed = (4 * MIB, 2 * MIB);
    let words = [REMOVE, start + removed.0, start + removed.0 + removed.1, 0];
    let message: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    pages.write_all_at(&message, MESSAGES).unwrap();
    let _pager = PagerProcess::start(folder.path(), &options);
    memory.check(&mut vmm.serial, Some(removed));
}

/// Memory that was not there when the pager left is zero. To serve it again would show bytes that
/// were given back.
fn leaving_of_a_killed_pager() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { prefetch: false, ..Options::new(&memory.path) };
    let mut pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    vmm.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    pager.kill();
    let (pages, _) = left(folder.path());
    pages.write_all_at(&1_u64.to_le_bytes(), 0).unwrap();
    let _pager = PagerProcess::start(folder.path(), &options);
    let untouched = Request::NotZero { start: 4 * MIB, len: LEN - 4 * MIB };
    assert_eq!(vmm.serial.ask(untouched).unwrap(), 0);
}

fn one_fault_brings_in_a_block() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let options = Options { prefetch: false, ..Options::new(&memory.path) };
    let pager = PagerProcess::start(folder.path(), &options);
    let mut vmm = start(&pager, &[LEN]);
    vmm.serial.ask(Request::Reply).unwrap();
    let before = anonymous_kib(vmm.pid());
    vmm.serial.ask(Request::Touch { start: 3 * MIB, len: 4096 }).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while anonymous_kib(vmm.pid()) < before + 2048 {
        assert!(Instant::now() < until, "the rest of the block does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    vmm.serial.ask(Request::Touch { start: 2 * MIB, len: 2 * MIB }).unwrap();
    drop(vmm);
    let line = pager.await_line("ended");
    assert!(line.ends_with("ended after 1 faults"), "{line}");
}

fn anonymous_kib(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
