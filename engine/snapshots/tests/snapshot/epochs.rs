//! Epochs: what has changed since, and all of it.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Changes, Epoch, Granule, Reserve};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use hugekit_testing::racing;
use hugekit_testing::states::saved;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::{Check, PAGE, SMALL, assert_is_plain, copied, of, words};
use crate::memory::Memory;

const LEN: usize = 5 * HUGE + 3 * PAGE;

fn builder(fault_mode: FaultMode) -> Builder {
    Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(LEN + HUGE)
}

fn first(fault_mode: FaultMode, memory: *const [u8], granule: Granule) -> Changes {
    // SAFETY: no test blocks SIGBUS or has the kernel write there but where it says so.
    unsafe { builder(fault_mode).granule(granule).first_epoch(memory) }.unwrap()
}

fn since(fault_mode: FaultMode, epoch: Epoch) -> Changes {
    // SAFETY: no test blocks SIGBUS or has the kernel write there but where it says so.
    unsafe { builder(fault_mode).since(epoch) }.unwrap()
}

/// Beginnings and ends.
fn changed(changes: &Changes) -> Vec<(usize, usize)> {
    changes.changed().map(|range| (range.start, range.end)).collect()
}

fn epoch_has_the_granules_that_were_written_and_no_others(fault_mode: FaultMode) {
    for (granule, bytes) in [(Granule::Huge, HUGE), (Granule::Small, SMALL)] {
        let memory = Memory::filled(4 * HUGE, true, 1);
        let mut image = vec![0; memory.len()];
        let changes = first(fault_mode, memory.range(), granule);
        assert_eq!(changed(&changes), [(0, memory.len())]);
        let epoch = saved(changes, &mut image);
        let write = |at: usize| memory.words()[at / 8].fetch_add(1, Ordering::Relaxed);
        write(HUGE + 5 * SMALL + 8);
        write(HUGE + 5 * SMALL + 16);
        write(3 * HUGE);
        let changes = since(fault_mode, epoch);
        let second = HUGE + 5 * SMALL / bytes * bytes;
        let expected = [(second, second + bytes), (3 * HUGE, 3 * HUGE + bytes)];
        assert_eq!(changed(&changes), expected);
        let epoch = saved(changes, &mut image);
        assert!(words(&image).eq(crate::fixture::loaded(&memory)));
        let nothing = since(fault_mode, epoch);
        assert_eq!(changed(&nothing), []);
        // What is written while a state is saved belongs to the next one.
        write(2 * HUGE);
        let epoch = saved(nothing, &mut image);
        assert_eq!(changed(&since(fault_mode, epoch)), [(2 * HUGE, 2 * HUGE + bytes)]);
        assert_is_plain(&memory);
    }
}

/// The last granule is where a writer has put it, and the edge behind it is read ahead, while the first bytes are taken.
fn edge_that_is_read_ahead_leaves_the_granule_before_it_where_it_is(fault_mode: FaultMode) {
    let memory = Memory::filled(3 * HUGE, true, 1);
    let len = 2 * HUGE + 5 * PAGE + 100;
    let range = ptr::slice_from_raw_parts(memory.start().cast_const(), len);
    let mut image = vec![0; len];
    let epoch = saved(first(fault_mode, range, Granule::Huge), &mut image);
    let write = |at: usize| memory.words()[at / 8].fetch_add(1, Ordering::Relaxed);
    [0, HUGE, 2 * HUGE].into_iter().for_each(|at| _ = write(at));
    let expected = crate::fixture::loaded(&memory)[..len / 8].to_vec();
    let changes = since(fault_mode, epoch);
    write(2 * HUGE);
    let mut is_first = true;
    let taken = changes.deliver(|offset, bytes| {
        if std::mem::take(&mut is_first) {
            thread::sleep(Duration::from_millis(100));
        }
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    });
    drop(taken.unwrap());
    assert!(words(&image[..len / 8 * 8]).eq(expected));
    assert_is_plain(&memory);
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, len: usize, byte: u8 },
    Discard { page: usize, pages: usize },
    Begin { at: usize, len: usize, granule: Granule },
    Next,
    Out,
    Free { at: usize, len: usize },
    Snapshot { at: usize, len: usize },
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    let (at, len) = (0..LEN, 1..2 * HUGE);
    let granule = prop_oneof![Just(Granule::Huge), Just(Granule::Small), Just(Granule::Auto)];
    prop_oneof![
        6 => (at.clone(), len.clone(), any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        1 => (0..LEN / PAGE, 1..600_usize).prop_map(|(page, pages)| Step::Discard { page, pages }),
        1 => (at.clone(), 1..LEN, granule)
            .prop_map(|(at, len, granule)| Step::Begin { at, len, granule }),
        5 => Just(Step::Next),
        5 => Just(Step::Out),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Free { at, len }),
        1 => (at, len).prop_map(|(at, len)| Step::Snapshot { at, len }),
        1 => Just(Step::Forget),
    ]
}

