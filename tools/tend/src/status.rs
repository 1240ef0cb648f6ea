//! Reports of a tender.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Serialize, Serializer};

use crate::mappings::{Excluded, Extent};

/// The reason why a pass ended early, or did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Hindrance {
    /// A forked child lives, and shares the memory. A collapse would copy the shared memory.
    Child {
        /// The number of children.
        count: usize,
    },
    /// Tasks of the machine wait for memory.
    Pressure {
        /// The percentage of the last ten seconds in which tasks waited.
        percent: f64,
    },
    /// The kernel gathers no free block of 2 MiB.
    NoFreeHugePages {
        /// Bytes in such blocks, which are reserved for other uses.
        free: u64,
        /// Bytes that are available, in pieces.
        available: u64,
    },
    /// Little memory is available (`MemAvailable` of `/proc/meminfo`).
    LittleMemory {
        /// Bytes.
        available: u64,
        /// The bytes to leave: [`TendOptions::keep_free`](crate::TendOptions::keep_free).
        keep: u64,
    },
    /// The machine swapped out memory while the kernel gathered a free block.
    Swapping {
        /// Bytes.
        bytes: u64,
    },
    /// The process's control group, or a group above it, has too little memory left.
    ControlGroup {
        /// Bytes that are left.
        left: u64,
    },
    /// The process loads data: its memory grows quickly. A range that is collapsed meanwhile is soon split again.
    Loading {
        /// Growth in bytes per second.
        bytes_per_second: u64,
    },
    /// The process has disabled transparent huge pages since it is tended.
    SwitchedOff,
    /// The process has ended or started another program.
    Gone,
    /// The tender was stopped.
    Stopped,
    /// The process makes the kernel wait for its memory map.
    Stuck,
    /// The files of the process in `/proc` cannot be read.
    Unreadable,
    /// No thread could be started for the pass.
    NoThread,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Child { count: 1 } => f.write_str("a forked child shares the memory"),
            Self::Child { count } => write!(f, "{count} forked children share the memory"),
            Self::Pressure { percent } => {
                write!(f, "tasks waited for memory {percent:.1} % of the last ten seconds")
            }
            Self::NoFreeHugePages { free, available } => {
                let [free, available] = [free, available].map(|bytes| bytes >> 20);
                write!(
                    f,
                    "the kernel gathers no block of 2 MiB: {free} MiB are free in such blocks, \
                     {available} MiB are available"
                )
            }
            Self::LittleMemory { available, keep } => {
                let [available, keep] = [available, keep].map(|bytes| bytes >> 20);
                write!(
                    f,
                    "only {available} MiB are available, and {keep} MiB are kept (--keep-free)"
                )
            }
            Self::Swapping { bytes } => {
                write!(f, "the machine swapped out {} KiB for a block of 2 MiB", bytes >> 10)
            }
            Self::ControlGroup { left } => {
                write!(f, "the control group has only {} MiB left", left >> 20)
            }
            Self::Loading { bytes_per_second } => {
                write!(f, "it loads data: it grows by {} MiB per second", bytes_per_second >> 20)
            }
            Self::SwitchedOff => {
                f.write_str("the process has disabled transparent huge pages (PR_SET_THP_DISABLE)")
            }
            Self::Gone => f.write_str("the process is gone"),
            Self::Stopped => f.write_str("stopped"),
            Self::Stuck => f.write_str("the process keeps the kernel waiting for its memory map"),
            Self::Unreadable => f.write_str("its files in /proc cannot be read"),
            Self::NoThread => f.write_str("no thread could be started for the pass"),
        }
    }
}

/// The reason why the kernel refused to collapse a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum TendRefusal {
    /// No huge page is free (`ENOMEM`).
    NoHugePage,
    /// The process's control group has no room for a huge page (`EBUSY`).
    ControlGroup,
    /// Pages are pinned, locked or being moved (`EAGAIN`).
    Busy,
    /// A part of the range cannot be on a huge page (`EINVAL`): for example guard pages,
    /// write-protected pages, or memory that was unmapped meanwhile. The kernel does not report the
    /// reason.
    Unsuitable,
    /// The kernel refused for another reason.
    Other {
        /// The kernel's answer.
        errno: i32,
    },
}

