//! Epochs of regions: what has changed since, and all of it.

use std::fs::File;
use std::io::Read;
use std::ops::Range;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::snapshot::{Changes, Epoch};
use hugekit::{Pool, Region, Snapshot, SnapshotError};
use hugekit_testing::racing;
use hugekit_testing::states::saved;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::backings::{Check, FOLIOS, builder};
use crate::fixture::{copied, fault_modes, granules, is_painted, painted};

/// A region with what serves it.
struct Watched {
    region: Region,
    granule: usize,
    fault_mode: FaultMode,
}

impl Watched {
    fn first(&self) -> Changes {
        let builder = self.region.fork_builder().granule(self.granule).fault_mode(self.fault_mode);
        Changes::first(builder).unwrap()
    }

    fn since(&self, epoch: Epoch) -> Changes {
        Changes::since(&self.region, epoch).unwrap()
    }

    fn fork(&self) -> Region {
        let builder = self.region.fork_builder().granule(self.granule).fault_mode(self.fault_mode);
        builder.build().unwrap()
    }

    fn snapshot(&self) -> Snapshot {
        let builder = self.region.fork_builder().granule(self.granule).fault_mode(self.fault_mode);
        Snapshot::of_region(builder).unwrap()
    }
}

/// Bytes of a check's regions: several granules of each length.
fn len(backing: Backing) -> usize {
    FOLIOS * backing.page_size().max(16 << 10)
}

/// A pool for so many of these.
fn pool_of(backing: Backing, regions: usize) -> Pool {
    let folios = regions * len(backing) / backing.page_size();
    builder(backing, folios).scrub_threads(0).build().unwrap()
}

/// Calls `check` with a painted region, in every way, and its pool.
fn each(backing: Backing, check: impl Fn(&Pool, Watched)) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = pool_of(backing, 4);
            let mut region = pool.region(len(backing)).unwrap();
            region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
            check(&pool, Watched { region, granule, fault_mode });
            assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?} {granule}");
        }
    }
}

fn changed(changes: &Changes) -> Vec<Range<usize>> {
    changes.changed().collect()
}

/// Whether system calls may write all of it, which no kernel allows for what is held back in place.
fn is_plain(region: &mut Region) -> bool {
    File::open("/dev/zero").unwrap().read_exact(region).is_ok()
}

fn epoch_has_the_granules_that_were_written_and_no_others(backing: Backing) {
    each(backing, |_, mut watched| {
        let (granule, len) = (watched.granule, watched.region.len());
        let mut image = vec![0; len];
        let changes = watched.first();
        assert!(changes.changed().eq(std::iter::once(0..len)));
        let epoch = saved(changes, &mut image);
        assert!(is_painted(&image));
        watched.region[granule + 7] = 1;
        watched.region[granule + 8] = 2;
        watched.region[len - 1] = 3;
        let changes = watched.since(epoch);
        assert_eq!(changed(&changes), [granule..2 * granule, len - granule..len]);
        let epoch = saved(changes, &mut image);
        assert!(image == watched.region[..]);
        let nothing = watched.since(epoch);
        assert_eq!(changed(&nothing), []);
        // What is written while a state is saved belongs to the next one.
        watched.region[0] = 4;
        let epoch = saved(nothing, &mut image);
        assert_eq!(image[0], painted(0));
        let changes = watched.since(epoch);
        assert!(changes.changed().eq(std::iter::once(0..granule)));
        drop(saved(changes, &mut image));
        assert!(image == watched.region[..]);
        assert!(is_plain(&mut watched.region), "it is the region's alone again");
    });
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, len: usize, byte: u8 },
    WriteFork { at: usize, byte: u8 },
    Release { folio: usize },
    Fork,
    DropFork,
    Snapshot,
    Read,
    Begin,
    Next,
    Out,
    Free { at: usize, len: usize, by_region: bool },
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = any::<u32>().prop_map(|at| at as usize);
    let len = 1..1_usize << 14;
    let step = prop_oneof![
        6 => (at.clone(), len.clone(), any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        2 => (at.clone(), any::<u8>()).prop_map(|(at, byte)| Step::WriteFork { at, byte }),
        1 => at.clone().prop_map(|folio| Step::Release { folio }),
        1 => Just(Step::Fork),
        1 => Just(Step::DropFork),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Read),
        1 => Just(Step::Begin),
        6 => Just(Step::Next),
        6 => Just(Step::Out),
        1 => (at, len, any::<bool>())
            .prop_map(|(at, len, by_region)| Step::Free { at, len, by_region }),
        1 => Just(Step::Forget),
    ];
    vec(step, 1..60)
}

/// A chain of states.
enum EpochChain {
    None,
    /// Taken, not written out yet: what it should be.
    Pending(Changes, Vec<u8>),
    Saved(Epoch),
}

