//! The memory of a VM at the moment of a fork, as far as it is copied. Children are restored from
//! it meanwhile.
//!
//! One thread copies, granule by granule. Threads that handle the faults of children wait for the
//! granules that they need, and the copy takes these granules first. A granule whose copy has ended
//! is never written again, so any number of threads may read it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::vmm::Arriving;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granules::granules;
use crate::checkpoint::handover::UnnamedFile;
use crate::checkpoint::sink::Sink;
use crate::checkpoint::vm::Vm;

/// No bytes of the granule were put yet.
const EMPTY: u8 = 0;
/// Some bytes of the granule were put.
const PART: u8 = 1;
/// The copy of the granule has ended, and all bytes are zero.
const ZERO: u8 = 2;
/// The copy of the granule has ended.
const DATA: u8 = 3;

/// The longest time that the copy waits for the restores.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// Memory that is being copied.
#[derive(Debug)]
pub(crate) struct Preserved {
    map: MmapRaw,
    bytes: u64,
    granules: Vec<CopiedGranule>,
    /// True if a reader wants a granule, so that the copy need not lock to know this.
    is_wanted: AtomicBool,
    readers: Mutex<Readers>,
    /// Signalled when a reader wants a granule, and when all children are restored.
    bell: OwnedFd,
    /// Notified when the copy of a granule has ended, when the state exists, and when the copy has
    /// failed.
    arrived: Condvar,
    state: UnnamedFile,
}

/// A granule: its offsets, and the state of its copy.
#[derive(Debug)]
struct CopiedGranule {
    offsets: Range<u64>,
    copy: AtomicU8,
}

#[derive(Debug, Default)]
struct Readers {
    wanted: VecDeque<usize>,
    /// The time since which children can be restored.
    begun: Option<Instant>,
    /// The number of children that are not restored yet.
    restoring: usize,
    has_failed: bool,
}

impl Readers {
    /// Returns true if children are being restored, and the restores began only a short time ago.
    fn should_have_cpus(&self) -> bool {
        self.restoring > 0 && self.begun.is_some_and(|begun| begun.elapsed() < LONGEST_REST)
    }
}

impl Preserved {
    /// Reserves addresses for the memory of a VM. Memory is used only when bytes are put.
    pub(crate) fn new(vm: &Vm) -> io::Result<Self> {
        let part = |offsets| CopiedGranule { offsets, copy: AtomicU8::new(EMPTY) };
        let parts = granules(&vm.regions).map(|granule| part(granule.offsets()));
        Self::with_parts(parts.collect(), vm.bytes())
    }

    fn with_parts(granules: Vec<CopiedGranule>, bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        // Refused where the kernel has none: the pages are base pages then.
        let _ = map.advise(Advice::HugePage);
        // A guard, which was forked before, does not have it. Later children do not need it.
        let _ = map.advise(Advice::DontFork);
        Ok(Self {
            map: map.into(),
            bytes,
            granules,
            is_wanted: AtomicBool::new(false),
            readers: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            arrived: Condvar::new(),
            state: UnnamedFile::new()?,
        })
    }

    /// Waits until children can be restored, and returns the path of the VM's state. `None` if the
    /// fork has failed.
    pub(crate) fn await_state(&self) -> Option<&Path> {
        let is_waiting = |readers: &mut Readers| readers.begun.is_none() && !readers.has_failed;
        let readers = self.arrived.wait_while(self.lock(), is_waiting);
        let readers = readers.unwrap_or_else(PoisonError::into_inner);
        readers.begun.map(|_| self.state.path())
    }

    /// Announces that `count` children will be restored.
    pub(crate) fn await_children(&self, count: usize) {
        self.lock().restoring = count;
    }

    /// Records that a child is restored.
    pub(crate) fn restored(&self) {
        let mut readers = self.lock();
        readers.restoring -= 1;
        if readers.restoring == 0 {
            self.ring();
        }
    }

