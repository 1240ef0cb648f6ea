//! A worker's news for its supervisor: counters in a page that both processes map, so that the supervisor
//! reads them however badly the worker hangs.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::operations::OPERATIONS;

/// Names the descriptor of the page in a worker's environment.
pub const DESCRIPTOR: &str = "HUGEKIT_SOAK_STATUS";

/// Threads of a worker that report separately.
pub const ACTORS: usize = 64;

/// The counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    Pools,
    Regions,
    Forks,
    Snapshots,
    Reads,
    Writes,
    Releases,
    Jobs,
    Cancelled,
    Children,
    Advice,
    Lost,
    Refused,
    Signals,
    BytesVerified,
}

impl Count {
    pub const ALL: [Self; 15] = [
        Self::Pools,
        Self::Regions,
        Self::Forks,
        Self::Snapshots,
        Self::Reads,
        Self::Writes,
        Self::Releases,
        Self::Jobs,
        Self::Cancelled,
        Self::Children,
        Self::Advice,
        Self::Lost,
        Self::Refused,
        Self::Signals,
        Self::BytesVerified,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pools => "pools",
            Self::Regions => "regions",
            Self::Forks => "forks",
            Self::Snapshots => "snapshots",
            Self::Reads => "reads of snapshots",
            Self::Writes => "writes",
            Self::Releases => "releases",
            Self::Jobs => "clears, copies, populates",
            Self::Cancelled => "cancelled jobs and copies",
            Self::Children => "child processes",
            Self::Advice => "advice calls",
            Self::Lost => "snapshots lost as documented",
            Self::Refused => "calls refused as documented",
            Self::Signals => "signals handled",
            Self::BytesVerified => "bytes verified",
        }
    }
}

/// The page.
#[derive(Debug)]
#[repr(C)]
pub struct Status {
    /// The worker's process, once it runs.
    pub process: AtomicI32,
    /// The step of each actor: an index of the table of operations plus 1, or 0 between operations.
    pub doing: [AtomicU32; ACTORS],
    /// The seed of that.
    pub seeds: [AtomicU64; ACTORS],
    /// Steps each actor has made.
    pub beats: [AtomicU64; ACTORS],
    pub counts: [AtomicU64; Count::ALL.len()],
}

impl Status {
    /// A fresh page, and the descriptor that a worker inherits.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create() -> std::io::Result<(&'static Self, c_int)> {
        // SAFETY: a name that lives; the descriptor is new and sized before it is mapped.
        unsafe {
            let file = libc::memfd_create(c"hugekit-soak-status".as_ptr(), 0);
            if file < 0 || libc::ftruncate(file, size_of::<Self>() as libc::off_t) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok((Self::map(file)?, file))
        }
    }

    /// The page that the supervisor made, or one of this process's own where there is no supervisor.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn inherited() -> std::io::Result<&'static Self> {
        let named = std::env::var(DESCRIPTOR).ok().and_then(|value| value.parse().ok());
        let status = match named {
            Some(file) => Self::map(file)?,
            None => Self::create()?.0,
        };
        status.process.store(std::process::id() as i32, Ordering::SeqCst);
        Ok(status)
    }

    fn map(file: c_int) -> std::io::Result<&'static Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which stays; zeroes are valid atomics.
        unsafe {
            let page =
                libc::mmap(ptr::null_mut(), size_of::<Self>(), prot, libc::MAP_SHARED, file, 0);
            if page == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            Ok(&*page.cast::<Self>())
        }
    }

    /// Says what every actor is at.
    pub fn print_actors(&self) {
        for (actor, doing) in self.doing.iter().enumerate() {
            let index = (doing.load(Ordering::Relaxed) as usize).checked_sub(1);
            if let Some(operation) = index.and_then(|index| OPERATIONS.get(index)) {
                let seed = self.seeds[actor].load(Ordering::Relaxed);
                eprintln!("actor {actor} was at {}, seed {seed}", operation.name);
            }
        }
    }

    pub fn add(&self, what: Count, number: u64) {
        self.counts[what as usize].fetch_add(number, Ordering::Relaxed);
    }

    #[must_use]
    pub fn read(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }
}
