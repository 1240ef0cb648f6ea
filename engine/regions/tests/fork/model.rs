//! Random operations on trees of regions, against a plain vector for each.

use std::io::{Read, Write};
use std::ops::Range;

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::region::{ForkError, PinnedRange};
use hugekit::{Pool, Region, SharedRegion};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use crate::backings::{Check, builder};
use crate::fixture::{granules, paint};
use crate::permitted::fault_modes;

/// One region of a tree, and what it must read as.
#[derive(Debug)]
struct Modelled {
    region: SharedRegion,
    bytes: Vec<u8>,
    pins: Vec<PinnedRange>,
}

#[derive(Clone, Debug)]
enum Step {
    /// With the bytes that the fork leaves out, if any.
    Fork(Index, Option<(Index, Index)>),
    Write(Index, Index, usize, u8),
    Drop(Index),
    Release(Index, Index, Index),
    Populate(Index, Index, Index),
    Ready(Index, Index, Index),
    Pin(Index, Index, Index),
    Unpin(Index),
    Truncate(Index, Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let step = prop_oneof![
        4 => (index(), option::of((index(), index())))
            .prop_map(|(which, left_out)| Step::Fork(which, left_out)),
        8 => (index(), index(), 1_usize..9000, any::<u8>())
            .prop_map(|(which, at, len, byte)| Step::Write(which, at, len, byte)),
        2 => index().prop_map(Step::Drop),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Release(which, a, b)),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Populate(which, a, b)),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Ready(which, a, b)),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Pin(which, a, b)),
        1 => index().prop_map(Step::Unpin),
        1 => (index(), index()).prop_map(|(which, len)| Step::Truncate(which, len)),
    ];
    vec(step, 1..40)
}

/// Regions of a tree at most, and folios of its first.
const MOST: usize = 5;

const FEW: usize = 3;

impl Modelled {
    fn new(region: Region, bytes: Vec<u8>) -> Self {
        Self { region: region.share(), bytes, pins: Vec::new() }
    }

    /// Every byte, or a few of each page.
    fn check(&self, all: bool) {
        let step = if all { 4096 } else { 128 << 10 };
        let mut seen = [0; 4096];
        for (at, bytes) in self.bytes.chunks(4096).enumerate().step_by(step / 4096) {
            let seen = &mut seen[..bytes.len()];
            self.region.read_at(at * 4096, seen).unwrap();
            assert!(seen == bytes, "page {at}");
        }
    }

    fn range(&self, a: &Index, b: &Index, unit: usize) -> Range<usize> {
        let units = self.bytes.len() / unit;
        let (a, b) = (a.index(units + 1), b.index(units + 1));
        a.min(b) * unit..a.max(b) * unit
    }
}

type HowToFork<'a> = &'a dyn Fn(&SharedRegion, Range<usize>) -> Result<Region, ForkError>;

