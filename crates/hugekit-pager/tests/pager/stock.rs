//! Stock Firecracker, whose guest checks its own memory.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use hugekit_guests::{Firecracker, Pages, Request, Snapshot, lacking};
use libtest_mimic::{Completion, Trial};
use tempfile::TempDir;

use crate::kills::{kills, random_moment};
use crate::pager_process::{Options, PagerProcess};

const MIB: u64 = 1 << 20;

/// Memory that guests of these tests have.
const MEMORY: u64 = 128;

/// What a guest has written before it was saved: most of the memory, but neither its beginning nor
/// its end.
const START: u64 = 16 * MIB;
const LEN: u64 = 96 * MIB;
const SEED: u64 = 0x5eed_0000_1234_5678;

type Check = (&'static str, fn(Pages));

const CHECKS: &[Check] = &[
    ("restore_on_demand_shows_every_byte", restore_on_demand_shows_every_byte),
    ("restore_with_everything_read_ahead_leaves_huge_pages", restore_read_ahead),
    ("guest_survives_every_kill_of_the_pager", guest_survives_every_kill),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |pages: Pages, &(name, check): &Check| {
        Trial::ignorable_test(format!("{pages:?}::{name}").to_lowercase(), move || {
            match lacking().or_else(|| lacking_pages(pages)) {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    check(pages);
                    Ok(Completion::Completed)
                }
            }
        })
    };
    let pages = [Pages::Base, Pages::Hugetlb2M];
    pages
        .into_iter()
        .flat_map(|pages| CHECKS.iter().map(move |check| trial(pages, check)))
        .collect()
}

fn lacking_pages(pages: Pages) -> Option<String> {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.ok().and_then(|free| free.trim().parse().ok()).unwrap_or(0);
    let needed = MEMORY / 2;
    let is_short = pages == Pages::Hugetlb2M && free < needed;
    is_short.then(|| format!("{needed} huge pages are needed, {free} are free"))
}

/// A snapshot of a guest that has written its pattern.
fn saved(folder: &Path, pages: Pages) -> Snapshot {
    let snapshot = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin").unwrap();
    origin.boot(MEMORY, pages).unwrap();
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

fn restore_on_demand_shows_every_byte(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), pages);
    let options = Options { prefetch: false, ..Options::new(&snapshot.memory) };
    let pager = PagerProcess::start(folder.path(), &options);
    let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
    clone.serial.ask(Request::Reply).unwrap();
    check_bytes(&mut clone);
    drop(clone);
    pager.await_line("ended");
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

fn huge_bytes(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn guest_survives_every_kill(pages: Pages) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), pages);
    let options = Options::new(&snapshot.memory);
    let mut pager = PagerProcess::start(folder.path(), &options);
    for _ in 0..kills() {
        let mut clone = restored(folder.path(), "clone", &snapshot, &pager);
        clone.serial.send(Request::Touch { start: 0, len: MEMORY * MIB }).unwrap();
        sleep(random_moment());
        pager.kill();
        pager = PagerProcess::start(folder.path(), &options);
        clone.serial.answer_within(Duration::from_secs(30)).unwrap();
        check_bytes(&mut clone);
    }
}
