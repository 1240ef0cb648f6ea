//! The descriptor of userfaultfd(2) by which a group hears of faults, and what the kernel is asked for by it.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{self, Errno};

use super::slot::Event;
use crate::fault::open::{self, Of};
use crate::fault::{self, FaultMode};
use crate::pool::{Backing, FaultError};
use hugekit_sys::private_pages::Private;
use hugekit_sys::userfaultfd;

/// The way to serve a read of shared memory whose frame is not in the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedReads {
    /// The frame is entered with protection against writes.
    Enter,
    /// The reader gets a copy, as if it wrote. Before Linux 6.4, the kernel cannot enter a protected page of a file. If
    /// hugekit protected the page afterwards, a write could come in between.
    Copy,
}

impl SharedReads {
    /// Returns the event of a slot that a thread reads.
    pub(super) fn event(self) -> Event {
        match self {
            Self::Enter => Event::Read,
            Self::Copy => Event::Write,
        }
    }
}

/// The descriptor of a group on a backing, and how its faults are served.
#[derive(Debug)]
pub(crate) struct Descriptor {
    file: OwnedFd,
    backing: Backing,
    /// Threads that read it, or `None` if faults are served in place.
    threads: Option<usize>,
    watches_writes: bool,
    /// The kernel refused to wake threads that wait.
    unwoken: Private<AtomicBool>,
}

impl Descriptor {
    /// Opens a descriptor for first accesses to memory of a pool, and for writes to shared memory of it.
    pub(super) fn for_forks(backing: Backing, threads: Option<usize>) -> Result<Self, FaultError> {
        let file = Self::open(threads, Of::SharedWrites(backing))?;
        Self::new(file, backing, threads, true)
    }

    /// Opens a descriptor for first accesses to memory of a pool, and for writes if the kernel can.
    pub(crate) fn for_clearing(
        backing: Backing,
        threads: Option<usize>,
    ) -> Result<Self, FaultError> {
        match Self::for_forks(backing, threads) {
            Err(FaultError::Lacking { .. }) => {
                let file = Self::open(threads, Of::FirstAccesses(backing))?;
                Self::new(file, backing, threads, false)
            }
            opened => opened,
        }
    }

    fn open(threads: Option<usize>, of: Of) -> Result<OwnedFd, FaultError> {
        match threads {
            Some(_) => open::for_handler_threads(of),
            None => open::for_serving_in_place(of),
        }
    }

    fn new(
        file: OwnedFd,
        backing: Backing,
        threads: Option<usize>,
        watches_writes: bool,
    ) -> Result<Self, FaultError> {
        let unwoken = Private::new(AtomicBool::new(false));
        let unwoken = unwoken
            .map_err(|errno| FaultError::Kernel { call: "mmap", source: Errno::into(errno) })?;
        Ok(Self { file, backing, threads, watches_writes, unwoken })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn fault_mode(&self) -> FaultMode {
        self.threads.map_or(FaultMode::InPlace, |threads| FaultMode::Threaded { threads })
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.threads.is_none()
    }

    /// Returns whether writes can be held back, and so the kernel be kept from `MADV_COLLAPSE`, which would map memory
    /// as it is.
    pub(super) fn watches_writes(&self) -> bool {
        self.watches_writes
    }

    /// Returns how a read of shared memory is served.
    pub(super) fn shared_reads(&self) -> SharedReads {
        let can_enter = userfaultfd::can_map_protected(self.as_fd());
        if can_enter { SharedReads::Enter } else { SharedReads::Copy }
    }

    /// Has writes to a mapping be held back where they are to be.
    pub(super) fn watch(&self, addresses: &Range<usize>, lazily: bool) -> io::Result<()> {
        userfaultfd::register_for_copies(self.as_fd(), addresses, lazily)
    }

    /// Has every access to addresses come to us, of which the file may have no page.
    pub(super) fn watch_unready(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::register(self.as_fd(), addresses, self.watches_writes)
    }

    /// Leaves addresses to the kernel.
    pub(super) fn unregister(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::unregister(self.as_fd(), addresses)
    }

    /// Marks addresses, so that writes come to us, or takes the marks away.
    pub(super) fn protect(&self, addresses: &Range<usize>, on: bool) -> io::Result<()> {
        userfaultfd::protect(self.as_fd(), addresses, on)
    }

    /// Enters into the page tables what the file has.
    pub(super) fn enter(&self, addresses: &Range<usize>, protected: bool) -> io::Result<()> {
        fault::show(self.as_fd(), addresses, self.backing, protected)?;
        self.wake(addresses);
        Ok(())
    }

    /// Has those threads go on that wait for one of the addresses: a thread that finds something mapped, or maps it
    /// anew, does not wake them.
    pub(super) fn wake(&self, addresses: &Range<usize>) {
        if !self.is_in_place() && self.try_to_wake(addresses).is_err() {
            self.unwoken.store(true, Ordering::Relaxed);
        }
    }

    /// Like [`wake`](Self::wake), of which the caller sees to a refusal.
    pub(super) fn try_to_wake(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::wake(self.as_fd(), addresses)
    }

    /// Returns whether the kernel has refused to wake threads since the last time that this was asked: they are to be
    /// seen to by [`Faults::leave`](crate::fault::Faults::leave).
    pub(super) fn has_unwoken(&self) -> bool {
        self.unwoken.swap(false, Ordering::Relaxed)
    }
}