/// Any steps, against plain copies.
fn epochs_under_any_steps_follow_the_model(fault_mode: FaultMode) {
    let mut runner =
        TestRunner::new(Config { cases: 32, failure_persistence: None, ..Config::default() });
    let steps = prop::collection::vec(step(), 1..50);
    runner
        .run(&(steps, any::<bool>()), |(steps, huge)| {
            let mut model = Model::new(fault_mode, huge);
            steps.into_iter().for_each(|step| model.step(step));
            model.end();
            Ok(())
        })
        .unwrap();
}

/// A chain of states of part of the memory.
enum EpochChain {
    None,
    /// Taken, not written out yet: what it should be.
    Pending(Changes, Vec<u8>),
    Saved(Epoch),
}

struct Model {
    fault_mode: FaultMode,
    memory: Memory,
    bytes: Vec<u8>,
    part: Range<usize>,
    chain: EpochChain,
    image: Vec<u8>,
    snapshot: Option<(Snapshot, Vec<u8>)>,
}

impl Model {
    fn new(fault_mode: FaultMode, huge: bool) -> Self {
        Self {
            fault_mode,
            memory: Memory::untouched(LEN, huge),
            bytes: vec![0; LEN],
            part: 0..0,
            chain: EpochChain::None,
            image: Vec::new(),
            snapshot: None,
        }
    }

    fn range(&self, at: usize, len: usize) -> *const [u8] {
        ptr::slice_from_raw_parts(self.memory.start().wrapping_add(at), len)
    }

    fn write(&mut self, at: usize, len: usize, byte: u8) {
        self.bytes[at..at + len].fill(byte);
        // SAFETY: within the memory, which only this thread uses.
        unsafe { self.memory.start().add(at).write_bytes(byte, len) };
    }

