//! A region whose faults are ours: which granules lack what, and making them ready.
//!
//! A granule is made ready through the pool's alias mapping and then shown to its user. How it is shown
//! follows what the backing's page tables like best: reserved pages and base pages are mapped by
//! `UFFDIO_CONTINUE`; a transparent huge page would be mapped as 512 base pages by that, so its addresses
//! are left to the kernel again, whose plain fault maps it whole.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::granules::{Granules, Pending};
use super::show::show;
use super::{Access, Faults, open};
use crate::pool::{Backing, Content, FaultError, Mapped, Pool};
use hugekit_bulk::learning;
use hugekit_bulk::parallel::{Bytes, Job, JobError, Progress, Report, Threads};
use hugekit_bulk::populate::{PopulateError, populate_pages};
use hugekit_bulk::{ClearOptions, Reuse};
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::mapping::replace;
use hugekit_sys::sync::Claim;
use hugekit_sys::thread::{SignalsBlocked, without_signals};
use hugekit_sys::{memory, userfaultfd};

/// Base pages that one fault makes ready together.
const BASE_GRANULE_BYTES: usize = 64 << 10;

/// A granule that more than one thread clears, where there is one to do it.
const SHARED_FROM: usize = 1 << 30;

/// The faults of one region.
#[derive(Debug)]
pub(crate) struct LazyRegion {
    descriptor: OwnedFd,
    pool: Pool,
    start: usize,
    /// Bytes; whole folios, and less after the region was cut.
    len: AtomicUsize,
    /// Where the region lies in the pool's file.
    offset: u64,
    /// The same bytes in the pool's own mapping.
    alias: Bytes,
    granule_bytes: usize,
    granules: Granules,
    /// Whether writes are watched too, by which the kernel is kept from `MADV_COLLAPSE`: that would map the
    /// memory as it is.
    uncollapsed: bool,
    /// A user may look at the bytes by the file as well: they are cleared at once, never at a fault.
    seen_through_file: AtomicBool,
}

impl LazyRegion {
    /// Has every access to the memory come to `descriptor`. No user knows its addresses yet.
    pub(super) fn new(
        pool: &Pool,
        mapped: &Mapped,
        contents: &[(usize, Content)],
        descriptor: OwnedFd,
    ) -> Result<Self, FaultError> {
        // The first look at it may allocate, which no fault may.
        learning::prepare();
        let start = mapped.mapping().start().as_ptr().addr();
        let granule_bytes = match pool.backing() {
            Backing::Base => BASE_GRANULE_BYTES.max(page_size()),
            _ => pool.page_size(),
        };
        let served = Self {
            descriptor,
            start,
            len: AtomicUsize::new(mapped.mapping().len()),
            offset: pool.memory().offset(mapped.extent()),
            alias: pool.memory().alias_of(mapped.extent()),
            granule_bytes,
            granules: Granules::new(&pending(contents, granule_bytes / pool.page_size()))
                .map_err(|errno| FaultError::Kernel { call: "mmap", source: errno.into() })?,
            uncollapsed: open::is_collapsible(pool.backing()),
            seen_through_file: AtomicBool::new(false),
            pool: pool.clone(),
        };
        served.register(&served.addresses()).map_err(|errno| FaultError::Kernel {
            call: "UFFDIO_REGISTER",
            source: errno.into(),
        })?;
        served.unmap_what_came_early()?;
        Ok(served)
    }

    /// Has every access to these addresses come to us.
    fn register(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::register(self.descriptor.as_fd(), addresses, self.uncollapsed)
    }

    /// Until it was registered, the kernel may have joined this mapping with that of a region whose part of
    /// the file lies beside ours, and a fault there maps what is around it: our pages, as they are. And another
    /// thread that locks all memory (`mlockall`) has all mappings populated, those of hugetlb too.
    fn unmap_what_came_early(&self) -> Result<(), FaultError> {
        let start = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: addresses of the region, which no thread knows yet.
        unsafe { memory::unmap_pages(start, self.len()) }
            .map_err(|errno| FaultError::Kernel { call: "madvise", source: errno.into() })
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        self.start..self.start + self.len()
    }

