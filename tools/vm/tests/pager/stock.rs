//! Stock Firecracker, whose guest checks its own memory.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Firecracker, HugePages, Pages, Request, Snapshot, lacking};
use hugekit_testing::seed::random;
use hugekit_testing::trials::nightly;
use libtest_mimic::{Completion, Trial};
use tempfile::TempDir;

use crate::kills::{REASON, Tally, random_moment};
use crate::pager_process::{LONGEST_WAIT, Options, PagerProcess};

const MIB: u64 = 1 << 20;

/// Memory that guests of these tests have.
const MEMORY: u64 = 48;

/// What a guest has written before it was saved: most of the memory, but neither its beginning nor
/// its end.
const START: u64 = 8 * MIB;
const LEN: u64 = 32 * MIB;
const SEED: u64 = 0x5eed_0000_1234_5678;

type Check = (&'static str, fn(Pages));

const CHECKS: &[Check] = &[
    ("restore_on_demand_shows_every_byte", restore_on_demand_shows_every_byte),
    ("restore_with_everything_read_ahead_leaves_huge_pages", restore_read_ahead),
    ("every_byte_is_shown_to_two_virtual_cpus_at_once", two_cpus),
    ("guest_survives_a_kill_of_the_pager_that_serves_it", survives_a_kill),
    ("guest_survives_a_kill_of_the_pager_that_did_not_see_it", survives_a_lost_message),
    ("vm_that_is_saved_over_the_file_that_it_is_served_from_gets_an_error", saved_over_its_file),
    ("memory_in_the_balloon_reads_zero_and_all_other_stays", |pages| balloon_in_a_loop(pages, 3)),
];

const AT_RANDOM: &[Check] = &[("guest_survives_every_kill_of_the_pager", survives_every_kill)];

const REPEATED: &[Check] =
    &[("memory_in_the_balloon_reads_zero_again_and_again", |pages| balloon_in_a_loop(pages, 60))];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |pages: Pages, &(name, check): &Check| {
        Trial::ignorable_test(format!("{pages:?}::{name}").to_lowercase(), move || {
            let reserve = || HugePages::reserve(pages, MEMORY / 2);
            Ok(match lacking().map_or_else(reserve, Err) {
                Err(reason) => Completion::ignored_with(reason),
                Ok(_reserved) => {
                    check(pages);
                    Completion::Completed
                }
            })
        })
    };
    let pages = [Pages::Base, Pages::Hugetlb2M];
    let of_pages = pages.into_iter().flat_map(|pages| {
        let trials = |checks: &'static [Check]| checks.iter().map(move |c| trial(pages, c));
        let at_random = trials(AT_RANDOM).map(|trial| nightly(REASON, trial));
        let repeated = trials(REPEATED).map(|trial| nightly("it repeats a race", trial));
        trials(CHECKS).chain(at_random).chain(repeated)
    });
    let large = Trial::ignorable_test("large::every_byte_of_two_regions_is_shown", || {
        Ok(match lacking() {
            Some(reason) => Completion::ignored_with(reason),
            None => {
                two_regions();
                Completion::Completed
            }
        })
    });
    of_pages.chain([large]).collect()
}

/// A snapshot of a guest that has written its pattern, and has a balloon.
fn saved(folder: &Path, pages: Pages) -> Snapshot {
    save(folder, pages, 1)
}

fn save(folder: &Path, pages: Pages, cpus: u32) -> Snapshot {
    let snapshot = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin").unwrap();
    origin.add_balloon().unwrap();
    origin.boot_with(MEMORY, pages, cpus).unwrap();
    if cpus > 1 {
        // The second one is started now, and runs when the guest is saved.
        origin.serial.ask(Request::TouchAtOnce { start: START, len: 4096 }).unwrap();
    }
    let write = Request::Write { start: START, len: LEN, seed: SEED };
    origin.serial.ask(write).unwrap();
    origin.save(&snapshot).unwrap();
    snapshot
}

fn restored(folder: &Path, name: &str, from: &Snapshot, pager: &PagerProcess) -> Firecracker {
    let clone = Firecracker::start(folder, name).unwrap();
    clone.load_by_handler(from, &pager.socket, true).unwrap();
    clone
}

fn check_bytes(clone: &mut Firecracker) {
    let verify = Request::Verify { start: START, len: LEN, seed: SEED };
    assert_eq!(clone.serial.ask(verify).unwrap(), 0, "words differ");
    let before = Request::NotZero { start: 4 * MIB, len: START - 4 * MIB };
    assert_eq!(clone.serial.ask(before).unwrap(), 0, "words before are not zero");
    let behind = Request::NotZero { start: START + LEN, len: MEMORY * MIB - START - LEN };
    assert_eq!(clone.serial.ask(behind).unwrap(), 0, "words behind are not zero");
}

/// A clone that has answered, and gets its memory when it asks for it.
fn on_demand(folder: &Path, pages: Pages) -> (Snapshot, PagerProcess, Firecracker) {
    let snapshot = saved(folder, pages);
    let options = Options { prefetch: false, ..Options::new(&snapshot.memory) };
    let pager = PagerProcess::start(folder, &options);
    let mut clone = restored(folder, "clone", &snapshot, &pager);
    clone.serial.ask(Request::Reply).unwrap();
    (snapshot, pager, clone)
}

