//! Random operations against a model, and threads that race: no byte is seen by another owner.

use hugekit::pool::{Backing, PoolError};
use hugekit::{Pool, Region};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::backings::{Check, FOLIOS, builder, is_zero};
use crate::child::in_a_child;
use crate::fixture::states;

/// One step in the life of a pool and its regions.
#[derive(Clone, Copy, Debug)]
enum Step {
    HandOut(usize),
    Write(usize, u8),
    Release(usize),
    Truncate(usize),
    Drop(usize),
    Retire(usize),
    Scrub,
    Pause,
    Resume,
    Fork,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..FOLIOS).prop_map(Step::HandOut),
        6 => (0..FOLIOS, 1..=255_u8).prop_map(|(region, byte)| Step::Write(region, byte)),
        2 => (0..FOLIOS).prop_map(Step::Release),
        2 => (0..FOLIOS).prop_map(Step::Truncate),
        4 => (0..FOLIOS).prop_map(Step::Drop),
        1 => (0..FOLIOS).prop_map(Step::Retire),
        1 => Just(Step::Scrub),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::Fork),
    ]
}

/// Regions, and what each of their folios should hold in every byte.
struct Model {
    pool: Pool,
    page: usize,
    regions: Vec<(Region, Vec<u8>)>,
    /// All of the pool's file by a mapping of the test's own.
    whole: *const u8,
}

impl Model {
    fn new(backing: Backing) -> Self {
        let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
        let first = pool.region(1).unwrap().share();
        let (bytes, prot) = (FOLIOS * page, ProtFlags::READ);
        // SAFETY: a new mapping; it is only read, between the steps, and outlives what is read.
        let whole = unsafe {
            let (file, _) = first.file().unwrap();
            mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0).unwrap()
        };
        Self { pool, page, regions: Vec::new(), whole: whole.cast::<u8>() }
    }

    /// Sees to it that a region is zero by the file as well.
    fn look_at_the_file(&self, region: Region) -> Region {
        let region = region.share();
        // SAFETY: within the mapping of the whole file; no thread writes the region now, and nothing of
        // what `file` returns is kept.
        unsafe {
            let at = self.whole.add(region.file().unwrap().1 as usize);
            assert!(is_zero(std::slice::from_raw_parts(at, region.len())), "seen in the file");
            region.into_exclusive().unwrap()
        }
    }

    fn pick(&self, at: usize) -> Option<usize> {
        at.checked_rem(self.regions.len())
    }

    fn take(&mut self, step: Step) {
        let page = self.page;
        match step {
            Step::HandOut(folios) => match self.pool.region(folios * page) {
                Ok(region) => {
                    assert!(is_zero(&region), "an earlier owner's bytes in a new region");
                    let region = self.look_at_the_file(region);
                    self.regions.push((region, vec![0; folios]));
                }
                Err(error) => assert!(matches!(error, PoolError::NoRoom { .. }), "{error}"),
            },
            Step::Write(at, byte) => {
                if let Some(at) = self.pick(at) {
                    let (region, model) = &mut self.regions[at];
                    let folio = usize::from(byte) % model.len();
                    region[folio * page..][..page].fill(byte);
                    model[folio] = byte;
                }
            }
            Step::Release(at) => {
                if let Some(at) = self.pick(at) {
                    let (region, model) = &mut self.regions[at];
                    let from = at % model.len();
                    region.release(from * page..model.len() * page).unwrap();
                    model[from..].fill(0);
                }
            }
            Step::Truncate(at) => {
                if let Some(at) = self.pick(at) {
                    let (region, model) = &mut self.regions[at];
                    model.truncate(model.len().div_ceil(2));
                    region.truncate(model.len() * page).unwrap();
                }
            }
            Step::Drop(at) => drop(self.pick(at).map(|at| self.regions.swap_remove(at))),
            Step::Retire(at) => {
                if let Some(at) = self.pick(at) {
                    self.regions.swap_remove(at).0.retire().unwrap();
                }
            }
            Step::Scrub => drop(self.pool.scrub().unwrap()),
            Step::Pause => self.pool.pause_scrubbing().unwrap(),
            Step::Resume => self.pool.resume_scrubbing().unwrap(),
            Step::Fork => assert_eq!(in_a_child(|| 0), 0),
        }
    }

    fn check(&self) {
        for (region, model) in &self.regions {
            assert_eq!(region.len(), model.len() * self.page);
            for (folio, &expected) in region.chunks(self.page).zip(model) {
                assert!(folio.iter().all(|&byte| byte == expected), "expected {expected}");
            }
        }
        let in_use: usize = self.regions.iter().map(|(_, model)| model.len()).sum();
        let [holes, clean, used, dirty] = states(&self.pool);
        assert_eq!((used, holes + clean + dirty), (in_use, FOLIOS - in_use));
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing is borrowed from it.
        unsafe { munmap(self.whole.cast_mut().cast(), FOLIOS * self.page) }.unwrap();
    }
}

fn region_after_any_steps_shows_no_earlier_owners_bytes(backing: Backing) {
    let cases = if cfg!(debug_assertions) { 24 } else { 96 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&vec(steps(), 1..60), |steps| {
            let mut model = Model::new(backing);
            for step in steps {
                model.take(step);
                model.check();
            }
            Ok(())
        })
        .unwrap();
}

fn region_of_racing_threads_shows_only_its_own_bytes(backing: Backing) {
    let page = backing.page_size();
    let pool = builder(backing, FOLIOS).scrub_threads(2).build().unwrap();
    let rounds = 4_000_000_usize / page.max(8192);
    std::thread::scope(|scope| {
        for tag in 1..=4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds.max(60) {
                    let len = (1 + (round + usize::from(tag)) % 3) * page;
                    let Ok(mut region) = pool.region(len) else { continue };
                    assert!(is_zero(&region), "an earlier owner's bytes in a new region");
                    region.fill(tag);
                    if round % 5 == 0 {
                        region.release(0..page).unwrap();
                        assert!(is_zero(&region[..page]));
                        region[..page].fill(tag);
                    }
                    assert!(region.iter().all(|&byte| byte == tag), "another owner writes here");
                }
            });
        }
        for _ in 0..20 {
            pool.pause_scrubbing().unwrap();
            pool.scrub().unwrap();
            pool.resume_scrubbing().unwrap();
        }
    });
    let [holes, clean, in_use, dirty] = states(&pool);
    assert_eq!((in_use, holes + clean + dirty), (0, FOLIOS));
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    region_after_any_steps_shows_no_earlier_owners_bytes,
    region_of_racing_threads_shows_only_its_own_bytes,
];