struct Model {
    watched: Watched,
    bytes: Vec<u8>,
    folio: usize,
    fork: Option<(Region, Vec<u8>)>,
    snapshot: Option<(Snapshot, Vec<u8>)>,
    chain: EpochChain,
    image: Vec<u8>,
}

impl Model {
    fn new(watched: Watched, folio: usize) -> Self {
        let bytes = watched.region.to_vec();
        let (fork, snapshot, chain, image) = (None, None, EpochChain::None, Vec::new());
        Self { watched, bytes, folio, fork, snapshot, chain, image }
    }

    fn piece(&self, at: usize, len: usize) -> Range<usize> {
        let at = at % self.bytes.len();
        at..(at + len).min(self.bytes.len())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { at, len, byte } => {
                let piece = self.piece(at, len);
                self.bytes[piece.clone()].fill(byte);
                self.watched.region[piece].fill(byte);
            }
            Step::Release { folio } => {
                let folio = folio % (self.bytes.len() / self.folio);
                let bytes = folio * self.folio..(folio + 1) * self.folio;
                self.watched.region.release(bytes.clone()).unwrap();
                self.bytes[bytes].fill(0);
            }
            Step::Fork | Step::DropFork | Step::WriteFork { .. } => self.fork(&step),
            Step::Snapshot | Step::Read => {
                if let Some((snapshot, held)) = self.snapshot.take() {
                    assert!(copied(snapshot) == held);
                }
                let taken = || (self.watched.snapshot(), self.bytes.clone());
                self.snapshot = matches!(step, Step::Snapshot).then(taken);
            }
            Step::Free { at, len, by_region: true } => {
                let piece = self.piece(at, len);
                self.watched.region.prepare_write(piece).unwrap();
            }
            step => self.turn(step),
        }
    }

    fn fork(&mut self, step: &Step) {
        match (step, &mut self.fork) {
            (Step::Fork, fork) => *fork = Some((self.watched.fork(), self.bytes.clone())),
            (Step::DropFork, fork) => *fork = None,
            (Step::WriteFork { at, byte }, Some((fork, bytes))) => {
                let at = at % bytes.len();
                (fork[at], bytes[at]) = (*byte, *byte);
            }
            _ => {}
        }
    }

    fn turn(&mut self, step: Step) {
        let pending = |changes| EpochChain::Pending(changes, self.bytes.clone());
        self.chain = match (step, std::mem::replace(&mut self.chain, EpochChain::None)) {
            (Step::Begin, _) => {
                self.image = vec![0xa5; self.bytes.len()];
                pending(self.watched.first())
            }
            (Step::Forget, _) => EpochChain::None,
            (Step::Next, EpochChain::Saved(epoch)) => pending(self.watched.since(epoch)),
            (Step::Out, EpochChain::Pending(changes, expected)) => {
                let epoch = saved(changes, &mut self.image);
                assert!(self.image == expected);
                EpochChain::Saved(epoch)
            }
            (Step::Free { at, len, .. }, EpochChain::Pending(changes, expected)) => {
                changes.prepare_write(self.piece(at, len)).unwrap();
                EpochChain::Pending(changes, expected)
            }
            (Step::Free { at, len, .. }, EpochChain::Saved(epoch)) => {
                epoch.prepare_write(self.piece(at, len)).unwrap();
                EpochChain::Saved(epoch)
            }
            (_, chain) => chain,
        };
    }

    fn end(mut self) {
        self.step(Step::Next);
        self.step(Step::Out);
        self.step(Step::Read);
        assert!(self.watched.region[..] == self.bytes);
        assert!(self.fork.take().is_none_or(|(fork, bytes)| fork[..] == bytes));
    }
}

fn epochs_under_any_steps_follow_the_model(backing: Backing) {
    let cases = if backing == Backing::Base { 200 } else { 24 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            // Small granules keep folios in use.
            let pool = pool_of(backing, 8);
            let follow = |steps: Vec<Step>| {
                let mut region = pool.region(len(backing)).unwrap();
                region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
                let watched = Watched { region, granule, fault_mode };
                let mut model = Model::new(watched, backing.page_size());
                steps.into_iter().for_each(|step| model.step(step));
                model.end();
                Ok(())
            };
            TestRunner::new(config.clone()).run(&steps(), follow).unwrap();
        }
    }
}

fn epochs_under_writers_forget_no_write(backing: Backing) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = pool_of(backing, 4);
            let region = pool.region(len(backing)).unwrap().share();
            let built = region.fork_builder().granule(granule).fault_mode(fault_mode);
            let first = || Changes::first(built.clone()).unwrap();
            let since = |epoch| Changes::since(&region, epoch).unwrap();
            // Others come and go, and hold back the same writes.
            let fork = |round| (round % 3 == 1).then(|| built.build().unwrap());
            racing::epochs_forget_no_write(region.words(), first, since, fork);
        }
    }
}