    fn discard(&mut self, at: usize, len: usize) {
        self.bytes[at..at + len].fill(0);
        // SAFETY: within the memory, which only this thread uses.
        let done =
            unsafe { libc::madvise(self.memory.start().add(at).cast(), len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }

    fn begin(&mut self, at: usize, len: usize, granule: Granule) {
        self.chain = EpochChain::None;
        self.part = at..at + len;
        let changes = first(self.fault_mode, self.range(at, len), granule);
        self.image = vec![0xa5; len];
        self.chain = EpochChain::Pending(changes, self.bytes[self.part.clone()].to_vec());
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { at, len, byte } => self.write(at, len.min(LEN - at), byte),
            // What a snapshot is read of must not be discarded before.
            Step::Discard { page, pages }
                if self.snapshot.is_none() && !matches!(self.chain, EpochChain::Pending(..)) =>
            {
                self.discard(page * PAGE, (pages * PAGE).min(LEN - page * PAGE));
            }
            Step::Begin { at, len, granule } => self.begin(at, len.min(LEN - at), granule),
            Step::Next => {
                self.chain = match std::mem::replace(&mut self.chain, EpochChain::None) {
                    EpochChain::Saved(epoch) => {
                        let changes = since(self.fault_mode, epoch);
                        EpochChain::Pending(changes, self.bytes[self.part.clone()].to_vec())
                    }
                    other => other,
                }
            }
            Step::Out => {
                self.chain = match std::mem::replace(&mut self.chain, EpochChain::None) {
                    EpochChain::Pending(changes, expected) => {
                        let epoch = saved(changes, &mut self.image);
                        assert!(self.image == expected);
                        EpochChain::Saved(epoch)
                    }
                    other => other,
                }
            }
            Step::Free { at, len } => {
                let at = at % self.part.len().max(1);
                let len = len.min(self.part.len() - at);
                match &self.chain {
                    EpochChain::None => {}
                    EpochChain::Pending(changes, _) => changes.prepare_write(at..at + len).unwrap(),
                    EpochChain::Saved(epoch) => epoch.prepare_write(at..at + len).unwrap(),
                }
            }
            Step::Snapshot { at, len } => {
                self.check_snapshot();
                let len = len.min(LEN - at);
                let snapshot = of(self.fault_mode, self.range(at, len), Granule::Auto).unwrap();
                self.snapshot = Some((snapshot, self.bytes[at..at + len].to_vec()));
            }
            Step::Forget => self.chain = EpochChain::None,
            Step::Discard { .. } => {}
        }
    }

    fn check_snapshot(&mut self) {
        if let Some((snapshot, held)) = self.snapshot.take() {
            assert!(copied(snapshot) == held);
        }
    }

    fn end(mut self) {
        self.step(Step::Next);
        self.step(Step::Out);
        self.check_snapshot();
        self.chain = EpochChain::None;
        // SAFETY: only this thread uses it.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.start(), LEN) };
        assert!(bytes == self.bytes);
        assert_is_plain(&self.memory);
    }
}

fn epochs_under_writers_forget_no_write(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 0);
    let first = || first(fault_mode, memory.range(), Granule::Small);
    racing::epochs_forget_no_write(memory.words(), first, |epoch| since(fault_mode, epoch), |_| ());
}

fn epoch_of_memory_that_is_gone_is_an_error_and_of_what_took_its_place_all_of_it(
    fault_mode: FaultMode,
) {
    let memory = Memory::filled(4 * HUGE, true, 3);
    let mut image = vec![0; memory.len()];
    let epoch = saved(first(fault_mode, memory.range(), Granule::Huge), &mut image);
    let at = memory.start().wrapping_add(HUGE);
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the test's own memory, replaced by fresh memory of the same length.
    let replaced = unsafe { libc::mmap(at.cast(), HUGE, access, flags | libc::MAP_FIXED, -1, 0) };
    assert_eq!(replaced.cast(), at);
    let changes = since(fault_mode, epoch);
    assert_eq!(changed(&changes), [(HUGE, 2 * HUGE)]);
    let epoch = saved(changes, &mut image);
    assert!(words(&image).eq(crate::fixture::loaded(&memory)));
    // SAFETY: the test's own memory, which no thread uses until it is mapped again.
    assert_eq!(unsafe { libc::munmap(at.cast(), HUGE) }, 0);
    // SAFETY: no thread blocks SIGBUS.
    let gone = unsafe { builder(fault_mode).since(epoch) };
    assert!(matches!(gone, Err(SnapshotError::Unmapped { .. })), "{gone:?}");
    // SAFETY: so that the test's memory is whole when it is unmapped.
    unsafe { libc::mmap(at.cast(), HUGE, access, flags | libc::MAP_FIXED, -1, 0) };
    assert_is_plain(&memory);
}

fn granule_that_is_written_in_each_state_is_not_watched_and_is_looked_at_again(
    fault_mode: FaultMode,
) {
    for (granule, bytes) in [(Granule::Huge, HUGE), (Granule::Small, SMALL)] {
        let memory = Memory::filled(4 * HUGE, true, 1);
        let mut image = vec![0; memory.len()];
        let mut epoch = saved(first(fault_mode, memory.range(), granule), &mut image);
        let hot = (2 * HUGE, 2 * HUGE + bytes);
        for round in 0..3 {
            memory.words()[hot.0 / 8].fetch_add(1, Ordering::Relaxed);
            epoch = saved(since(fault_mode, epoch), &mut image);
            assert_eq!(epoch.unwatched(), if round == 0 { 0 } else { bytes });
        }
        let mut states = 0;
        while epoch.unwatched() != 0 {
            let changes = since(fault_mode, epoch);
            assert_eq!(changed(&changes), [hot]);
            epoch = saved(changes, &mut image);
            states += 1;
        }
        assert!(states <= 6, "{states}");
        let changes = since(fault_mode, epoch);
        assert_eq!(changed(&changes), [], "it was watched, and rested");
        drop(saved(changes, &mut image));
        assert!(words(&image).eq(crate::fixture::loaded(&memory)));
        assert_is_plain(&memory);
    }
}