impl From<Errno> for TendRefusal {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOMEM => Self::NoHugePage,
            Errno::BUSY => Self::ControlGroup,
            Errno::AGAIN => Self::Busy,
            Errno::INVAL => Self::Unsuitable,
            errno => Self::Other { errno: errno.raw_os_error() },
        }
    }
}

impl fmt::Display for TendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHugePage => f.write_str("no huge page is free"),
            Self::ControlGroup => f.write_str("the control group has no room"),
            Self::Busy => f.write_str("pages are pinned or in use by the kernel"),
            Self::Unsuitable => f.write_str("the kernel says EINVAL: guard or protected pages?"),
            Self::Other { errno } => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
        }
    }
}

/// The result of one pass over a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PassReport {
    /// The number of the process.
    pub pid: i32,
    /// The memory of the process before the pass.
    pub before: Extent,
    /// The memory of the process after the pass.
    pub after: Extent,
    /// Ranges of 2 MiB that the pass put on a huge page.
    pub collapsed: u64,
    /// Bytes of holes that were filled with zeroes. The process grew by this many bytes.
    pub filled: u64,
    /// Free blocks of 2 MiB that the kernel gathered on request, because few were free.
    pub gathered: u64,
    /// The time of these requests. The process does not wait for it.
    #[serde(serialize_with = "seconds")]
    pub gathering: Duration,
    /// Ranges that the kernel refused to collapse, by reason.
    pub refused: Vec<(TendRefusal, u64)>,
    /// Bytes in ranges with too many holes.
    pub sparse: u64,
    /// Bytes in ranges that lost pages soon after each collapse. They wait, for five minutes at most.
    pub waiting: u64,
    /// True if the memory limit of its control group cannot be read. Then no hole is filled, and `sparse` has all
    /// ranges with holes.
    pub is_limit_unknown: bool,
    /// Bytes that are swapped out. They count as holes.
    pub swapped: u64,
    /// Bytes at the ends of mappings, outside of whole aligned ranges of 2 MiB.
    pub edges: u64,
    /// Bytes on small pages in mappings that are left as they are, by reason.
    pub excluded: Vec<(Excluded, u64)>,
    /// CPU time of the calling thread.
    #[serde(serialize_with = "seconds")]
    pub cpu: Duration,
    /// The longest collapse. Writers of that range waited at most as long, and less if the kernel gathered memory or
    /// waited for CPUs before it locked the range.
    #[serde(serialize_with = "seconds")]
    pub longest: Duration,
    /// The time of the whole pass, rests included.
    #[serde(serialize_with = "seconds")]
    pub elapsed: Duration,
    /// The reason why the pass ended early; `None` if it did not.
    pub hindrance: Option<Hindrance>,
}

/// A pass in which more than one part in this many of the memory was added will be followed by more
/// growth.
const MUCH: u64 = 16;

impl PassReport {
    /// Returns the number of bytes that the process added during the pass.
    #[must_use]
    pub fn grown(&self) -> u64 {
        self.after.all.saturating_sub(self.before.all)
    }

    /// Returns true if the process added so much memory during the pass that it probably still
    /// loads its data.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        self.grown() > self.after.all / MUCH
    }

    /// Makes the report of a pass that was not made.
    pub(crate) fn of_none(pid: i32, hindrance: Hindrance) -> Self {
        Self { pid, hindrance: Some(hindrance), ..Self::default() }
    }
}

/// The status of a tended process, between passes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The number of the process.
    pub pid: i32,
    /// The name of the process.
    pub name: String,
    /// The number of passes.
    pub passes: u64,
    /// The number of forked children that were seen.
    pub forks: u64,
    /// The number of living children.
    pub children: usize,
    /// The CPU time of the last `fork(2)`, estimated from the page tables and from the cost of an
    /// entry on this machine. `None` without a [`ForkCost`](crate::ForkCost).
    #[serde(serialize_with = "seconds_if_known")]
    pub last_fork: Option<Duration>,
    /// The result of the last pass.
    pub last: Option<PassReport>,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn seconds_if_known<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
}