fn restore_on_demand_shows_every_byte(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let (_, pager, mut clone) = on_demand(folder.path(), pages);
    check_bytes(&mut clone);
    drop(clone);
    pager.await_line("ended");
}

/// Firecracker cuts the file to nothing before it reads its memory, which comes from there.
fn saved_over_its_file(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let (snapshot, pager, clone) = on_demand(folder.path(), pages);
    let refused = clone.save(&snapshot).expect_err("bytes were saved that are in no file");
    assert!(refused.to_string().contains("memory"), "{refused}");
    pager.await_line("was written to while the pager had it open");
}

fn restore_read_ahead(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), pages);
    let mut pager = PagerProcess::start(folder.path(), &Options::new(&snapshot.memory));
    let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
    pager.await_line("complete");
    pager.kill();
    check_bytes(&mut clone);
    if pages == Pages::Base && hugekit_sys::mapping::can_collapse() {
        let huge = huge_bytes(clone.pid());
        assert!(huge >= LEN / 2, "{huge} bytes are on huge pages");
    }
}

/// They wait for pages that follow each other, and for pages whose block is being supplied.
fn two_cpus(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = save(folder.path(), pages, 2);
    for around in [4096, 2 * MIB] {
        let options = Options { prefetch: false, around, ..Options::new(&snapshot.memory) };
        let pager = PagerProcess::start(folder.path(), &options);
        let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
        let touch = Request::TouchAtOnce { start: 2 * MIB, len: (MEMORY - 2) * MIB };
        clone.serial.ask(touch).unwrap();
        check_bytes(&mut clone);
    }
}

fn huge_bytes(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A part of the memory is there when the pager is killed, and the guest waits for the rest.
fn survives_a_kill(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), pages);
    let options = Options { prefetch: false, ..Options::new(&snapshot.memory) };
    let mut pager = PagerProcess::start(folder.path(), &options);
    let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
    clone.serial.ask(Request::Touch { start: START, len: LEN / 2 }).unwrap();
    pager.kill();
    clone.serial.send(Request::Touch { start: 0, len: MEMORY * MIB }).unwrap();
    await_message(clone.pid(), || false);
    let _next = PagerProcess::start(folder.path(), &options);
    clone.serial.answer_within(LONGEST_WAIT).unwrap();
    check_bytes(&mut clone);
}

fn survives_a_lost_message(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), pages);
    let options = Options::new(&snapshot.memory);
    let pager = PagerProcess::start(folder.path(), &options);
    let (mut clone, _next) = lose(folder.path(), &snapshot, &options, pager);
    check_bytes(&mut clone);
}

/// A guest whose message is lost with a pager, and the next pager, which has taken the guest over.
fn lose(
    folder: &Path,
    snapshot: &Snapshot,
    options: &Options,
    mut pager: PagerProcess,
) -> (Firecracker, PagerProcess) {
    pager.freeze();
    let clone = Firecracker::start(folder, "clone").unwrap();
    let (pid, socket) = (clone.pid(), pager.socket.clone());
    std::thread::scope(|scope| {
        let load = scope.spawn(|| clone.load_by_handler(snapshot, &socket, true).unwrap());
        await_message(pid, || load.is_finished());
        pager.kill();
        pager = PagerProcess::start(folder, options);
    });
    let line = pager.await_line("taken over");
    assert!(line.starts_with(&format!("{pid}:")), "{line}");
    (clone, pager)
}

fn survives_every_kill(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), pages);
    let options = Options::new(&snapshot.memory);
    let mut pager = PagerProcess::start(folder.path(), &options);
    let socket = pager.socket.clone();
    let typical = time_to_serve(folder.path(), &snapshot, &pager);
    let (mut tally, mut random) = (Tally::default(), random());
    while !tally.is_enough() {
        let mut clone = Firecracker::start(folder.path(), "clone").unwrap();
        let moment = random_moment(&mut random, typical);
        let (next, loaded) = std::thread::scope(|scope| {
            let kill = || {
                sleep(moment);
                pager.kill();
                PagerProcess::start(folder.path(), &options)
            };
            let killer = scope.spawn(kill);
            let loaded = clone.load_by_handler(&snapshot, &socket, true);
            (killer.join().unwrap(), loaded)
        });
        pager = next;
        if let Err(error) = loaded {
            assert!(error.to_string().contains(": 400:"), "the restore hangs or crashes: {error}");
            tally.refused();
            continue;
        }
        clone.serial.send(Request::Touch { start: 0, len: MEMORY * MIB }).unwrap();
        clone.serial.answer_within(LONGEST_WAIT).unwrap();
        check_bytes(&mut clone);
        tally.survived(clone.pid(), &pager);
    }
    tally.print(&format!("Firecracker, {pages:?}"));
}

