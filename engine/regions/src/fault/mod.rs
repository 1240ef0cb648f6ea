//! Faults that hugekit serves: memory that is made ready at the first access.
//!
//! A region with [`Clearing::OnFault`] that is not completely clean is registered with
//! userfaultfd(2). The first access to a folio is then a fault that hugekit serves. hugekit clears
//! the folio through the pool's own mapping and then shows it. The bytes near the accessed address
//! are cleared last and stay cached, and the rest is streamed. A region that is completely clean is
//! not registered.
//!
//! There are two fault modes ([`FaultMode`]). *In place*, the faulting thread itself serves the
//! fault in a handler of SIGBUS, without privilege, another thread or a wake-up. But an access by
//! the kernel for the process fails and does not wait: a system call returns EFAULT, and KVM exits
//! from the guest as it does for a device. *Threaded*, handler threads serve every access. A
//! program notices only that the access takes longer.
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

/// The access that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// This CPU's context does not say.
    Unknown,
}

/// The outcome of a write that a mapping's rights forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// It passes now.
    Served,
    /// There was nothing to do: another thread's write was served since, or the program itself forbids it.
    NotHeldBack,
    /// It is not ours, or cannot be served.
    Refused,
}

/// Something that knows what is to be done about faults at some addresses. Handlers of either kind call it, with their
/// signals blocked.
pub trait Faults: Debug + Send + Sync {
    /// Returns the descriptor that the addresses are registered with.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Sees to it that an access at an address of its own gets further. Async-signal-safe.
    fn serve(
        &self,
        address: usize,
        access: Access,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError>;

    /// Sees to it that a write which a mapping's rights forbid gets further. Async-signal-safe.
    fn serve_forbidden(&self, _address: usize, _blocked: &SignalsBlocked) -> Forbidden {
        Forbidden::Refused
    }

    /// After that failed in a handler thread: threads that wait may not wait for ever.
    ///
    /// # Errors
    /// The kernel refuses even that.
    fn leave(&self, address: usize, blocked: &SignalsBlocked) -> rustix::io::Result<()>;

    /// Leaves every address to the kernel, and what it shows must be right: for when no thread is there to
    /// serve faults any more.
    ///
    /// # Errors
    /// All is right, but the kernel does not let go of it: the descriptor is to be abandoned.
    fn give_up(&self, blocked: &SignalsBlocked) -> rustix::io::Result<()>;

    /// The memory at an address is broken: no user is shown it any more, and the pool never gets it back.
    /// Async-signal-safe.
    fn break_(&self, address: usize, blocked: &SignalsBlocked);
}

/// Threads that may serve the faults of one region: far more than pay off anywhere, and few enough to start at once.
pub const MOST_THREADS: usize = 256;

/// Who handles the faults of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultMode {
    /// A thread of the region, if this process may handle faults of system calls and of KVM;
    /// otherwise in place. [`Serving`] reports which.
    #[default]
    Auto,
    /// The faulting thread, in a handler of SIGBUS, or of SIGSEGV for forks on transparent huge
    /// pages.
    ///
    /// Not for guest memory. A system call that writes to the memory fails with EFAULT unless
    /// [`prepare_write`](crate::Region::prepare_write) came first.
    InPlace,
    /// This many threads of the region. One is fastest on most machines, because a second one is
    /// woken on another CPU.
    Threaded {
        /// The number of threads: at least one, and [`MOST_THREADS`] at most.
        threads: usize,
    },
}

/// The way in which the faults of a region are handled.
#[derive(Debug)]
#[non_exhaustive]
pub struct Serving {
    /// [`FaultMode::InPlace`] or [`FaultMode::Threaded`].
    pub fault_mode: FaultMode,
    /// The reason why [`FaultMode::Auto`] handles faults in place; `None` if it does not.
    pub fallback: Option<FaultError>,
}

impl Serving {
    /// Makes a report of how faults are served, and why not by threads if [`FaultMode::Auto`] falls back.
    #[doc(hidden)]
    #[must_use]
    pub fn new(fault_mode: FaultMode, fallback: Option<FaultError>) -> Self {
        Self { fault_mode, fallback }
    }
}

/// Bytes of the largest page that a signal handler clears. A handler works alone, and a page of 1 GiB would take it too
/// long.
const MOST_IN_PLACE: usize = GIGANTIC_OVER_BYTES;

/// Returns whether faults of this backing can be handled in this way.
pub(crate) fn suits(backing: Backing, fault_mode: FaultMode) -> bool {
    backing.page_size() <= MOST_IN_PLACE || fault_mode != FaultMode::InPlace
}
