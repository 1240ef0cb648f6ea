//! What a pager tells its user.

use std::time::Duration;
use std::{fmt, io};

use hugekit_sys::error_chain;
use rustix::io::Errno;

use crate::pager::error::{Refusal, VmError};
use crate::pager::waiting::Ending;

/// Something that happened to a VM.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// It connected, and is served.
    Connected {
        /// Its VMM's process.
        pid: i32,
        /// Bytes of its memory.
        bytes: u64,
    },
    /// An earlier pager has left it, and this one serves it.
    TakenOver {
        /// Its VMM's process.
        pid: i32,
    },
    /// An earlier pager has lost it, and its regions cannot be distinguished yet.
    Waits {
        /// Its VMM's process.
        pid: i32,
    },
    /// It is not served.
    Refused {
        /// Its VMM's process; `None` if that is not known.
        pid: Option<i32>,
        /// The reason.
        why: Refusal,
        /// The end of its wait for memory.
        ending: Ending,
    },
    /// The memory that the VM touched first was written to a file.
    Recorded {
        /// Its VMM's process.
        pid: i32,
        /// Bytes that it touched.
        bytes: u64,
    },
    /// All of its memory is there.
    Complete(Completed),
    /// It needs no pager any more, because it has ended.
    Ended {
        /// Its VMM's process.
        pid: i32,
        /// Faults that were answered.
        faults: u64,
    },
    /// Something went wrong.
    Failed {
        /// Its VMM's process.
        pid: i32,
        /// The failure.
        why: VmError,
    },
}

/// A VM whose memory is there.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// Its VMM's process.
    pub pid: i32,
    /// Since it connected.
    pub after: Duration,
    /// Faults that were answered.
    pub faults: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that were put on huge pages.
    pub collapsed: u64,
    /// Bytes that the kernel did not put on huge pages, and its answer; `None` if it refused none.
    pub refused: Option<(u64, Errno)>,
    /// True if the pager still serves it.
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
