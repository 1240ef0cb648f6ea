//! A small VMM, which needs no virtualization: bytes, memory given back, a memory file that is cut
//! off.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request, SmallVmm};
use hugekit_sys::other_process::check_collapse;
use hugekit_testing::trials::nightly;
use libtest_mimic::{Completion, Failed, Trial};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fixture::Fixture;
use crate::memory_file::MIB;
use crate::pager_process::{LONGEST_WAIT, Options};
use crate::refused;

const LEN: u64 = 64 * MIB;

type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("every_byte_of_odd_regions_is_shown_on_demand", every_byte_of_odd_regions),
    ("every_byte_is_shown_by_single_pages", every_byte_by_single_pages),
    ("every_byte_is_shown_to_threads_that_fault_at_once", threads_at_once),
    ("every_byte_of_sealed_memory_is_shown", every_byte_of_sealed_memory),
    ("every_byte_is_there_when_the_pager_has_left", every_byte_when_the_pager_has_left),
    ("pager_that_stays_serves_what_is_given_back_before_and_after_a_kill", pager_that_stays),
    ("memory_given_back_in_a_loop_reads_zero", memory_given_back_in_a_loop),
    ("memory_given_back_reads_zero_after_a_kill", memory_given_back_before_a_kill),
    ("memory_given_back_while_the_pager_leaves_hangs_no_vm", || given_back_while_leaving(8)),
    ("message_that_a_killed_pager_had_read_is_not_lost", message_of_a_killed_pager),
    ("vm_that_a_killed_pager_was_leaving_is_left", leaving_of_a_killed_pager),
    ("vm_that_a_killed_pager_had_left_is_collapsed", collapse_of_a_killed_pager),
    ("memory_given_back_to_the_kernel_before_a_pager_reads_zero", given_back_to_the_kernel),
    ("one_fault_brings_in_two_mebibytes", one_fault_brings_in_a_block),
    ("first_faults_bring_in_no_more_than_their_neighbours", first_faults),
    ("second_restore_reads_what_the_first_one_touched", working_set_is_recorded),
    ("memory_file_that_is_cut_off_ends_the_vm_and_not_the_pager", memory_file_that_is_cut_off),
    ("memory_file_that_is_cut_off_while_it_is_read_ahead_hangs_no_vm", cut_off_when_served),
    ("vmm_that_is_stopped_keeps_no_other_waiting", stopped_vmm),
];

const NIGHTLY: &[Check] = &[
    ("memory_given_back_while_the_pager_leaves_hangs_no_vm_ever", || given_back_while_leaving(300)),
    ("memory_file_that_is_cut_off_at_any_moment_hangs_no_vm", cut_off_at_random),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |&(name, check): &Check| {
        Trial::test(format!("small::{name}"), move || {
            check();
            Ok::<(), Failed>(())
        })
    };
    let shortage = Trial::ignorable_test("small::vm_without_free_huge_pages_ends", || {
        Ok(huge_pages_run_out().map_or(Completion::Completed, Completion::ignored_with))
    });
    let repeated = NIGHTLY.iter().map(trial).map(|trial| nightly("it repeats a race", trial));
    CHECKS.iter().map(trial).chain([shortage]).chain(repeated).collect()
}

/// Regions whose offsets are no multiples of 2 MiB, so that blocks lie in two of them.
fn every_byte_of_odd_regions() {
    let fixture = Fixture::on_demand(LEN);
    let regions = [5 * MIB + 4096, 4096, 21 * MIB - 3 * 4096];
    let last = LEN - regions.iter().sum::<u64>();
    let mut vm = fixture.vm_of(&[&regions[..], &[last]].concat());
    // From the last byte on backwards first.
    for at in (0..LEN / MIB).rev() {
        vm.serial.ask(Request::Touch { start: at * MIB, len: 4096 }).unwrap();
    }
    fixture.check(&mut vm, None);
}

fn every_byte_by_single_pages() {
    let single = |options| Options { prefetch: false, around: 4096, ..options };
    let fixture = Fixture::with(LEN / 8, single);
    fixture.check(&mut fixture.vm(), None);
}

/// As virtual CPUs do: by pages that follow, and by pages whose block is being supplied.
fn threads_at_once() {
    for around in [4096, 2 * MIB] {
        let fixture = Fixture::with(LEN / 4, |all| Options { prefetch: false, around, ..all });
        let mut vm = fixture.vm();
        vm.serial.ask(Request::TouchAtOnce { start: 0, len: LEN / 4 }).unwrap();
        fixture.check(&mut vm, None);
    }
}

