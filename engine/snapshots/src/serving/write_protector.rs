//! The kernel calls for protected memory, and the reaction to a refusal.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::io::{self, Errno};
use rustix::param::page_size;

use crate::error::SnapshotError;
use crate::making::huge_zeroes;
use hugekit_regions::fault::open::Untouched;
use hugekit_regions::pool::FaultError;
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::private_pages::{Private, PrivateBytes};
use hugekit_sys::sync::WakeEvent;
use hugekit_sys::thread::without_signals;
use hugekit_sys::userfaultfd;

/// The two descriptors of a process for protecting memory and for looking at its protection. All functions except
/// `new` are async-signal-safe.
#[derive(Debug)]
pub(crate) struct WriteProtector {
    descriptor: ManuallyDrop<OwnedFd>,
    untouched: Untouched,
    pagemap: PageMap,
    shared: Private<ProtectorWords>,
}

/// The words that handlers write and read.
#[derive(Debug)]
struct ProtectorWords {
    /// The number of times that the protector was abandoned. After the first time, all writes are let through.
    abandoned: AtomicU32,
    /// 1 after the first abandoning has ended.
    has_ended: AtomicU32,
    /// The starts of held pages: their protection is not lifted at this moment. 0 without a page.
    held: [AtomicUsize; 2],
    /// 1 while writers that fault sleep until a maker has protected its memory.
    pausing: AtomicU32,
    resumed: WakeEvent,
}

impl ProtectorWords {
    fn new() -> Self {
        let (abandoned, has_ended, held, pausing) = Default::default();
        Self { abandoned, has_ended, held, pausing, resumed: WakeEvent::new() }
    }
}

/// While this value exists, writers to memory that is being protected sleep.
#[derive(Debug)]
pub(crate) struct Pausing<'a>(&'a ProtectorWords);

impl Drop for Pausing<'_> {
    fn drop(&mut self) {
        self.0.pausing.store(0, Ordering::SeqCst);
        self.0.resumed.tell();
    }
}

/// The kernel refuses a call that it permitted when the memory was protected. A system-call filter was installed
/// since, or another library closed the descriptor.
#[derive(Debug)]
pub(crate) struct ProtectionRefused;

/// The most attempts, in all, of writes that were on their way when the protector was abandoned.
const TRIES: u32 = 10_000;

impl WriteProtector {
    pub(crate) fn new(
        (descriptor, untouched): (OwnedFd, Untouched),
    ) -> Result<Self, SnapshotError> {
        let pagemap = PageMap::open().map_err(SnapshotError::kernel("/proc/self/pagemap"))?;
        let shared = Private::new(ProtectorWords::new()).map_err(SnapshotError::kernel("mmap"))?;
        let descriptor = ManuallyDrop::new(descriptor);
        let protector = Self { descriptor, untouched, pagemap, shared };
        if protector.probe_protection_reports().map_err(SnapshotError::kernel("userfaultfd"))? {
            return Ok(protector);
        }
        let missing = vec!["protection told by the page map (Linux 5.14)"];
        Err(FaultError::Lacking { missing }.into())
    }

    /// Returns true if the page map shows protection. A page map that can be scanned does.
    /// Otherwise, protects a page of hugekit's own and looks at it, before any other page is
    /// protected.
    fn probe_protection_reports(&self) -> io::Result<bool> {
        if matches!(self.pagemap, PageMap::Scanned(_)) {
            return Ok(true);
        }
        let bytes = PrivateBytes::new(page_size(), 1)?;
        // SAFETY: the page is this function's own.
        unsafe { bytes.start().write_volatile(1) };
        let page = bytes.start().addr()..bytes.start().addr() + page_size();
        self.register(&page)?;
        let is_told = self.protect(&page).and_then(|()| self.pagemap.probe_protected(&page));
        // The protection ends with the page in any case.
        let _ = userfaultfd::unregister(self.descriptor(), &page);
        is_told
    }

    pub(crate) fn untouched(&self) -> Untouched {
        self.untouched
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Holds these pages: nothing lifts their protection. Releases other pages. Only one maker at a time calls this.
    pub(crate) fn hold(&self, pages: &[Option<Range<usize>>; 2]) {
        for (held, page) in self.shared.held.iter().zip(pages) {
            held.store(page.as_ref().map_or(0, |page| page.start), Ordering::SeqCst);
        }
    }

    /// Makes writers sleep. Otherwise they would try again and again, and take CPUs from the threads that protect.
    /// Only one maker at a time calls this. Until the value is dropped, the maker waits for no handler. No other
    /// thread waits for a handler either, because the maker holds the registries.
    pub(crate) fn pause_writers(&self) -> Pausing<'_> {
        self.shared.pausing.store(1, Ordering::SeqCst);
        Pausing(&self.shared)
    }

    /// Waits until the maker has protected its memory. Then the writer tries again. Async-signal-safe.
    pub(crate) fn wait_for_maker(&self) {
        let is_paused = || self.shared.pausing.load(Ordering::SeqCst) == 1;
        if is_paused() {
            self.shared.resumed.wait_for(|| (!is_paused()).then_some(()));
        } else {
            rustix::thread::sched_yield();
        }
    }

    /// Returns true if a part of the range is held.
    pub(super) fn holds(&self, range: &Range<usize>) -> bool {
        self.shared.held.iter().any(|page| {
            let page = page.load(Ordering::SeqCst);
            page != 0 && page < range.end && range.start < page + page_size()
        })
    }

    /// Returns true if every page that contains some of the range is protected.
    pub(crate) fn is_protected(&self, range: &Range<usize>) -> bool {
        self.pagemap.probe_protected(&whole_pages(range)) == Ok(true)
    }

