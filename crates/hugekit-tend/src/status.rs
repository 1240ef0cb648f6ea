//! What a tender says of its work.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::fork_time::{ForkTime, seconds};
use crate::mappings::{Excluded, Extent};

/// Why a pass ended before its plan, or did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum Hindrance {
    /// A forked child lives, and shares the memory: a collapse would copy what they share.
    Child {
        /// How many.
        count: usize,
    },
    /// Tasks wait for memory.
    Pressure {
        /// Of the last ten seconds.
        percent: f64,
    },
    /// There are too few free blocks of 2 MiB: the kernel would compact memory while the process waits.
    NoFreeHugePages {
        /// Bytes in such blocks.
        free: u64,
    },
    /// The process's control group, or one above, has too little left.
    ControlGroup {
        /// Bytes.
        left: u64,
    },
    /// The process has ended or started another program.
    Gone,
    /// It was asked to stop.
    Stopped,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Child { count } => write!(f, "{count} forked children share the memory"),
            Self::Pressure { percent } => {
                write!(f, "tasks waited for memory {percent:.1} % of the last ten seconds")
            }
            Self::NoFreeHugePages { free } => {
                write!(f, "only {} MiB are free in blocks of 2 MiB", free >> 20)
            }
            Self::ControlGroup { left } => {
                write!(f, "the control group has only {} MiB left", left >> 20)
            }
            Self::Gone => f.write_str("the process is gone"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// What one pass over a process did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PassReport {
    /// The process.
    pub pid: i32,
    /// Its memory before.
    pub before: Extent,
    /// And after.
    pub after: Extent,
    /// Ranges of 2 MiB that are on a huge page now and were not.
    pub collapsed: u64,
    /// Bytes of holes that were filled with zeroes: what the process grew by.
    pub filled: u64,
    /// Ranges that the kernel refused to collapse, by its answer: pinned or busy pages, no memory.
    pub refused: Vec<(String, u64)>,
    /// Bytes in ranges with too many holes.
    pub sparse: u64,
    /// Bytes in mappings that are left as they are, by reason.
    pub excluded: Vec<(Excluded, u64)>,
    /// CPU time of the calling thread.
    #[serde(serialize_with = "seconds")]
    pub cpu: Duration,
    /// The longest collapse: writers of that range waited as long.
    #[serde(serialize_with = "seconds")]
    pub longest: Duration,
    /// From its beginning to its end, rests included.
    #[serde(serialize_with = "seconds")]
    pub elapsed: Duration,
    /// Why it ended early.
    pub hindrance: Option<Hindrance>,
}

/// What a tender says while it waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Passes that were made.
    pub passes: u64,
    /// Forked children that were seen.
    pub forks: u64,
    /// Those that live.
    pub children: usize,
    /// How long the last one's `fork(2)` took, where that is known.
    pub last_fork: Option<ForkTime>,
    /// What the last pass did.
    pub last: Option<PassReport>,
}