/// On demand, read ahead, and by the next pager.
fn every_byte_of_sealed_memory() {
    for prefetch in [false, true] {
        let sealed = |options| Options { sealed: true, prefetch, ..options };
        let mut fixture = Fixture::with(LEN, sealed);
        let mut vm = fixture.vm();
        vm.serial.ask(Request::Touch { start: 2 * MIB, len: 8 * MIB }).unwrap();
        fixture.pager.kill();
        fixture.start_next();
        fixture.check(&mut vm, None);
        fixture.check(&mut fixture.vm(), None);
    }
}

fn every_byte_when_the_pager_has_left() {
    let mut fixture = Fixture::new(LEN);
    let mut vm = fixture.vm();
    fixture.pager.await_line("left to the kernel");
    fixture.pager.kill();
    fixture.check(&mut vm, None);
    // Of the pager itself, and not of the VM.
    let left = state_files(fixture.folder());
    assert!(left.iter().all(|path| path.extension().unwrap() == "pager"), "{left:?}");
}

fn pager_that_stays() {
    let mut fixture = Fixture::with(LEN, |options| Options { stay: true, ..options });
    let mut vm = fixture.vm();
    fixture.pager.await_line("still served");
    let remove = |start, len| Request::Remove { start, len };
    vm.serial.ask(remove(2 * MIB, 6 * MIB)).unwrap();
    fixture.check(&mut vm, Some((2 * MIB, 6 * MIB)));
    fixture.pager.kill();
    vm.serial.send(remove(8 * MIB, 4 * MIB)).unwrap();
    fixture.start_next();
    vm.serial.answer_within(LONGEST_WAIT).unwrap();
    fixture.check(&mut vm, Some((2 * MIB, 10 * MIB)));
}

/// While everything is being read ahead. Pages that are given back again and again must never show
/// the file's bytes.
fn memory_given_back_in_a_loop() {
    let mut fixture = Fixture::new(LEN);
    for _ in 0..4 {
        let mut vm = fixture.vm();
        let removed = (6 * MIB, 12 * MIB);
        for round in 0..200 {
            let len = MIB / 2;
            let start = removed.0 + round * len % removed.1;
            vm.serial.ask(Request::Remove { start, len }).unwrap();
            assert_eq!(vm.serial.ask(Request::NotZero { start, len }).unwrap(), 0, "{round}");
        }
        fixture.check(&mut vm, Some(removed));
        drop(vm);
        fixture.pager.kill();
        fixture.start_next();
    }
}

fn memory_given_back_before_a_kill() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    let removed = (2 * MIB, 3 * MIB);
    vm.serial.ask(Request::Remove { start: removed.0, len: removed.1 }).unwrap();
    fixture.pager.kill();
    fixture.start_next();
    fixture.check(&mut vm, Some(removed));
}

/// The time to record is as long as the machine needs for two touches.
fn working_set_is_recorded() {
    let is_recorded = |&record_ms: &u64| set_of_two_touches(record_ms);
    assert!([200, 5_000, 60_000].iter().any(is_recorded), "no set has both blocks");
}

/// Whether both came in time.
fn set_of_two_touches(record_ms: u64) -> bool {
    let fixture = Fixture::with(LEN, |options| Options { record_ms, ..options });
    let mut vm = fixture.vm();
    for start in [8 * MIB, 4 * MIB] {
        vm.serial.ask(Request::Touch { start, len: 4096 }).unwrap();
    }
    let line = fixture.pager.await_line("recorded");
    if !line.contains("working set of 4 MiB") {
        return false;
    }
    fixture.pager.await_line("complete");
    let set = fs::read_to_string(fixture.folder().join("memory.bin.working-set")).unwrap();
    assert!(set.contains("[4194304,6291456],[8388608,10485760]"), "{set}");
    // It is not waited for again.
    let started = fixture.pager.log().len();
    let mut vm = fixture.vm();
    fixture.pager.await_line_behind(started, "complete");
    assert!(!fixture.pager.log()[started..].contains("recorded"));
    fixture.check(&mut vm, None);
    true
}

fn memory_file_that_is_cut_off() {
    let fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    let touch = |start| Request::Touch { start, len: 4096 };
    vm.serial.ask(touch(0)).unwrap();
    File::options().write(true).open(&fixture.memory.path).unwrap().set_len(LEN / 2).unwrap();
    assert!(vm.serial.ask(touch(LEN - 4096)).is_err(), "the VM goes on");
    let line = fixture.pager.await_line("ends before byte");
    assert!(line.contains(&format!("{}: error", vm.pid())), "{line}");
    // A hole of the file is no hole where the file was cut off.
    assert!(refused::vm(&fixture).contains("ends before byte"));
}

