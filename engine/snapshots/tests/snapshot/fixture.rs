//! What the checks of snapshots have in common: how one is taken, and what is in it.

use std::fs::File;
use std::io::Read;
use std::sync::LazyLock;

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Granule, Reserve};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
pub(crate) use hugekit_testing::states::{copied, words};

use crate::memory::Memory;

pub(crate) const SMALL: usize = 64 << 10;
pub(crate) const PAGE: usize = 4096;

pub(crate) const FAULT_MODES: [FaultMode; 3] =
    [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }, FaultMode::Threaded { threads: 2 }];

/// The test that comes first has it, so some of the snapshots retain granules there and in memory of their own.
pub(crate) static RESERVE: LazyLock<Reserve> = LazyLock::new(|| Reserve::new(2 * HUGE).unwrap());

/// A snapshot that may retain everything.
pub(crate) fn of(
    fault_mode: FaultMode,
    range: *const [u8],
    granule: Granule,
) -> Result<Snapshot, SnapshotError> {
    let builder = Snapshot::builder()
        .fault_mode(fault_mode)
        .granule(granule)
        .reserve(&RESERVE)
        .max_cow_bytes(range.len().saturating_add(HUGE));
    // SAFETY: no test blocks SIGBUS or has the kernel write there but where it says so.
    unsafe { builder.of_anonymous(range) }
}

pub(crate) fn of_all(fault_mode: FaultMode, memory: &Memory) -> Snapshot {
    of(fault_mode, memory.range(), Granule::Auto).unwrap()
}

pub(crate) fn loaded(memory: &Memory) -> Vec<u64> {
    hugekit_testing::states::loaded(memory.words())
}

/// No thread serves it any more: the kernel may have all of it written by a system call.
pub(crate) fn assert_is_plain(memory: &Memory) {
    let mut zeroes = File::open("/dev/zero").unwrap();
    // SAFETY: no other thread uses the memory now.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start(), memory.len()) };
    zeroes.read_exact(bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
}

pub(crate) type Check = (&'static str, fn(FaultMode));
