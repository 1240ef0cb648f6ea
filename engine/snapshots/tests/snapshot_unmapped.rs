//! Snapshotted memory that its owner unmaps: the kernel gives its addresses to whatever is mapped next, and that must
//! be nothing of hugekit's. In children of their own, where no other test maps anything.
#![allow(unsafe_code)]

use hugekit_testing::child;

use std::ops::Range;
use std::ptr;

use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing, Pool};
use hugekit::snapshot::{Granule, Reserve};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};

const LEN: usize = 16 * HUGE;
/// Fits there, wherever it is aligned.
const PART: usize = LEN / 2;

/// Anonymous memory where the kernel puts it, as any mapping of that length would be.
fn map(len: usize) -> *mut u8 {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

fn unmap(start: *mut u8, len: usize) {
    // SAFETY: mapped by `map`, and not used any more.
    assert_eq!(unsafe { libc::munmap(start.cast(), len) }, 0);
}

fn addresses(start: *const u8, len: usize) -> Range<usize> {
    start.addr()..start.addr() + len
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Fills what lies above or fits better, until the kernel would map the next part there.
fn is_next(hole: &Range<usize>) {
    for _ in 0..1000 {
        let other = map(PART);
        if overlap(hole, &addresses(other, PART)) {
            unmap(other, PART);
            return;
        }
    }
    panic!("nothing is mapped in {hole:x?}");
}

/// A snapshot of memory that is not there any more, and where it was: there the kernel puts what is mapped next.
fn gone(fault_mode: FaultMode) -> Option<(Snapshot, Range<usize>)> {
    let start = map(LEN);
    // SAFETY: mapped, and no other code's.
    unsafe { start.write_bytes(7, LEN) };
    let builder = Snapshot::builder().fault_mode(fault_mode).granule(Granule::Small);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    let made = unsafe { builder.of_anonymous(ptr::slice_from_raw_parts(start, LEN)) };
    let snapshot = match made {
        Err(SnapshotError::Fault(_)) => return None,
        made => made.unwrap(),
    };
    unmap(start, LEN);
    let addresses = addresses(start, LEN);
    is_next(&addresses);
    Some((snapshot, addresses))
}

fn nothing_is_mapped_there(fault_mode: FaultMode) -> i32 {
    let Some((snapshot, gone)) = gone(fault_mode) else { return 0 };
    let pool = Pool::builder(16 * LEN).backing(Backing::Base).build().unwrap();
    let mut regions = Vec::new();
    for clearing in [Clearing::OnAllocation, Clearing::OnFault] {
        for len in [PART, HUGE, LEN] {
            let mut region = pool.region_builder(len).clearing(clearing).build().unwrap();
            region.fill(1);
            let mut fork = region.fork().unwrap();
            // A fork's protection is its own: the snapshot's handler must not lift it.
            fork[0] = 2;
            region[len - 1] = 3;
            assert!(region[..len - 1].iter().all(|&byte| byte == 1));
            assert!(fork[1..].iter().all(|&byte| byte == 1));
            regions.extend([region, fork]);
        }
    }
    let moments: Vec<Snapshot> =
        regions.iter().map(|region| Snapshot::of_region(region).unwrap()).collect();
    let reserve = Reserve::new(LEN).unwrap();
    for region in &regions {
        let range = addresses(region.as_ptr(), region.len());
        assert!(!overlap(&range, &gone), "{range:x?} in {gone:x?}");
    }
    for at in (0..LEN).step_by(HUGE / 2) {
        let read = snapshot.read_at(at, &mut [0; 64]);
        assert!(matches!(read, Err(SnapshotError::Changed { .. })), "{at}: {read:?}");
    }
    drop((reserve, moments));
    0
}

#[test]
fn snapshot_of_unmapped_memory_in_place_maps_nothing_there() {
    assert_eq!(in_a_child(|| nothing_is_mapped_there(FaultMode::InPlace)), 0);
}

#[test]
fn snapshot_of_unmapped_memory_threaded_maps_nothing_there() {
    let fault_mode = FaultMode::Threaded { threads: 1 };
    assert_eq!(in_a_child(|| nothing_is_mapped_there(fault_mode)), 0);
}