fn cut_off_when_served() {
    cut_off_at(|fixture| drop(fixture.pager.await_line("serving")));
}

fn cut_off_at_random() {
    let mut random = hugekit_testing::seed::random();
    for _ in 0..100 {
        cut_off_at(|_| std::thread::sleep(Duration::from_micros(random.u64(0..40_000))));
    }
}

/// The VM ends, or has read everything before and has every byte.
fn cut_off_at(moment: impl FnOnce(&Fixture)) {
    let fixture = Fixture::new(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Reply).unwrap();
    moment(&fixture);
    File::options().write(true).open(&fixture.memory.path).unwrap().set_len(MIB).unwrap();
    match vm.serial.ask(Request::Touch { start: 0, len: LEN }) {
        Ok(_) => fixture.check(&mut vm, None),
        Err(_) => {
            let ending = vm.ending_within(LONGEST_WAIT).unwrap();
            assert!(ending.is_some_and(|status| status.code().is_none()), "{ending:?}");
            fixture.pager.await_line("ends before byte");
        }
    }
}

/// It reads and answers nothing, and perhaps is giving memory back at that moment.
fn stopped_vmm() {
    let fixture = Fixture::new(LEN);
    let mut stopped = fixture.vm();
    stopped.serial.ask(Request::Reply).unwrap();
    stopped.serial.send(Request::Remove { start: 2 * MIB, len: MIB }).unwrap();
    stopped.freeze().unwrap();
    fixture.check(&mut fixture.vm(), None);
    stopped.thaw().unwrap();
    stopped.serial.answer_within(LONGEST_WAIT).unwrap();
    fixture.check(&mut stopped, Some((2 * MIB, MIB)));
}

/// Why it cannot be tested here, if so.
fn huge_pages_run_out() -> Option<String> {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let number = |name: &str| {
        let text = fs::read_to_string(format!("{pool}/{name}"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64)
    };
    if !Path::new(pool).exists() {
        return Some("the kernel has no 2 MiB pages of hugetlbfs".to_owned());
    }
    if number("free_hugepages") + number("nr_overcommit_hugepages") > 0 {
        return Some("huge pages are free, and other tests may need them".to_owned());
    }
    let fixture = Fixture::on_demand(LEN);
    let mut vm = SmallVmm::start(&fixture.pager.socket, &[LEN], Pages::Hugetlb2M).unwrap();
    if vm.serial.ask(Request::Touch { start: 0, len: LEN }).is_ok() {
        return Some("huge pages became free meanwhile".to_owned());
    }
    let line = fixture.pager.await_line("no free 2 MiB page");
    assert!(line.contains("needs 32 huge pages") && line.contains("(remedy: "), "{line}");
    None
}

/// The VM gives memory back without a pause. Its memory is no whole huge page, so the pager has
/// nothing to do after it has left the VM.
fn given_back_while_leaving(vms: u32) {
    let fixture = Fixture::new(MIB);
    for _ in 0..vms {
        let mut vm = fixture.vm();
        for _ in 0..2000 {
            vm.serial.send(Request::Remove { start: 0, len: 4096 }).unwrap();
        }
        for _ in 0..2000 {
            vm.serial.answer_within(LONGEST_WAIT).unwrap();
        }
    }
}

pub(crate) fn state_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("pager.sock.state")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// What a pager that was killed has left of its only VM: the mapped file, and the VM's first
/// address.
fn left(folder: &Path) -> (File, u64) {
    let files = state_files(folder);
    let with =
        |extension: &str| files.iter().find(|path| path.extension().unwrap() == extension).unwrap();
    let record = fs::read(with("json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let start = record["layout"]["regions"][0]["start"].as_u64().unwrap();
    (File::options().write(true).open(with("pages")).unwrap(), start)
}

/// The kernel has written the message, and the pager was killed before it looked at it.
fn message_of_a_killed_pager() {
    const MESSAGES: u64 = 64 * 8;
    const REMOVE: u64 = 0x15;
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    fixture.pager.kill();
    let (pages, start) = left(fixture.folder());
    let removed = (4 * MIB, 2 * MIB);
    let words = [REMOVE, start + removed.0, start + removed.0 + removed.1, 0];
    let message: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    pages.write_all_at(&message, MESSAGES).unwrap();
    fixture.start_next();
    fixture.check(&mut vm, Some(removed));
}

/// Memory that was not there when the pager left is zero. To serve it again would show bytes that
/// were given back.
fn leaving_of_a_killed_pager() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    fixture.pager.kill();
    set_leaving(&fixture);
    fixture.start_next();
    fixture.pager.await_line("left to the kernel");
    let untouched = Request::NotZero { start: 4 * MIB, len: LEN - 4 * MIB };
    assert_eq!(vm.serial.ask(untouched).unwrap(), 0);
}

/// As if the pager had been killed after it had begun to leave its only VM.
fn set_leaving(fixture: &Fixture) {
    let (pages, _) = left(fixture.folder());
    pages.write_all_at(&1_u64.to_le_bytes(), 0).unwrap();
}

/// As the kernel tells the pager, which is a process with the same rights.
fn collapse_is_permitted(pid: i32) -> Result<(), Errno> {
    let pid = Pid::from_raw(pid).unwrap();
    check_collapse(pidfd_open(pid, PidfdFlags::empty()).unwrap().as_fd())
}

/// The next pager knows which memory is data, and puts it on huge pages.
fn collapse_of_a_killed_pager() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 0, len: LEN }).unwrap();
    fixture.pager.kill();
    set_leaving(&fixture);
    fixture.start_next();
    let line = fixture.pager.await_line("left to the kernel");
    match collapse_is_permitted(vm.pid()) {
        Ok(()) => {
            let huge = rollup_kib(vm.pid(), "AnonHugePages:") << 10;
            assert!(huge >= LEN / 2, "{huge} bytes are on huge pages: {line}");
        }
        Err(errno) => {
            let reason = format!(" MiB not: {}", std::io::Error::from(errno));
            assert!(line.contains(&reason), "{line}");
        }
    }
    fixture.check(&mut vm, None);
    assert!(!state_files(fixture.folder()).iter().any(|path| path.extension().unwrap() == "json"));
}

