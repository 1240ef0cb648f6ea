//! Handling of faults by hugekit: memory is made ready at the first access.
//!
//! If a region with [`Clearing::OnFault`] contains dirty memory, it is registered with
//! userfaultfd(2). Then the first access to a folio is a fault that hugekit handles. hugekit clears
//! the folio through the pool's own mapping, and then maps the folio for the access. The bytes near
//! the accessed address are cleared last and stay in the cache; the rest is streamed. A completely
//! clean region is not registered.
//!
//! There are two fault modes ([`FaultMode`]). *In place*, the faulting thread itself handles the
//! fault in a handler of SIGBUS, without privileges, another thread or a wake-up. But an access by
//! the kernel for the process fails instead of waiting: a system call returns EFAULT, and KVM exits
//! from the guest as for a device access. *Threaded*, handler threads handle all accesses. A
//! program notices only that the access lasts longer.
//!
//! `README.md` beside this file draws the states and locks, and lists the races that were
//! considered.
//!
//! [`Clearing::OnFault`]: crate::pool::Clearing::OnFault

mod hook;
mod in_place;
mod late;
pub mod no_fault;
pub mod open;
mod registry;
mod show;
mod threaded;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

pub use self::in_place::take_back_signals;
pub use self::in_place::{Ranges, Registration, serve_forbidden_writes};
pub use self::registry::{HeldTable, Registry};
pub(crate) use self::show::show;
pub use self::threaded::Handlers;
use crate::pool::{Backing, FaultError};
use hugekit_bulk::populate::PopulateError;
use hugekit_bulk::sweep::GIGANTIC_OVER_BYTES;
use hugekit_sys::thread::SignalsBlocked;

/// The kind of the access that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The access is a read.
    Read,
    /// The access is a write.
    Write,
    /// The CPU's context does not tell the kind.
    Unknown,
}

/// The outcome of a write that the rights of a mapping forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The write succeeds when it is repeated.
    Served,
    /// Nothing was done: another thread's write has already made the page writable, or the program
    /// itself forbids the write.
    NotHeldBack,
    /// The address is not hugekit's, or the write cannot be handled.
    Refused,
}

/// A handler of faults at a set of addresses. The signal handler or a handler thread calls its
/// methods, with the signals of faults blocked.
pub trait Faults: Debug + Send + Sync {
    /// Returns the descriptor that the addresses are registered with.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Makes an access to an address of this handler succeed when it is repeated.
    /// Async-signal-safe.
    fn serve(
        &self,
        address: usize,
        access: Access,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError>;

    /// Makes a write that the rights of a mapping forbid succeed when it is repeated.
    /// Async-signal-safe.
    fn serve_forbidden(&self, _address: usize, _blocked: &SignalsBlocked) -> Forbidden {
        Forbidden::Refused
    }

    /// Leaves an address to the kernel after `serve` failed in a handler thread, so that the
    /// waiting threads continue.
    ///
    /// # Errors
    /// The kernel's error if it refuses this, too.
    fn leave(&self, address: usize, blocked: &SignalsBlocked) -> rustix::io::Result<()>;

    /// Leaves every address to the kernel when no thread is left that could handle faults. After
    /// the call, each address must have the right content.
    ///
    /// # Errors
    /// The kernel's error if it keeps the registration. The content is right, and the caller must
    /// abandon the descriptor.
    fn give_up(&self, blocked: &SignalsBlocked) -> rustix::io::Result<()>;

    /// Marks the memory at an address as broken. No user ever accesses it again, and the pool never
    /// gets it back. Async-signal-safe.
    fn break_(&self, address: usize, blocked: &SignalsBlocked);
}

/// The highest number of threads for the faults of one region. More threads than this gain nothing
/// on any machine, and this many can still be started at once.
pub const MOST_THREADS: usize = 256;

/// The mode in which the faults of a region are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultMode {
    /// Threaded, with one thread, if this process may handle faults of system calls and of KVM.
    /// Otherwise in place. [`Serving`] reports the chosen mode.
    #[default]
    Auto,
    /// In place: the faulting thread handles the fault in a handler of SIGBUS, or of SIGSEGV for
    /// forks on transparent huge pages.
    ///
    /// Not for guest memory. A system call that writes to the memory fails with EFAULT unless the
    /// program called [`prepare_write`](crate::Region::prepare_write) before.
    InPlace,
    /// Threaded: this number of threads of the region handles the faults. One thread is fastest on
    /// most machines, because a second thread is woken on another CPU.
    Threaded {
        /// The number of threads, from 1 to [`MOST_THREADS`].
        threads: usize,
    },
}

/// The mode in which the faults of a region are handled, and the reason for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Serving {
    /// The mode: [`FaultMode::InPlace`] or [`FaultMode::Threaded`].
    pub fault_mode: FaultMode,
    /// The reason why [`FaultMode::Auto`] handles faults in place. `None` if faults are not handled
    /// in place, or if the caller requested it.
    pub fallback: Option<FaultError>,
}

impl Serving {
    /// Makes a report of the mode, and of the reason if [`FaultMode::Auto`] falls back to in place.
    #[doc(hidden)]
    #[must_use]
    pub fn new(fault_mode: FaultMode, fallback: Option<FaultError>) -> Self {
        Self { fault_mode, fallback }
    }
}

/// Bytes of the largest page that a signal handler clears. A handler works alone, and clearing a
/// page of 1 GiB would last too long.
const MOST_IN_PLACE: usize = GIGANTIC_OVER_BYTES;

/// Returns true if faults of this backing can be handled in this way.
pub(crate) fn suits(backing: Backing, fault_mode: FaultMode) -> bool {
    backing.page_size() <= MOST_IN_PLACE || fault_mode != FaultMode::InPlace
}