    /// Whether this is the process whose faults they are: one forked from it must not ask anything of the
    /// descriptor, because it would be asked of the parent's memory.
    pub(super) fn is_ours(&self) -> bool {
        self.pool.memory().is_ours()
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The region's bytes that a granule has; the last one may have fewer.
    fn bytes_of(&self, index: usize) -> Range<usize> {
        let start = index * self.granule_bytes;
        start..(start + self.granule_bytes).min(self.len())
    }

    fn addresses_of(&self, index: usize) -> Range<usize> {
        let bytes = self.bytes_of(index);
        self.start + bytes.start..self.start + bytes.end
    }

    /// Makes a granule ready, near `target` last, and shows it to its user. Async-signal-safe.
    fn make_ready(
        &self,
        index: usize,
        target: Option<usize>,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError> {
        let busy =
            self.granules.claim(index, blocked).map_err(|_broken| PopulateError::Poisoned)?;
        self.supply(index, &busy, target)?;
        // Before others may be at it: who takes it back must find it shown or not at all.
        let shown = self.show(index);
        busy.finish(Pending::Nothing);
        shown
    }

    /// Does what is lacking, through the alias mapping.
    fn supply(
        &self,
        index: usize,
        busy: &Claim<'_, Pending>,
        target: Option<usize>,
    ) -> Result<(), PopulateError> {
        let bytes = self.bytes_of(index);
        match busy.state() {
            Pending::Nothing => {}
            Pending::Page => {
                populate_pages(self.alias.at(bytes.start), bytes.len())?;
                self.pool.count_populated_at_fault(bytes.len());
            }
            Pending::Clearing => {
                self.clear(bytes.clone(), target);
                self.pool.count_cleared_at_fault(bytes.len());
            }
        }
        Ok(())
    }

    fn clear(&self, bytes: Range<usize>, target: Option<usize>) {
        let clear = match target {
            Some(target) => ClearOptions::new().target(target).reuse(Reuse::Target),
            None => ClearOptions::new().reuse(Reuse::None),
        };
        let shared = bytes.len() >= SHARED_FROM;
        let clear = clear.threads(if shared { Threads::Auto } else { Threads::One });
        // SAFETY: within the alias mapping, which exists as long as the pool; the thread that is busy with a
        // granule is the only one who writes it there.
        let cleared = unsafe { clear.run_raw(self.alias.at(bytes.start), bytes.len()) };
        debug_assert!(cleared.is_ok(), "the target lies within, and no caller cancels");
    }

    /// Lets the user see a granule that is ready.
    fn show(&self, index: usize) -> Result<(), PopulateError> {
        let addresses = self.addresses_of(index);
        let whole = self.pool.backing() == Backing::Thp;
        if whole && userfaultfd::unregister(self.descriptor.as_fd(), &addresses).is_ok() {
            return Ok(());
        }
        self.map(addresses)
    }

    /// Maps what the file has.
    fn map(&self, addresses: Range<usize>) -> Result<(), PopulateError> {
        let descriptor = self.descriptor.as_fd();
        let met =
            show(descriptor, &addresses, self.pool.backing(), false).map_err(
                |errno| match errno {
                    Errno::FAULT => PopulateError::NothingBehind,
                    Errno::NOMEM => PopulateError::OutOfMemory,
                    other => PopulateError::Kernel(std::io::Error::from(other).kind()),
                },
            )?;
        if met {
            // A thread that found it mapped does not wake those that wait for it.
            let _ = userfaultfd::wake(descriptor, &addresses);
        }
        Ok(())
    }

    /// Makes ready and shows every granule that a byte of the range lies on.
    pub(crate) fn prepare_write(
        &self,
        range: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Report, JobError<PopulateError>> {
        let first = range.start / self.granule_bytes;
        let last = range.end.div_ceil(self.granule_bytes).max(first);
        let job = Job::new((last - first) * self.granule_bytes)
            .min_chunk(self.granule_bytes.max(HUGE_PAGE_BYTES))
            .threads(threads);
        let job = progress.into_iter().fold(job, Job::progress);
        let ready = job.run(|chunk| {
            for offset in chunk.step_by(self.granule_bytes) {
                let index = first + offset / self.granule_bytes;
                without_signals(|blocked| self.make_ready_for_good(index, blocked))?;
            }
            Ok(())
        });
        ready.map_err(|error| error.shifted_into(first * self.granule_bytes, range))
    }

    /// As [`make_ready`](Self::make_ready), so that system calls meet no fault there: what can be
    /// swapped out is left to the kernel again.
    fn make_ready_for_good(
        &self,
        index: usize,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError> {
        let busy =
            self.granules.claim(index, blocked).map_err(|_broken| PopulateError::Poisoned)?;
        self.supply(index, &busy, None)?;
        let addresses = self.addresses_of(index);
        let stays = self.pool.backing().is_reserved();
        let shown =
            if stays || userfaultfd::unregister(self.descriptor.as_fd(), &addresses).is_err() {
                self.map(addresses)
            } else {
                Ok(())
            };
        busy.finish(Pending::Nothing);
        shown
    }

    /// Has whole folios read as zeroes again.
    pub(crate) fn release(&self, range: Range<usize>) {
        let mut next = range.start;
        while next < range.end {
            let index = next / self.granule_bytes;
            let bytes = self.bytes_of(index);
            let part = next..range.end.min(bytes.end);
            without_signals(|blocked| {
                self.release_part(index, part.clone(), part == bytes, blocked);
            });
            next = part.end;
        }
    }

    fn release_part(
        &self,
        index: usize,
        part: Range<usize>,
        whole: bool,
        blocked: &SignalsBlocked,
    ) {
        let Ok(busy) = self.granules.claim(index, blocked) else { return };
        if busy.state() != Pending::Nothing {
            return; // No user has been shown anything since it was last cleared.
        }
        if whole && !self.seen_through_file.load(Ordering::SeqCst) && self.take_from_user(index) {
            busy.finish(Pending::Clearing);
        } else {
            self.clear(part.clone(), None);
            self.pool.count_cleared_at_release(part.len());
        }
    }

    /// Has the next access to a granule come to us again.
    fn take_from_user(&self, index: usize) -> bool {
        let addresses = self.addresses_of(index);
        // What was left to the kernel must be ours before it is unmapped, or a plain fault in between
        // would show it as it is.
        if self.register(&addresses).is_err() {
            return false;
        }
        let start = ptr::with_exposed_provenance_mut(addresses.start);
        // SAFETY: addresses of the region, whose accesses wait for us until it is cleared.
        unsafe { memory::unmap_pages(start, addresses.len()) }.is_ok()
    }

    /// A user is to see the memory through the file: no other owner's bytes may be left in it, nor any of
    /// its own that were released.
    pub(crate) fn show_through_file(&self) {
        self.seen_through_file.store(true, Ordering::SeqCst);
        for index in 0..self.granules.len() {
            without_signals(|blocked| self.clear_only(index, blocked));
        }
    }

    /// Clears a granule that lacks it and does not map it.
    fn clear_only(&self, index: usize, blocked: &SignalsBlocked) {
        let Ok(busy) = self.granules.claim(index, blocked) else { return };
        if busy.state() == Pending::Clearing && self.supply(index, &busy, None).is_ok() {
            busy.finish(Pending::Nothing);
        }
    }

    /// Ends serving what lies behind the first `len` bytes, whole folios. No thread accesses it any more.
    pub(super) fn cut(&self, len: usize) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// What each run of the folios from `first` on holds, now that no thread accesses them.
    pub(crate) fn contents(&self, first: usize, count: usize) -> Vec<(usize, Content)> {
        let per_granule = self.granule_bytes / self.pool.page_size();
        let mut contents: Vec<(usize, Content)> = Vec::new();
        for folio in first..first + count {
            let content = match self.granules.look(folio / per_granule) {
                Err(_broken) => Content::Broken,
                Ok(Pending::Page) => Content::Hole,
                Ok(_) => Content::Dirty,
            };
            match contents.last_mut() {
                Some((run, last)) if *last == content => *run += 1,
                _ => contents.push((1, content)),
            }
        }
        contents
    }
}

impl Faults for LazyRegion {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Makes ready what was touched at one of its addresses, and shows it.
    fn serve(
        &self,
        address: usize,
        _access: Access,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError> {
        let offset = address - self.start;
        self.make_ready(offset / self.granule_bytes, Some(offset % self.granule_bytes), blocked)
    }

    /// A hole that could not be populated: the kernel may have memory for it now, or says in its own way
    /// that it has none. What is ready and could not be shown, the kernel shows by itself.
    fn leave(&self, address: usize) -> io::Result<()> {
        let index = (address - self.start) / self.granule_bytes;
        match self.granules.look(index) {
            Ok(Pending::Page | Pending::Nothing) => {
                userfaultfd::unregister(self.descriptor.as_fd(), &self.addresses_of(index))
            }
            _ => Ok(()),
        }
    }

    /// Maps a granule that is ready anew, where no descriptor is asked.
    fn rescue(&self, address: usize, blocked: &SignalsBlocked) -> bool {
        let index = (address - self.start) / self.granule_bytes;
        let Ok(busy) = self.granules.claim(index, blocked) else { return false };
        let memory = self.pool.memory();
        let offset = self.offset + self.bytes_of(index).start as u64;
        let (addresses, dumped) = (self.addresses_of(index), memory.in_core_dumps());
        // SAFETY: addresses of the region, whose user expects just this part of the file there.
        busy.state() == Pending::Nothing
            && unsafe { replace(memory.file(), offset, &addresses, dumped) }.is_ok()
    }

    /// Clears all that is left to be.
    fn give_up(&self, blocked: &SignalsBlocked) -> io::Result<()> {
        // What is released from now on is cleared at once: no thread would hear of a fault.
        self.seen_through_file.store(true, Ordering::SeqCst);
        for index in 0..self.granules.len() {
            self.clear_only(index, blocked);
        }
        userfaultfd::unregister(self.descriptor.as_fd(), &self.addresses())
    }

    fn break_(&self, address: usize, _: &SignalsBlocked) {
        self.granules.break_((address - self.start) / self.granule_bytes);
    }
}

/// What each granule of so many folios lacks.
fn pending(contents: &[(usize, Content)], per_granule: usize) -> Vec<Pending> {
    let folios: Vec<Content> =
        contents.iter().flat_map(|&(count, content)| std::iter::repeat_n(content, count)).collect();
    let lacks = |granule: &[Content]| {
        if granule.contains(&Content::Dirty) {
            Pending::Clearing
        } else if granule.contains(&Content::Hole) {
            Pending::Page
        } else {
            Pending::Nothing
        }
    };
    folios.chunks(per_granule).map(lacks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granule_of_several_folios_lacks_what_any_lacks() {
        use Content::{Clean, Dirty, Hole};
        let contents = [(3, Clean), (2, Dirty), (3, Clean), (1, Hole)];
        assert_eq!(pending(&contents, 4), [Pending::Clearing, Pending::Clearing, Pending::Page],);
        assert_eq!(pending(&contents[..1], 1), [Pending::Nothing; 3]);
    }
}