fn granule_that_is_written_in_each_state_is_not_watched_and_is_looked_at_again(backing: Backing) {
    each(backing, |_, mut watched| {
        let (granule, mut image) = (watched.granule, vec![0; watched.region.len()]);
        let mut epoch = saved(watched.first(), &mut image);
        assert_eq!(epoch.unwatched(), 0);
        for round in 0..3 {
            watched.region[2 * granule] = round;
            epoch = saved(watched.since(epoch), &mut image);
            assert_eq!(epoch.unwatched(), if round == 0 { 0 } else { granule });
        }
        let mut states = 0;
        while epoch.unwatched() != 0 {
            let changes = watched.since(epoch);
            assert!(changes.changed().eq(std::iter::once(2 * granule..3 * granule)));
            epoch = saved(changes, &mut image);
            states += 1;
        }
        assert!(states <= 6, "{states}");
        let changes = watched.since(epoch);
        assert_eq!(changed(&changes), [], "it was watched, and rested");
        drop(saved(changes, &mut image));
        assert!(image == watched.region[..]);
    });
}

fn epoch_of_another_region_or_another_state_is_refused(backing: Backing) {
    each(backing, |pool, mut watched| {
        let mut image = vec![0; watched.region.len()];
        let refused = |refused: Result<Changes, SnapshotError>| {
            assert!(matches!(refused, Err(SnapshotError::Fork(ForkError::OtherEpoch))));
        };
        let early = saved(watched.first(), &mut image);
        let late = saved(watched.first(), &mut image);
        refused(Changes::since(&watched.region, early));
        let (fork, other) = (watched.fork(), pool.region(watched.region.len()).unwrap());
        let of_fork = saved(Changes::first(&fork).unwrap(), &mut image);
        refused(Changes::since(&watched.region, of_fork));
        let of_other = saved(Changes::first(&other).unwrap(), &mut image);
        refused(Changes::since(&watched.region, of_other));
        // SAFETY: refused before any memory is looked at.
        let anonymous = unsafe { Snapshot::builder().since(late) };
        refused(anonymous);
        drop((fork, other));
        let truncated = saved(watched.first(), &mut image);
        watched.region.truncate(watched.region.len() - 1).unwrap();
        refused(Changes::since(&watched.region, truncated));
        assert!(is_plain(&mut watched.region), "a refused epoch holds nothing back");
    });
}

fn epoch_outlives_its_region(backing: Backing) {
    each(backing, |_, watched| {
        let mut image = vec![0; watched.region.len()];
        let epoch = saved(watched.first(), &mut image);
        drop(watched);
        epoch.prepare_write(0..image.len()).unwrap();
        let beyond = epoch.prepare_write(1..image.len() + 1);
        assert!(matches!(beyond, Err(SnapshotError::OutOfRange { .. })), "{beyond:?}");
    });
}

fn epoch_is_not_in_a_forked_child(backing: Backing) {
    each(backing, |_, watched| {
        let mut image = vec![0; watched.region.len()];
        let epoch = saved(watched.first(), &mut image);
        let code = crate::child::in_a_child(|| {
            let refused = Changes::since(&watched.region, epoch);
            i32::from(!matches!(refused, Err(SnapshotError::Fork(ForkError::Forked))))
        });
        assert_eq!(code, 0);
    });
}

fn changes_that_are_not_taken_leave_the_region_plain(backing: Backing) {
    each(backing, |_, mut watched| {
        let refused = watched.first().deliver(|_, _| Err(std::io::ErrorKind::StorageFull.into()));
        assert!(matches!(refused, Err(SnapshotError::Write { written: 0, .. })), "{refused:?}");
        assert!(is_plain(&mut watched.region));
        drop(watched.first());
        assert!(is_plain(&mut watched.region));
    });
}

fn pinned_bytes_count_as_written(backing: Backing) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = pool_of(backing, 4);
            let region = pool.region(len(backing)).unwrap().share();
            let _pinned = region.pin(granule + 5..granule + 6).unwrap();
            let mut image = vec![0; region.len()];
            let built = region.fork_builder().granule(granule).fault_mode(fault_mode);
            let epoch = saved(Changes::first(built).unwrap(), &mut image);
            let changes = Changes::since(&region, epoch).unwrap();
            assert!(changes.changed().eq(std::iter::once(granule..2 * granule)));
        }
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    epoch_has_the_granules_that_were_written_and_no_others,
    "[nightly: a model checks many steps] " epochs_under_any_steps_follow_the_model,
    "[nightly: threads must meet] " epochs_under_writers_forget_no_write,
    granule_that_is_written_in_each_state_is_not_watched_and_is_looked_at_again,
    epoch_of_another_region_or_another_state_is_refused,
    epoch_outlives_its_region,
    epoch_is_not_in_a_forked_child,
    changes_that_are_not_taken_leave_the_region_plain,
    pinned_bytes_count_as_written,
];
