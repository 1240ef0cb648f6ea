//! The address that was touched arrives where the order of clearing and copying is chosen: not the first one of its
//! granule. Run by `cargo xtask faults`, which compiles the library with its test hooks (`--cfg hugekit_faults`).
#![cfg(hugekit_faults)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, Region};
use hugekit_bulk::sweep::last_target;
use hugekit_sys::injection::{self, Call, Lasting, Plan};
use hugekit_testing::permitted;
use rustix::param::page_size;

const GRANULE: usize = 64 << 10;
const GRANULES: usize = 4;

/// A byte in the middle of a granule, and in the middle of a page.
fn touched() -> usize {
    2 * GRANULE + GRANULE / 2 + page_size() / 2 + 8
}

fn modes() -> Vec<FaultMode> {
    let threaded = permitted::lacking_for_threads().is_none();
    let threaded = threaded.then_some(FaultMode::Threaded { threads: 1 });
    [FaultMode::InPlace].into_iter().chain(threaded).collect()
}

/// One test at a time: the process has one last target. `None` where the kernel serves no faults.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    permitted::lacking().is_none().then_some(guard)
}

fn pool(regions: usize) -> Pool {
    let pool = Pool::builder(regions * GRANULES * GRANULE).backing(Backing::Base);
    pool.scrub_threads(0).build().unwrap()
}

fn written(pool: &Pool) -> Region {
    let mut region = pool.region(GRANULES * GRANULE).unwrap();
    region.fill(1);
    region
}

fn write(memory: &mut [u8]) -> Option<usize> {
    last_target::take();
    memory[touched()] = 2;
    last_target::take()
}

/// Clears at the touch, in this mode, of memory that is dirty.
fn target_of_a_clear(fault_mode: FaultMode) -> Option<usize> {
    let pool = pool(1);
    drop(written(&pool));
    let lazily = pool.region_builder(GRANULES * GRANULE).clearing(Clearing::OnFault);
    write(&mut lazily.fault_mode(fault_mode).build().unwrap())
}

#[test]
fn clear_on_fault_ends_at_the_address() {
    let Some(_alone) = alone() else { return };
    for mode in modes() {
        assert_eq!(target_of_a_clear(mode), Some(touched() % GRANULE), "{mode:?}");
    }
}

#[test]
fn copy_of_a_fork_ends_at_the_address() {
    let Some(_alone) = alone() else { return };
    for mode in modes() {
        let pool = pool(2);
        let region = written(&pool);
        let fork = region.fork_builder().granule(GRANULE).fault_mode(mode);
        let target = write(&mut fork.build().unwrap());
        assert_eq!(target, Some(touched() % GRANULE), "{mode:?}");
    }
}

/// Before Linux 5.18 a handler thread learns the page: the kernel refuses the feature.
#[test]
fn clear_on_fault_without_exact_addresses_ends_at_the_page() {
    let Some(_alone) = alone() else { return };
    let Some(&threaded) = modes().get(1) else { return };
    let plan = |nth| Plan { nth, choice: 0, lasting: Lasting::Once };
    // The second time, nothing is asked any more that the process knows.
    for _ in 0..2 {
        injection::arm(plan(u32::MAX));
        target_of_a_clear(threaded);
        injection::disarm();
    }
    let handshake = injection::trace().iter().rposition(|&call| call == Call::UffdApi);
    injection::arm(plan(handshake.unwrap() as u32));
    let target = target_of_a_clear(threaded);
    injection::disarm();
    assert_eq!(target, Some(touched() % GRANULE / page_size() * page_size()));
}
