//! Any steps on regions, forks and snapshots, against plain vectors.

use std::ops::Range;

use hugekit::pool::Backing;
use hugekit::{Region, Snapshot};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use crate::backings::{Check, builder};
use crate::fixture::{Take, copied, fault_modes, granules, painted};

#[derive(Clone, Debug)]
enum Step {
    Write { of: Index, at: Index, len: usize, byte: u8 },
    Fork { of: Index },
    Take { of: Index },
    Release { of: Index, folio: Index },
    Drop { of: Index },
    Read { which: Index, at: Index, len: usize },
    Free { which: Index, at: Index, len: usize },
    View { which: Index, at: Index, len: usize },
    CopyOut { which: Index },
    CopyInto { which: Index, of: Index },
    WriteOut { which: Index },
    Forget { which: Index },
}

/// Regions and snapshots that exist at a time, at most.
const MOST: usize = 6;

fn steps(page: usize) -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let len = 1..3 * page;
    let step = prop_oneof![
        6 => (index(), index(), len.clone(), any::<u8>())
            .prop_map(|(of, at, len, byte)| Step::Write { of, at, len, byte }),
        2 => index().prop_map(|of| Step::Fork { of }),
        4 => index().prop_map(|of| Step::Take { of }),
        1 => (index(), index()).prop_map(|(of, folio)| Step::Release { of, folio }),
        1 => index().prop_map(|of| Step::Drop { of }),
        2 => (index(), index(), len.clone())
            .prop_map(|(which, at, len)| Step::Read { which, at, len }),
        2 => (index(), index(), len.clone())
            .prop_map(|(which, at, len)| Step::Free { which, at, len }),
        1 => (index(), index(), len).prop_map(|(which, at, len)| Step::View { which, at, len }),
        1 => index().prop_map(|which| Step::CopyOut { which }),
        1 => (index(), index()).prop_map(|(which, of)| Step::CopyInto { which, of }),
        1 => index().prop_map(|which| Step::WriteOut { which }),
        1 => index().prop_map(|which| Step::Forget { which }),
    ];
    vec(step, 1..40)
}

/// Regions with what they hold, and snapshots with what they should.
#[derive(Default)]
struct Model {
    regions: Vec<(Region, Vec<u8>)>,
    taken: Vec<(Snapshot, Vec<u8>)>,
}

impl Model {
    fn step(&mut self, step: &Step, page: usize, take: Take<'_>, fork: &dyn Fn(&Region) -> Region) {
        match step {
            Step::Write { .. } | Step::Release { .. } | Step::Drop { .. } => {
                self.change(step, page);
            }
            Step::Fork { of } if self.has_room() => {
                let (region, bytes) = of.get(&self.regions);
                self.regions.push((fork(region), bytes.clone()));
            }
            Step::Take { of } if self.has_room() => {
                let (region, bytes) = of.get(&self.regions);
                self.taken.push((take(region), bytes.clone()));
            }
            Step::Fork { .. } | Step::Take { .. } => {}
            _ if self.taken.is_empty() => {}
            Step::Read { .. } | Step::Free { .. } | Step::View { .. } => self.look(step),
            _ => self.end(step),
        }
    }

    fn has_room(&self) -> bool {
        self.regions.len() + self.taken.len() < MOST
    }

    /// Something becomes of a region.
    fn change(&mut self, step: &Step, page: usize) {
        match step {
            Step::Write { of, at, len, byte } => {
                let (region, bytes) = of.get_mut(&mut self.regions);
                let range = piece(at, *len, bytes.len());
                bytes[range.clone()].fill(*byte);
                region[range].fill(*byte);
            }
            Step::Release { of, folio } => {
                let (region, bytes) = of.get_mut(&mut self.regions);
                let start = folio.index(bytes.len() / page) * page;
                region.release(start..start + page).unwrap();
                bytes[start..start + page].fill(0);
            }
            Step::Drop { of } if self.regions.len() > 1 => {
                self.regions.swap_remove(of.index(self.regions.len()));
            }
            _ => {}
        }
    }

    /// A snapshot is read, or its writers are let go, and it goes on.
    fn look(&self, step: &Step) {
        match step {
            Step::Read { which, at, len } => {
                let (snapshot, held) = which.get(&self.taken);
                let range = piece(at, *len, held.len());
                let mut read = vec![0; range.len()];
                snapshot.read_at(range.start, &mut read).unwrap();
                assert!(read == held[range]);
            }
            Step::Free { which, at, len } => {
                let (snapshot, held) = which.get(&self.taken);
                snapshot.prepare_write(piece(at, *len, held.len())).unwrap();
            }
            Step::View { which, at, len } => {
                let (snapshot, held) = which.get(&self.taken);
                let range = piece(at, *len, held.len());
                let view = hugekit::snapshot::View::of(snapshot).unwrap();
                assert!(view.bytes(range.clone()).unwrap() == &held[range]);
            }
            _ => {}
        }
    }

    /// A snapshot is taken out whole, or dropped.
    fn end(&mut self, step: &Step) {
        match step {
            Step::CopyOut { which } => {
                let (snapshot, held) = self.remove(which);
                assert!(copied(snapshot) == held);
            }
            // Where each page that it is written to may be one that it is read from.
            Step::CopyInto { which, of } => {
                let (snapshot, held) = self.remove(which);
                let (region, bytes) = of.get_mut(&mut self.regions);
                snapshot.copy_to(region).unwrap();
                assert!(region[..] == held);
                *bytes = held;
            }
            Step::WriteOut { which } => {
                let (snapshot, held) = self.remove(which);
                let mut written = Vec::new();
                snapshot.write_to(&mut written).unwrap();
                assert!(written == held);
            }
            Step::Forget { which } => drop(self.remove(which)),
            _ => {}
        }
    }

    fn remove(&mut self, which: &Index) -> (Snapshot, Vec<u8>) {
        self.taken.swap_remove(which.index(self.taken.len()))
    }
}

/// A piece of so many bytes, as far as there are that many.
fn piece(at: &Index, len: usize, of: usize) -> Range<usize> {
    let at = at.index(of);
    at..(at + len).min(of)
}

/// Any steps on regions, forks and snapshots, against plain vectors.
fn snapshots_under_any_steps_follow_the_model(backing: Backing) {
    let (page, folios) = (backing.page_size(), 5);
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let cases = if backing == Backing::Base { 200 } else { 24 };
            let config =
                ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            // Small granules keep folios in use, and so do those that are larger.
            let regions = if granule == page { MOST } else { 4 * MOST };
            let pool = builder(backing, regions * folios + 8).scrub_threads(0).build().unwrap();
            let run = |steps: Vec<Step>| {
                let mut model = Model::default();
                let mut region = pool.region(folios * page).unwrap();
                region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
                let bytes = region.to_vec();
                model.regions.push((region, bytes));
                let take = |region: &Region| {
                    let builder = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    Snapshot::of_region(builder).unwrap()
                };
                let fork = |region: &Region| {
                    let builder = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    builder.build().unwrap()
                };
                steps.iter().for_each(|step| model.step(step, page, &take, &fork));
                let Model { regions, taken } = model;
                assert!(regions.iter().all(|(region, bytes)| region[..] == *bytes));
                assert!(taken.into_iter().all(|(snapshot, held)| copied(snapshot) == held));
                drop(regions);
                assert_eq!(pool.stats().unwrap().in_use, 0);
            };
            TestRunner::new(config)
                .run(&steps(page), |steps| {
                    run(steps);
                    Ok(())
                })
                .unwrap();
        }
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    "[nightly: a model checks many steps] " snapshots_under_any_steps_follow_the_model,
];