/// A pager was killed when it had left the VM, but before it removed its record. The VM gives
/// memory back before the next pager starts, and no message tells of that.
fn given_back_to_the_kernel() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 0, len: LEN }).unwrap();
    fixture.pager.kill();
    set_leaving(&fixture);
    let record = Kept::of(fixture.folder());
    fixture.start_next();
    fixture.pager.await_line("left to the kernel");
    fixture.pager.kill();
    record.put_back();
    let removed = (2 * MIB, 6 * MIB);
    vm.serial.ask(Request::Remove { start: removed.0, len: removed.1 }).unwrap();
    let before = fixture.pager.log().len();
    fixture.start_next();
    fixture.pager.await_line_behind(before, "left to the kernel");
    fixture.check(&mut vm, Some(removed));
}

/// Copies of the files of a VM's record.
struct Kept(Vec<(PathBuf, Vec<u8>)>);

impl Kept {
    fn of(folder: &Path) -> Self {
        let files = state_files(folder).into_iter();
        let of_vm = files.filter(|path| path.extension().unwrap() != "pager");
        Self(of_vm.map(|path| (path.clone(), fs::read(path).unwrap())).collect())
    }

    fn put_back(&self) {
        self.0.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }
}

fn one_fault_brings_in_a_block() {
    let fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 3 * MIB, len: 4096 }).unwrap();
    await_served(&vm, 2048);
    vm.serial.ask(Request::Touch { start: 2 * MIB, len: 2 * MIB }).unwrap();
    drop(vm);
    let line = fixture.pager.await_line("ended");
    assert!(line.ends_with("ended after 1 faults"), "{line}");
}

/// The rest of their blocks comes with the sixteenth, because the time is not over.
fn first_faults() {
    let fixture = Fixture::with(LEN, |all| Options {
        around: MIB,
        prefetch: false,
        startup_ms: 1 << 40,
        ..all
    });
    let mut vm = fixture.vm();
    let mut touch = |block| {
        vm.serial.ask(Request::Touch { start: block * MIB, len: 4096 }).unwrap();
    };
    (0..15).for_each(&mut touch);
    fixture.pager.await_idle();
    assert_eq!(served_kib(vm.pid()), 15 * 64);
    vm.serial.ask(Request::Touch { start: 15 * MIB, len: 4096 }).unwrap();
    await_served(&vm, 16 * 1024);
}

fn await_served(vm: &SmallVmm, kib: u64) {
    let until = Instant::now() + LONGEST_WAIT;
    while served_kib(vm.pid()) < kib {
        assert!(Instant::now() < until, "the rest of a block does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Memory that is there of what a userfaultfd serves.
fn served_kib(pid: i32) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut served, mut anonymous) = (0, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            anonymous = kib.trim().trim_end_matches(" kB").parse().unwrap();
        } else if line.starts_with("VmFlags:") && line.contains(" um") {
            served += anonymous;
        }
    }
    served
}

fn rollup_kib(pid: i32, name: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
