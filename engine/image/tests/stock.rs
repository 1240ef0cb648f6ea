//! Stock Firecracker restores clones from one image.

use std::os::fd::{AsFd, AsRawFd};

use hugekit_guests::{Firecracker, Pages, Request, Snapshot, lacking};
use hugekit_image::{Image, clones};
use hugekit_machine::Root;
use hugekit_testing::trials::skipped;

const MIB: u64 = 1 << 20;

/// Memory of the guest, and what it has written before it was saved.
const MEMORY: u64 = 48;
const START: u64 = 8 * MIB;
const LEN: u64 = 32 * MIB;
const SEED: u64 = 0x5eed_0000_1234_5678;

fn differing(clone: &mut Firecracker, seed: u64) -> u64 {
    clone.serial.ask(Request::Verify { start: START, len: LEN, seed }).unwrap()
}

#[test]
fn clones_of_an_image_have_its_bytes_and_their_own_writes() {
    if let Some(reason) = lacking() {
        skipped(reason);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    origin.boot(MEMORY, Pages::Base).unwrap();
    origin.serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    origin.save(&snapshot).unwrap();
    drop(origin);
    let image = Image::load(&snapshot.memory).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_fd().as_raw_fd());
    let restored = |name: &str| {
        let clone = Firecracker::start(folder.path(), name).unwrap();
        clone.load_by_file(&snapshot, path.as_ref(), true).unwrap();
        clone
    };
    let (mut one, mut other) = (restored("one"), restored("other"));
    assert_eq!(differing(&mut one, SEED), 0);
    let (found, _) = clones(&Root::default(), &[image.identity().unwrap()]).unwrap();
    println!("{found:?}; {} of {} bytes on huge pages", image.huge_bytes(), image.bytes());
    if image.huge_bytes() >= LEN {
        let read = found.iter().find(|clone| clone.pid as i32 == one.pid()).unwrap();
        assert!(read.huge * 100 >= LEN * 98, "{read:?}");
    }
    one.serial.ask(Request::Write { start: START, len: LEN, seed: !SEED }).unwrap();
    assert_eq!(differing(&mut other, SEED), 0);
    assert_eq!(differing(&mut one, !SEED), 0);
    drop((one, other));
    assert!(*image.map().unwrap() == std::fs::read(&snapshot.memory).unwrap()[..]);
}