/// From the request to restore a VM until it is recorded.
fn time_to_serve(folder: &Path, snapshot: &Snapshot, pager: &PagerProcess) -> Duration {
    let clone = Firecracker::start(folder, "clone").unwrap();
    let since = Instant::now();
    std::thread::scope(|scope| {
        let load = || clone.load_by_handler(snapshot, &pager.socket, true).unwrap();
        scope.spawn(load);
        pager.await_line("serving");
        since.elapsed()
    })
}

/// Memory that Firecracker splits around the addresses of devices.
const LARGE: u64 = 3200;

/// Where the guest sees the second region.
const UPPER: u64 = 4 << 30;

/// What the guest has written in each region.
const PART: u64 = 16 * MIB;

/// Most of the memory is a hole of the file. The second restore's message is lost with a pager.
fn two_regions() {
    let folder = TempDir::new().unwrap();
    let snapshot = saved_with_two_regions(folder.path());
    let options = Options::new(&snapshot.memory);
    let pager = PagerProcess::start(folder.path(), &options);
    let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
    check_two_regions(&mut clone);
    pager.await_line("complete");
    drop(clone);
    let (mut clone, _next) = lose(folder.path(), &snapshot, &options, pager);
    check_two_regions(&mut clone);
}

fn saved_with_two_regions(folder: &Path) -> Snapshot {
    let snapshot = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin").unwrap();
    origin.boot(LARGE, Pages::Base).unwrap();
    for start in [START, UPPER] {
        origin.serial.ask(Request::Write { start, len: PART, seed: SEED }).unwrap();
    }
    origin.save_with_holes(&snapshot).unwrap();
    snapshot
}

fn check_two_regions(clone: &mut Firecracker) {
    for start in [START, UPPER] {
        let verify = Request::Verify { start, len: PART, seed: SEED };
        assert_eq!(clone.serial.ask(verify).unwrap(), 0, "words at {start:#x} differ");
        let zero = Request::NotZero { start: start + PART, len: PART };
        assert_eq!(clone.serial.ask(zero).unwrap(), 0, "words behind {start:#x} are not zero");
    }
}

/// Waits until a VMM has sent its message to a pager that does nothing: a thread of it waits for
/// its memory, or it is done.
fn await_message(pid: i32, is_done: impl Fn() -> bool) {
    let until = Instant::now() + LONGEST_WAIT;
    while !is_done() && !waits_for_memory(pid) {
        assert!(Instant::now() < until, "the VMM sends no message");
        sleep(Duration::from_millis(1));
    }
}

/// Whether a userfaultfd of a process has a fault that was not answered.
fn waits_for_memory(pid: i32) -> bool {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
    let total = |text: String| text.lines().find_map(|l| l.strip_prefix("total:\t")?.parse().ok());
    texts.filter_map(total).any(|total: u64| total > 0)
}

/// Memory that a guest gives to its balloon: parts of its pattern.
const GIVEN: u64 = 16 * MIB;

/// How often a guest does so after one restore.
const INFLATIONS: u32 = 32;

/// What it gives at once.
fn unit(pages: Pages) -> u64 {
    if pages == Pages::Base { MIB / 2 } else { 2 * MIB }
}

/// While memory is supplied on demand, read ahead, and collapsed.
fn balloon_in_a_loop(pages: Pages, restores: u32) {
    let (folder, mut random) = (TempDir::new().unwrap(), random());
    let snapshot = saved(folder.path(), pages);
    for round in 0..restores {
        let all = Options::new(&snapshot.memory);
        let options = match round % 3 {
            0 => all,
            1 => Options { stay: true, ..all },
            _ => Options { prefetch: false, ..all },
        };
        let pager = PagerProcess::start(folder.path(), &options);
        let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
        inflate_and_deflate(&mut clone, unit(pages), &mut random);
    }
}

fn inflate_and_deflate(clone: &mut Firecracker, unit: u64, random: &mut fastrand::Rng) {
    let mut is_given = vec![false; (GIVEN / unit) as usize];
    let range = |index: usize| (START + index as u64 * unit, unit);
    for _ in 0..INFLATIONS {
        let index = random.usize(0..is_given.len());
        let (start, len) = range(index);
        assert_eq!(clone.serial.ask(Request::Inflate { start, len }).unwrap(), 0, "no balloon");
        is_given[index] = true;
        let not_zero = clone.serial.ask(Request::NotZero { start, len }).unwrap();
        assert_eq!(not_zero, 0, "words in the balloon at {start:#x} are not zero");
        clone.serial.ask(Request::Deflate { start, len }).unwrap();
    }
    for (index, &is_given) in is_given.iter().enumerate() {
        let (start, len) = range(index);
        let request = match is_given {
            true => Request::NotZero { start, len },
            false => Request::Verify { start, len, seed: SEED },
        };
        assert_eq!(clone.serial.ask(request).unwrap(), 0, "at {start:#x}, {is_given}");
    }
    let (start, len) = (START + GIVEN, LEN - GIVEN);
    assert_eq!(clone.serial.ask(Request::Verify { start, len, seed: SEED }).unwrap(), 0);
}
