//! The userfaultfd(2) descriptor of a group, and the calls that the group makes with it.

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

/// The descriptor of a group, the backing of its memory, and the way in which faults are served.
#[derive(Debug)]
pub(crate) struct Descriptor {
    file: OwnedFd,
    backing: Backing,
    /// The number of threads that read it, or `None` if faults are served in place.
    threads: Option<usize>,
    watches_writes: bool,
    /// True if the kernel refused to wake waiting threads.
    unwoken: Private<AtomicBool>,
}

impl Descriptor {
    /// Opens a descriptor for first accesses to memory of a pool, and for writes to shared memory.
    pub(super) fn for_forks(backing: Backing, threads: Option<usize>) -> Result<Self, FaultError> {
        let file = Self::open(threads, Of::SharedWrites(backing))?;
        Self::new(file, backing, threads, true)
    }

    /// Opens a descriptor for first accesses to memory of a pool, and for writes if the kernel supports them.
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

    /// Returns true if writes can be held back. If so, the kernel also refuses `MADV_COLLAPSE`,
    /// which would map memory as it is.
    pub(super) fn watches_writes(&self) -> bool {
        self.watches_writes
    }

    /// Returns how a read of shared memory is served.
    pub(super) fn shared_reads(&self) -> SharedReads {
        let can_enter = userfaultfd::can_map_protected(self.as_fd());
        if can_enter { SharedReads::Enter } else { SharedReads::Copy }
    }

    /// Registers addresses for writes, so these can be held back.
    pub(super) fn watch(&self, addresses: &Range<usize>, lazily: bool) -> io::Result<()> {
        userfaultfd::register_for_copies(self.as_fd(), addresses, lazily)
    }

    /// Registers addresses for every access. The file may have no page there.
    pub(super) fn watch_unready(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::register(self.as_fd(), addresses, self.watches_writes)
    }

    /// Leaves addresses to the kernel.
    pub(super) fn unregister(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::unregister(self.as_fd(), addresses)
    }

    /// Sets or removes marks. A write to a marked page is a fault that hugekit serves.
    pub(super) fn protect(&self, addresses: &Range<usize>, on: bool) -> io::Result<()> {
        userfaultfd::protect(self.as_fd(), addresses, on)
    }

    /// Enters pages of the file into the page tables.
    pub(super) fn enter(&self, addresses: &Range<usize>, protected: bool) -> io::Result<()> {
        fault::show(self.as_fd(), addresses, self.backing, protected)?;
        self.wake(addresses);
        Ok(())
    }

    /// Wakes threads that wait for one of the addresses. A thread that finds the slot mapped, or maps it anew, calls
    /// this, because the kernel does not wake them by itself.
    pub(super) fn wake(&self, addresses: &Range<usize>) {
        if !self.is_in_place() && self.try_to_wake(addresses).is_err() {
            self.unwoken.store(true, Ordering::Relaxed);
        }
    }

    /// Like [`wake`](Self::wake), but returns a refusal to the caller.
    pub(super) fn try_to_wake(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::wake(self.as_fd(), addresses)
    }

    /// Returns true if the kernel has refused to wake threads since the last call of this function.
    /// If so, the caller wakes them with [`Faults::leave`](crate::fault::Faults::leave).
    pub(super) fn has_unwoken(&self) -> bool {
        self.unwoken.swap(false, Ordering::Relaxed)
    }
}