impl Modelled {
    /// A child, if there are mappings for one.
    fn fork(&self, left_out: Range<usize>, how: HowToFork<'_>) -> Option<Self> {
        match how(&self.region, left_out.clone()) {
            Ok(child) => {
                let mut bytes = self.bytes.clone();
                bytes[left_out].fill(0);
                Some(Self::new(child, bytes))
            }
            // What is pinned cannot be moved together, and a new place may not be free in one piece.
            Err(ForkError::Mappings { needed, most: 3, .. }) => {
                assert!(needed > 0);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, at: usize, len: usize, byte: u8) {
        let end = (at + len).min(self.bytes.len());
        self.bytes[at..end].fill(byte);
        self.region.write_at(at, &self.bytes[at..end]).unwrap();
    }

    fn release(&mut self, range: Range<usize>) {
        self.region.release(range.clone()).unwrap();
        self.bytes[range].fill(0);
    }

    /// The kernel may write there from then on.
    fn prepare_write(&self, range: Range<usize>) {
        self.region.prepare_write(range.clone()).unwrap();
        let (mut source, mut sink) = std::io::pipe().unwrap();
        let len = range.len().min(100);
        if len > 0 {
            sink.write_all(&self.bytes[range.start..range.start + len]).unwrap();
            let start = self.region.as_ptr().wrapping_add(range.start);
            // SAFETY: bytes of the region, which no thread accesses meanwhile; they stay what they are.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
            assert_eq!(source.read(bytes).unwrap(), len);
        }
    }

    fn truncated(self, len: usize) -> Self {
        let Self { region, mut bytes, .. } = self;
        // SAFETY: no other thread uses the region.
        let mut region = unsafe { region.into_exclusive() }.unwrap();
        region.truncate(len).unwrap();
        bytes.truncate(len);
        assert_eq!(region.len(), len);
        Self::new(region, bytes)
    }
}

fn take(tree: &mut Vec<Modelled>, step: &Step, how: HowToFork<'_>, page: usize) {
    let of = |tree: &[Modelled], index: &Index| index.index(tree.len());
    match step {
        Step::Fork(which, left_out) if tree.len() < MOST => {
            let modelled = &tree[of(tree, which)];
            let left_out = left_out.as_ref().map_or(0..0, |(a, b)| modelled.range(a, b, 1));
            let child = modelled.fork(left_out, how);
            tree.extend(child);
        }
        Step::Fork(..) => {}
        Step::Write(which, at, len, byte) => {
            let modelled = which.get_mut(tree);
            let at = at.index(modelled.bytes.len());
            modelled.write(at, *len, *byte);
        }
        Step::Drop(which) => {
            if tree.len() > 1 {
                let which = of(tree, which);
                drop(tree.swap_remove(which));
            }
        }
        Step::Release(which, a, b) => {
            let modelled = which.get_mut(tree);
            let range = modelled.range(a, b, page);
            modelled.release(range);
        }
        Step::Populate(which, a, b) => {
            let modelled = which.get(tree);
            modelled.region.populate(modelled.range(a, b, 1)).unwrap();
        }
        Step::Ready(which, a, b) => {
            let modelled = which.get(tree);
            modelled.prepare_write(modelled.range(a, b, 1));
        }
        Step::Pin(which, a, b) => {
            let modelled = which.get_mut(tree);
            let pin = modelled.region.pin(modelled.range(a, b, 1)).unwrap();
            modelled.pins.push(pin);
        }
        Step::Unpin(which) => drop(which.get_mut(tree).pins.pop()),
        Step::Truncate(which, len) => {
            let which = of(tree, which);
            if tree[which].pins.is_empty() {
                let modelled = tree.swap_remove(which);
                let len = 1 + len.index(modelled.bytes.len());
                tree.push(modelled.truncated(len));
            }
        }
    }
}

/// A kind of tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    pub(crate) backing: Backing,
    pub(crate) granule: usize,
    pub(crate) fault_mode: FaultMode,
}

impl Tree {
    /// Its first region: painted and ready, or cleared as asked for.
    fn first(self, pool: &Pool, len: usize, clearing: Option<Clearing>) -> Modelled {
        let Some(clearing) = clearing else {
            let mut region = pool.region(len).unwrap();
            paint(&mut region, 1);
            let bytes = region.to_vec();
            return Modelled::new(region, bytes);
        };
        pool.region(pool.capacity()).unwrap().fill(0xd1);
        let builder = pool.region_builder(len).clearing(clearing).fault_mode(self.fault_mode);
        Modelled::new(builder.build().unwrap(), vec![0; len])
    }

    /// Takes random steps, from a first region of so many bytes.
    pub(crate) fn try_random_operations(self, len: usize, clearing: Option<Clearing>) {
        let Self { backing, granule, fault_mode } = self;
        let cases = if backing == Backing::Base { 200 } else { 24 };
        let config =
            ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let page = backing.page_size();
        // Small granules keep folios in use, and so do those that are larger.
        let spare = if granule == page { MOST } else { 4 * MOST };
        let pool = builder(backing, spare * len / page + 8).scrub_threads(0).build().unwrap();
        // A look makes memory ready.
        let looks_at_all = backing == Backing::Base && clearing.is_none();
        let run = |steps: Vec<Step>, most: usize| {
            let mut tree = vec![self.first(&pool, len, clearing)];
            let how = |region: &SharedRegion, left_out: Range<usize>| {
                let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
                fork.max_vmas(most).leave_out(left_out).build()
            };
            for step in &steps {
                take(&mut tree, step, &how, page);
                tree.iter().for_each(|modelled| modelled.check(looks_at_all));
                if granule == page {
                    let in_use = tree.iter().map(|modelled| modelled.region.mapped_len() / page);
                    assert_eq!(pool.stats().unwrap().in_use, in_use.sum::<usize>());
                }
            }
            tree.iter().for_each(|modelled| modelled.check(true));
            drop(tree);
            assert_eq!(pool.stats().unwrap().in_use, 0);
        };
        TestRunner::new(config)
            .run(&(steps(), prop_oneof![Just(3_usize), Just(1000)]), |(steps, most)| {
                run(steps, most);
                Ok(())
            })
            .unwrap();
    }
}

/// Random operations on trees of regions, against a plain vector for each.
fn forks_under_any_operations_are_like_vectors(backing: Backing) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let tree = Tree { backing, granule, fault_mode };
            tree.try_random_operations(FEW * backing.page_size(), None);
        }
    }
}

pub(crate) const CHECKS: &[Check] =
    hugekit_testing::checks![forks_under_any_operations_are_like_vectors];