fn changes_that_are_not_taken_leave_memory_plain(fault_mode: FaultMode) {
    let memory = Memory::filled(2 * HUGE, true, 3);
    let refused = first(fault_mode, memory.range(), Granule::Auto)
        .deliver(|_, _| Err(std::io::ErrorKind::StorageFull.into()));
    assert!(matches!(refused, Err(SnapshotError::Write { written: 0, .. })), "{refused:?}");
    assert_is_plain(&memory);
    drop(first(fault_mode, memory.range(), Granule::Auto));
    assert_is_plain(&memory);
}

fn epoch_is_not_in_a_forked_child(fault_mode: FaultMode) {
    let memory = Memory::filled(2 * HUGE, true, 3);
    let mut image = vec![0; memory.len()];
    let epoch = saved(first(fault_mode, memory.range(), Granule::Auto), &mut image);
    let code = crate::child::in_a_child(|| {
        memory.words()[0].store(9, Ordering::Relaxed);
        // SAFETY: no thread blocks SIGBUS.
        let refused = unsafe { builder(fault_mode).since(epoch) };
        i32::from(!matches!(refused, Err(SnapshotError::Forked)))
    });
    assert_eq!(code, 0);
}

/// A state that is out needs no copies any more: what they were to go to is the next one's.
fn reserve_goes_from_one_state_to_the_next(fault_mode: FaultMode) {
    let memory = Memory::filled(2 * HUGE, true, 3);
    let reserve = Reserve::new(memory.len()).unwrap();
    let mut image = vec![0; memory.len()];
    let with_reserve = || builder(fault_mode).reserve(&reserve);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    let mut changes = unsafe { with_reserve().first_epoch(memory.range()) }.unwrap();
    for _ in 0..3 {
        assert_eq!(changes.stats().reserved, memory.len());
        memory.words()[0].fetch_add(1, Ordering::Relaxed);
        let epoch = saved(changes, &mut image);
        assert_eq!((epoch.stats().reserved, epoch.stats().copied_by_writers), (memory.len(), 1));
        assert!(reserve.touch(), "no snapshot has it");
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        changes = unsafe { with_reserve().since(epoch) }.unwrap();
    }
    drop(changes);
    assert_is_plain(&memory);
}

/// However the code ends that takes what is read, the thread that reads ahead does.
fn changes_whose_taker_fails_late_or_panics_end(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 3);
    let most = 5 * HUGE;
    let fails = |at: usize, _: &[u8]| match at {
        at if at < most => Ok(()),
        _ => Err(std::io::ErrorKind::StorageFull.into()),
    };
    let refused = first(fault_mode, memory.range(), Granule::Auto).deliver(fails);
    assert!(matches!(refused, Err(SnapshotError::Write { written, .. }) if written == most));
    assert_is_plain(&memory);
    let changes = first(fault_mode, memory.range(), Granule::Auto);
    let panics = |at: usize, _: &[u8]| {
        if at < most { Ok(()) } else { std::panic::resume_unwind(Box::new("without a message")) }
    };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(changes.deliver(panics));
    }));
    assert!(panicked.is_err());
    assert_is_plain(&memory);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    reserve_goes_from_one_state_to_the_next,
    changes_whose_taker_fails_late_or_panics_end,
    epoch_has_the_granules_that_were_written_and_no_others,
    edge_that_is_read_ahead_leaves_the_granule_before_it_where_it_is,
    epochs_under_any_steps_follow_the_model,
    "[nightly: threads must meet] " epochs_under_writers_forget_no_write,
    epoch_of_memory_that_is_gone_is_an_error_and_of_what_took_its_place_all_of_it,
    granule_that_is_written_in_each_state_is_not_watched_and_is_looked_at_again,
    changes_that_are_not_taken_leave_memory_plain,
    epoch_is_not_in_a_forked_child,
];
