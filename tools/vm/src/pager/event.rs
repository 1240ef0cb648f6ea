//! Events of a pager.

use std::time::Duration;
use std::{fmt, io};

use hugekit_sys::error_chain;
use rustix::io::Errno;

use crate::pager::error::{Refusal, VmError};
use crate::pager::waiting::Ending;

/// An event of a VM.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The VM connected, and is served.
    Connected {
        /// The number of its VMM's process.
        pid: i32,
        /// Bytes of its memory.
        bytes: u64,
    },
    /// The VM was left by an earlier pager, and this pager serves it.
    TakenOver {
        /// The number of its VMM's process.
        pid: i32,
    },
    /// The message of the VM was lost with an earlier pager, and its regions cannot be determined
    /// yet.
    Waits {
        /// The number of its VMM's process.
        pid: i32,
    },
    /// The VM is not served.
    Refused {
        /// The number of its VMM's process; `None` if it is not known.
        pid: Option<i32>,
        /// The reason.
        why: Refusal,
        /// The end of the VM's wait for memory.
        ending: Ending,
    },
    /// The list of the memory that the VM touched first was written to a file.
    Recorded {
        /// The number of its VMM's process.
        pid: i32,
        /// Bytes that the VM touched.
        bytes: u64,
    },
    /// All of the VM's memory is supplied.
    Complete(Completed),
    /// The VM has ended.
    Ended {
        /// The number of its VMM's process.
        pid: i32,
        /// The number of handled faults.
        faults: u64,
    },
    /// A failure of the VM.
    Failed {
        /// The number of its VMM's process.
        pid: i32,
        /// The failure.
        why: VmError,
    },
}

/// A VM with complete memory.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// The number of its VMM's process.
    pub pid: i32,
    /// The time since the VM connected.
    pub after: Duration,
    /// The number of handled faults.
    pub faults: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that were put on huge pages.
    pub collapsed: u64,
    /// Bytes that the kernel did not put on huge pages, and its last answer; `None` if it refused
    /// none.
    pub refused: Option<(u64, Errno)>,
    /// True if the pager continues to serve the VM.
    pub stays: bool,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { pid, bytes } => {
                write!(f, "{pid}: serving {} MiB", bytes >> 20)
            }
            Self::TakenOver { pid } => write!(f, "{pid}: taken over from an earlier pager"),
            Self::Waits { pid } => write!(
                f,
                "{pid}: waits: an earlier pager was killed before it had recorded this VM, whose \
                 regions cannot be distinguished yet: restore another VM from the same memory file"
            ),
            Self::Refused { pid, why, ending } => {
                if let Some(pid) = pid {
                    write!(f, "{pid}: ")?;
                }
                write!(f, "refused: {:#}{ending}", error_chain(why))
            }
            Self::Recorded { pid, bytes } => {
                write!(f, "{pid}: working set of {} MiB recorded", bytes >> 20)
            }
            Self::Complete(completed) => completed.fmt(f),
            Self::Ended { pid, faults } => write!(f, "{pid}: ended after {faults} faults"),
            Self::Failed { pid, why } => write!(f, "{pid}: error: {:#}", error_chain(why)),
        }
    }
}

impl fmt::Display for Completed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, after, faults, copied, collapsed, refused, stays } = self;
        let (copied, collapsed) = (copied >> 20, collapsed >> 20);
        write!(
            f,
            "{pid}: complete after {:.2} s: {faults} faults, {copied} MiB copied, {collapsed} MiB on \
             huge pages",
            after.as_secs_f64(),
        )?;
        if let Some((bytes, errno)) = refused {
            let may = if *errno == Errno::PERM { " (it takes CAP_SYS_NICE)" } else { "" };
            write!(f, ", {} MiB not: {}{may}", bytes >> 20, io::Error::from(*errno))?;
        }
        write!(f, "; {}", if *stays { "still served" } else { "left to the kernel" })
    }
}