    fn ring(&self) {
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Makes all readers give up, those that wait now and those that will wait.
    pub(crate) fn fail(&self) {
        self.lock().has_failed = true;
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the granule of an offset. Granules ascend, and there is no gap between them.
    fn granule_at(&self, offset: u64) -> usize {
        self.granules.partition_point(|part| part.offsets.end <= offset)
    }

    /// Returns the granules of a range, which must lie in the memory.
    fn granules_of(&self, range: &Range<u64>) -> io::Result<Range<usize>> {
        if range.start >= range.end || range.end > self.bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(self.granule_at(range.start)..self.granule_at(range.end - 1) + 1)
    }

    /// Waits for a granule. Returns true if it has data.
    fn await_granule(&self, index: usize) -> io::Result<bool> {
        let copy = &self.granules[index].copy;
        let is_copied = || copy.load(Ordering::Acquire) >= ZERO;
        if !is_copied() {
            let mut readers = self.lock();
            if !readers.wanted.contains(&index) {
                readers.wanted.push_back(index);
                self.is_wanted.store(true, Ordering::Release);
                self.ring();
            }
            let is_waiting = |readers: &mut Readers| !is_copied() && !readers.has_failed;
            drop(self.arrived.wait_while(readers, is_waiting));
        }
        match copy.load(Ordering::Acquire) {
            DATA => Ok(true),
            ZERO => Ok(false),
            _ => Err(io::Error::other("the copy of the VM's memory has failed")),
        }
    }

    /// Puts bytes of one granule.
    fn put_part(&self, index: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let copy = &self.granules[index].copy;
        if copy.load(Ordering::Acquire) >= ZERO {
            return Err(io::Error::other("this memory is copied already"));
        }
        copy.store(PART, Ordering::Release);
        let to = self.map.as_mut_ptr().wrapping_add(offset as usize);
        // SAFETY: the bytes lie in this granule, and so in the mapping, which `granules_of` has
        // checked. No reference to a granule is made before its copy has ended, and the copy of
        // this one has not: only the thread that copies ends it, which is this one.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}

impl Sink for Preserved {
    fn restart(&self) -> io::Result<()> {
        if self.lock().begun.is_some() {
            return Err(io::Error::other("children read this memory already"));
        }
        for part in &self.granules {
            let (start, len) = (part.offsets.start, part.offsets.end - part.offsets.start);
            if part.copy.load(Ordering::Acquire) != EMPTY {
                let to = self.map.as_mut_ptr().wrapping_add(start as usize);
                // SAFETY: the bytes are those of a granule, and so in the mapping. Children are
                // restored when the state is there, which it is not: no reader refers to a granule.
                unsafe { std::ptr::write_bytes(to, 0, len as usize) };
                part.copy.store(EMPTY, Ordering::Release);
            }
        }
        Ok(())
    }

    fn begin(&self, state: &[u8]) -> io::Result<()> {
        self.state.write(state)?;
        self.lock().begun = Some(Instant::now());
        self.arrived.notify_all();
        Ok(())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = offset..offset + bytes.len() as u64;
        for index in self.granules_of(&range)? {
            let offsets = &self.granules[index].offsets;
            let (start, end) = (range.start.max(offsets.start), range.end.min(offsets.end));
            let part = &bytes[(start - offset) as usize..(end - offset) as usize];
            self.put_part(index, start, part)?;
        }
        Ok(())
    }

    fn end(&self, granule: usize) {
        let copy = &self.granules[granule].copy;
        let is_empty = copy.load(Ordering::Acquire) == EMPTY;
        // Readers look at it under the lock before they wait.
        let _readers = self.lock();
        copy.store(if is_empty { ZERO } else { DATA }, Ordering::Release);
        self.arrived.notify_all();
    }

    fn wanted(&self) -> Option<usize> {
        if !self.is_wanted.load(Ordering::Acquire) {
            return None;
        }
        let mut readers = self.lock();
        let wanted = readers.wanted.pop_front();
        self.is_wanted.store(!readers.wanted.is_empty(), Ordering::Release);
        wanted
    }

    fn rest(&self) -> Option<BorrowedFd<'_>> {
        if !self.lock().should_have_cpus() {
            return None;
        }
        let _ = read(&self.bell, &mut [0; size_of::<u64>()]);
        Some(self.bell.as_fd())
    }

    fn refused(&self, source: io::Error) -> CheckpointError {
        CheckpointError::Preserve(source)
    }
}

impl Arriving for Preserved {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn next_data(&self, range: Range<u64>) -> Option<Range<u64>> {
        for index in self.granules_of(&range).ok()? {
            let offsets = &self.granules[index].offsets;
            if self.await_granule(index).unwrap_or(true) {
                return Some(range.start.max(offsets.start)..range.end.min(offsets.end));
            }
        }
        None
    }

    fn data(&self, range: &Range<u64>) -> io::Result<&[u8]> {
        for index in self.granules_of(range)? {
            self.await_granule(index)?;
        }
        let start = self.map.as_ptr().wrapping_add(range.start as usize);
        // SAFETY: `granules_of` has checked that the bytes lie in the mapping, which lives as long
        // as `self`. The copy of their granules has ended, so no thread writes to them any more.
        Ok(unsafe { std::slice::from_raw_parts(start, (range.end - range.start) as usize) })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use hugekit_sys::poll::readable;

    const LEN: u64 = 4096;

    fn preserved() -> Preserved {
        let part =
            |n: u64| CopiedGranule { offsets: n * LEN..(n + 1) * LEN, copy: AtomicU8::new(EMPTY) };
        Preserved::with_parts((0..4).map(part).collect(), 4 * LEN).unwrap()
    }

    #[test]
    fn reader_waits_for_its_granule_which_is_wanted_first() {
        let memory = preserved();
        thread::scope(|scope| {
            let reader = scope.spawn(|| memory.data(&(2 * LEN..2 * LEN + 8)).unwrap()[0]);
            let wanted = loop {
                match memory.wanted() {
                    Some(index) => break index,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(wanted, 2);
            memory.put(2 * LEN, &[7; 8]).unwrap();
            memory.end(2);
            assert_eq!(reader.join().unwrap(), 7);
        });
        assert_eq!(memory.wanted(), None);
        assert!(memory.put(2 * LEN, &[8]).is_err(), "it was written behind its end");
    }

    #[test]
    fn granules_without_bytes_are_no_data() {
        let memory = preserved();
        memory.put(LEN + 5, &[1; 4096]).unwrap();
        (0..4).for_each(|index| memory.end(index));
        assert_eq!(memory.next_data(0..4 * LEN), Some(LEN..2 * LEN));
        assert_eq!(memory.next_data(2 * LEN..4 * LEN), Some(2 * LEN..3 * LEN));
        assert_eq!(memory.next_data(3 * LEN..4 * LEN), None);
        let bytes = memory.data(&(0..4 * LEN)).unwrap();
        assert_eq!((bytes[LEN as usize + 4], bytes[LEN as usize + 5]), (0, 1));
        assert!(memory.data(&(0..4 * LEN + 1)).is_err());
    }

    #[test]
    fn copies_of_a_moment_that_is_not_saved_are_dropped() {
        let memory = preserved();
        memory.put(0, &[1; 4096]).unwrap();
        memory.put(LEN, &[2; 4096]).unwrap();
        (0..2).for_each(|index| memory.end(index));
        memory.restart().unwrap();
        memory.put(0, &[3; 8]).unwrap();
        (0..4).for_each(|index| memory.end(index));
        let bytes = memory.data(&(0..LEN)).unwrap();
        assert_eq!((bytes[7], bytes[8]), (3, 0));
        assert_eq!(memory.next_data(LEN..4 * LEN), None);
        memory.begin(b"state").unwrap();
        assert!(memory.restart().is_err());
    }

    #[test]
    fn readers_of_a_copy_that_has_failed_end() {
        let memory = preserved();
        thread::scope(|scope| {
            let data = scope.spawn(|| memory.data(&(0..8)).is_err());
            let state = scope.spawn(|| memory.await_state().is_none());
            memory.fail();
            assert!(data.join().unwrap() && state.join().unwrap());
        });
        assert_eq!(memory.next_data(5..9), Some(5..9));
    }

    #[test]
    fn copy_rests_until_children_are_restored_unless_a_granule_is_wanted() {
        let memory = preserved();
        let is_rung = |bell| readable([bell], Some(Duration::ZERO)) == Ok([true]);
        memory.await_children(2);
        assert!(memory.rest().is_none(), "no child can be restored before the state is there");
        memory.begin(b"state").unwrap();
        assert!(!is_rung(memory.rest().unwrap()));
        thread::scope(|scope| {
            let reader = scope.spawn(|| memory.data(&(LEN..LEN + 8)).is_ok());
            while !is_rung(memory.bell.as_fd()) {
                thread::yield_now();
            }
            assert!(!is_rung(memory.rest().unwrap()), "the ring is of before");
            assert_eq!(memory.wanted(), Some(1));
            memory.end(1);
            assert!(reader.join().unwrap());
        });
        memory.restored();
        assert!(!is_rung(memory.rest().unwrap()));
        memory.restored();
        assert!(is_rung(memory.bell.as_fd()), "the copy would wait for nothing");
        assert!(memory.rest().is_none());
    }

    #[test]
    fn state_is_there_when_the_copy_begins() {
        let memory = preserved();
        memory.begin(b"state").unwrap();
        assert_eq!(std::fs::read(memory.await_state().unwrap()).unwrap(), b"state");
    }
}