    /// Returns the end of the protected pages at the start of the range.
    pub(super) fn protected_until(&self, range: &Range<usize>) -> usize {
        match self.pagemap.first_protected(range) {
            Ok(Some(found)) if found.start == range.start => found.end,
            _ => range.start,
        }
    }

    pub(crate) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        userfaultfd::register_for_copies(self.descriptor(), range, false)
    }

    /// Makes sure that all of the range can be protected. The range is registered with `descriptor`. Pages that the
    /// owner discards later look unprotected.
    pub(crate) fn fill(&self, descriptor: BorrowedFd<'_>, range: &Range<usize>) -> io::Result<()> {
        if self.untouched == Untouched::Marked {
            self.pagemap.scanned().iter().for_each(|scanned| huge_zeroes::map(scanned, range));
            return Ok(());
        }
        let mut rest = range.clone();
        while let Some(found) = self.pagemap.first_untouched(&rest)? {
            rest.start = match userfaultfd::map_zeroes(descriptor, &found) {
                Ok(()) => found.end,
                // A thread has touched the page meanwhile.
                Err((mapped, Errno::EXIST)) => found.start + mapped + page_size(),
                Err((mapped, Errno::AGAIN)) => found.start + mapped,
                Err((_, errno)) => return Err(errno),
            };
        }
        Ok(())
    }

    /// Protects the range: every write is a fault that hugekit serves. If a page cannot be protected, the pages
    /// behind it are not protected either.
    pub(crate) fn protect(&self, range: &Range<usize>) -> io::Result<()> {
        userfaultfd::protect(self.descriptor(), range, true)
    }

    /// Lets writes through, to all memory in the range that is still protected by hugekit.
    pub(super) fn lift(&self, range: &Range<usize>) -> Result<(), ProtectionRefused> {
        let lift =
            |descriptor: BorrowedFd<'_>, part: &_| userfaultfd::protect(descriptor, part, false);
        if self.each_part(range, lift).is_ok() {
            return Ok(());
        }
        match self.pagemap.first_protected(range) {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(ProtectionRefused),
        }
    }

    /// Unregisters the range, as far as it is still registered with this descriptor.
    pub(crate) fn unregister(&self, range: &Range<usize>) -> Result<(), ProtectionRefused> {
        match self.each_part(range, userfaultfd::unregister) {
            // A part belongs to another descriptor, or does not exist any more.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            // To unregister a part of a mapping needs one more mapping, and the process has none. The range stays
            // registered, and writes are let through.
            Err(Errno::NOMEM) => self.lift(range),
            Err(_) => Err(ProtectionRefused),
        }
    }

    /// Makes the kernel let all writes through, by closing the descriptor. All snapshots that share it are lost.
    /// Writes that were refused before are tried again.
    ///
    /// Other threads return only after this is done. If a handler thread read the descriptor again, it would keep the
    /// descriptor open. A writer whose message it then got would wait for ever.
    ///
    /// # Errors
    /// The descriptor was closed, but that did not help: a forked child has it, too, or the kernel refuses.
    pub(crate) fn abandon(&self) -> Result<(), ProtectionRefused> {
        without_signals(|_| {
            let ProtectorWords { abandoned, has_ended, resumed, .. } = &*self.shared;
            let before = abandoned.fetch_add(1, Ordering::SeqCst);
            if before == 0 {
                let closed = userfaultfd::abandon(self.descriptor()).map_err(|_| ProtectionRefused);
                has_ended.store(1, Ordering::SeqCst);
                resumed.tell();
                return closed;
            }
            resumed.wait_for(|| (has_ended.load(Ordering::SeqCst) == 1).then_some(()));
            if before < TRIES { Ok(()) } else { Err(ProtectionRefused) }
        })
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::SeqCst) > 0
    }

    /// Returns true if the kernel still carries out calls of the descriptor.
    pub(super) fn is_answered(&self, address: usize) -> bool {
        self.wake(address).is_ok()
    }

    /// Wakes the threads that wait at this address, so they try again.
    pub(crate) fn wake(&self, address: usize) -> io::Result<()> {
        let page = address - address % page_size();
        userfaultfd::wake(self.descriptor(), &(page..page + page_size()))
    }

    /// Calls `act` with the whole range. If that fails, because some of it does not belong to hugekit any more, calls
    /// it with each part that is still protected.
    ///
    /// # Errors
    /// The error of the last part that was refused, or the reason why no part was found.
    fn each_part(
        &self,
        range: &Range<usize>,
        act: impl Fn(BorrowedFd<'_>, &Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let act = |range: &Range<usize>| act(self.descriptor(), range);
        if act(range).is_ok() {
            return Ok(());
        }
        let (mut rest, mut done) = (range.clone(), Ok(()));
        while let Some(part) = self.pagemap.first_protected(&rest)? {
            if act(&part).is_err() {
                for page in part.clone().step_by(page_size()) {
                    let acted = act(&(page..page + page_size()));
                    done = if acted.is_err() { acted } else { done };
                }
            }
            rest.start = part.end;
        }
        let _ = userfaultfd::wake(self.descriptor(), range);
        done
    }
}

impl Drop for WriteProtector {
    /// Closes the descriptor, unless another library has closed it: its number may belong to another file.
    fn drop(&mut self) {
        if userfaultfd::is_kept(self.descriptor()) {
            // SAFETY: the descriptor is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

/// Returns the pages that contain some of the range.
fn whole_pages(range: &Range<usize>) -> Range<usize> {
    range.start - range.start % page_size()..range.end.next_multiple_of(page_size())
}
