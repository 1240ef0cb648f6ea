//! A VM with memory above the addresses of 32-bit devices, which is a region of its own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use hugekit_guests::{
    Firecracker, Pages, Request, Snapshot, await_end_of_output, pattern_at, version,
};
use hugekit_vm::checkpoint::checkpoint;
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::family::{ForkedGuest, fork_vm};
use crate::scene::{LONGEST_WAIT, MIB, SEED, START, Scene, registered, trial};

/// Memory that has a second region, in MiB; most of it is never touched.
const LARGE: u64 = 3456;

/// The first address of the second region.
const UPPER: u64 = 4 << 30;

/// The offset of the second region in a memory file: the gap for devices had 768 MiB up to Firecracker 1.12.
fn upper_offset() -> u64 {
    if version().is_some_and(|version| version <= [1, 12]) { 13 << 28 } else { 3 << 30 }
}

/// Bytes that are written in each region.
const PART: u64 = 16 * MIB;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("large::memory_of_two_regions_is_saved", Pages::Base, saved),
        trial("large::child_with_two_regions_is_whole_and_can_be_forked", Pages::Base, forked),
    ]
}

fn restored() -> Scene {
    let folder = TempDir::new().unwrap();
    save_by_stock(&folder);
    Scene::in_folder(folder)
}

fn saved() {
    let mut scene = restored();
    // The first one has split mappings, which the kernel has merged again.
    for _ in 0..2 {
        checkpoint(&scene.options()).unwrap();
        let saved = File::open(scene.saved().memory).unwrap();
        assert_eq!(saved.metadata().unwrap().len(), LARGE * MIB);
        check_words(&saved, START, START);
        check_words(&saved, upper_offset(), UPPER);
        fs::remove_dir_all(scene.output()).unwrap();
    }
    scene.vmm.serial.send(Request::Reply).unwrap();
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    assert_eq!(registered(scene.vmm.pid()), 0, "mappings are registered still");
}

fn forked() {
    let scene = restored();
    let (mut children, _) = fork_vm(&scene.api(), &["a"]).unwrap();
    check_guest(&mut children[0]);
    await_end_of_output(children[0].pid).unwrap();
    let (mut grandchildren, _) = fork_vm(&children[0].api, &["a-a"]).unwrap();
    check_guest(&mut grandchildren[0]);
}

fn check_guest(guest: &mut ForkedGuest) {
    for start in [START, UPPER] {
        let verify = Request::Verify { start, len: PART, seed: SEED };
        assert_eq!(guest.serial.ask(verify).unwrap(), 0, "words at {start:#x} differ");
        let zero = Request::NotZero { start: start + PART, len: PART };
        assert_eq!(guest.serial.ask(zero).unwrap(), 0, "words behind {start:#x} are not zero");
    }
}

fn save_by_stock(folder: &TempDir) {
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    origin.boot(LARGE, Pages::Base).unwrap();
    for start in [START, UPPER] {
        origin.serial.ask(Request::Write { start, len: PART, seed: SEED }).unwrap();
    }
    origin.save_with_holes(&snapshot).unwrap();
}

/// The guest's pattern at an address is at an offset of the file, and zeroes are behind it.
fn check_words(file: &File, offset: u64, address: u64) {
    let mut bytes = vec![0; 2 * PART as usize];
    file.read_exact_at(&mut bytes, offset).unwrap();
    let (part, behind) = bytes.split_at(PART as usize);
    let words = part.chunks_exact(8).zip((address..).step_by(8));
    let differs = |(word, at): (&[u8], u64)| word != pattern_at(at, SEED).to_le_bytes();
    assert_eq!(words.filter(|&pair| differs(pair)).count(), 0, "words at {address:#x} differ");
    assert!(behind.iter().all(|&byte| byte == 0), "words behind {address:#x} are not zero");
}
