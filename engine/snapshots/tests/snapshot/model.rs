//! Any steps, against plain copies.

use std::ptr;

use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::{Check, PAGE, copied, of};
use crate::memory::Memory;

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, len: usize, byte: u8 },
    Take { at: usize, len: usize, granule: Granule },
    Read { which: usize, at: usize, len: usize },
    Free { which: usize, at: usize, len: usize },
    View { which: usize, at: usize, len: usize },
    CopyOut { which: usize },
    WriteOut { which: usize },
    Forget { which: usize },
}

const MODELLED: usize = 5 * HUGE + 3 * PAGE;

fn step() -> impl Strategy<Value = Step> {
    let (at, len, which) = (0..MODELLED, 1..2 * HUGE, any::<usize>());
    let granule = prop_oneof![Just(Granule::Huge), Just(Granule::Small), Just(Granule::Auto)];
    prop_oneof![
        6 => (at.clone(), len.clone(), any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        3 => (at.clone(), 1..MODELLED, granule)
            .prop_map(|(at, len, granule)| Step::Take { at, len, granule }),
        2 => (which, at.clone(), len.clone())
            .prop_map(|(which, at, len)| Step::Read { which, at, len }),
        1 => (which, at.clone(), len.clone())
            .prop_map(|(which, at, len)| Step::Free { which, at, len }),
        1 => (which, at, len).prop_map(|(which, at, len)| Step::View { which, at, len }),
        1 => which.prop_map(|which| Step::CopyOut { which }),
        1 => which.prop_map(|which| Step::WriteOut { which }),
        1 => which.prop_map(|which| Step::Forget { which }),
    ]
}

/// Any steps, against plain copies.
fn snapshots_under_any_steps_follow_the_model(fault_mode: FaultMode) {
    let mut runner =
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let steps = prop::collection::vec(step(), 1..40);
    runner
        .run(&(steps, any::<bool>()), |(steps, huge)| {
            run_steps(fault_mode, &steps, huge);
            Ok(())
        })
        .unwrap();
}

fn run_steps(fault_mode: FaultMode, steps: &[Step], huge: bool) {
    let memory = Memory::untouched(MODELLED, huge);
    split(&memory, 2 * HUGE + PAGE, HUGE);
    let mut model = vec![0_u8; MODELLED];
    let mut taken: Vec<(Snapshot, Vec<u8>)> = Vec::new();
    for step in steps {
        match *step {
            Step::Write { at, len, byte } => {
                let len = len.min(MODELLED - at);
                model[at..at + len].fill(byte);
                // SAFETY: within the memory, which only this thread uses.
                unsafe { memory.start().add(at).write_bytes(byte, len) };
            }
            Step::Take { at, len, granule } => {
                let len = len.min(MODELLED - at);
                let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(at), len);
                let snapshot = of(fault_mode, range, granule).unwrap();
                taken.push((snapshot, model[at..at + len].to_vec()));
            }
            _ if taken.is_empty() => {}
            Step::Read { which, at, len } => {
                let (snapshot, held) = &taken[which % taken.len()];
                let (at, len) = within(at, len, held.len());
                let mut read = vec![0; len];
                snapshot.read_at(at, &mut read).unwrap();
                assert!(read == held[at..at + len]);
            }
            Step::Free { which, at, len } => {
                let (snapshot, held) = &taken[which % taken.len()];
                let (at, len) = within(at, len, held.len());
                snapshot.prepare_write(at..at + len).unwrap();
            }
            Step::View { which, at, len } => {
                let (snapshot, held) = &taken[which % taken.len()];
                let (at, len) = within(at, len, held.len());
                let view = hugekit::snapshot::View::of(snapshot).unwrap();
                let first = view.bytes(at..at + len).unwrap();
                assert!(view.bytes(0..held.len()).unwrap() == held);
                assert!(first == &held[at..at + len]);
            }
            Step::CopyOut { which } => {
                let (snapshot, held) = taken.swap_remove(which % taken.len());
                assert!(copied(snapshot) == held);
            }
            Step::WriteOut { which } => {
                let (snapshot, held) = taken.swap_remove(which % taken.len());
                let mut written = Vec::new();
                snapshot.write_to(&mut written).unwrap();
                assert!(written == held);
            }
            Step::Forget { which } => drop(taken.swap_remove(which % taken.len())),
        }
    }
    // SAFETY: only this thread uses it.
    assert!(unsafe { std::slice::from_raw_parts(memory.start(), MODELLED) } == model);
    for (snapshot, held) in taken {
        assert!(copied(snapshot) == held);
    }
}

fn within(at: usize, len: usize, of: usize) -> (usize, usize) {
    let at = at % of;
    (at, len.min(of - at))
}

/// Makes a part a mapping of its own.
fn split(memory: &Memory, at: usize, len: usize) {
    // SAFETY: changes no byte.
    let advised = unsafe { libc::madvise(memory.start().add(at).cast(), len, libc::MADV_DONTDUMP) };
    assert_eq!(advised, 0);
}

pub(crate) const CHECKS: &[Check] =
    hugekit_testing::checks![snapshots_under_any_steps_follow_the_model];
