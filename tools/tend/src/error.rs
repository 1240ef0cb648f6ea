//! Reasons why a process cannot be tended.

use std::io;

use hugekit_sys::{ErrorKind, Remedy};

/// The reason why a process cannot be tended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TendError {
    /// There is no such process, or the process has ended.
    #[error("process {pid} is gone")]
    Gone {
        /// The number of the requested process.
        pid: i32,
    },
    /// The number belongs to a thread that is not the first thread of its process.
    #[error("{pid} is a thread: tend its process, {of}")]
    Thread {
        /// The requested number.
        pid: i32,
        /// The number of the thread's process.
        of: i32,
    },
    /// The number belongs to a thread of the kernel, which has no memory of its own.
    #[error("{pid} is a thread of the kernel")]
    Kernel {
        /// The requested number.
        pid: i32,
    },
    /// The process belongs to another user, or has more privileges. Only a user who may debug a
    /// process may tend it.
    #[error("process {pid} may not be tended: {call} is refused{}", Remedy(self.remedy()))]
    NotPermitted {
        /// The number of the requested process.
        pid: i32,
        /// The refused system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The process, or an ancestor, has disabled transparent huge pages
    /// (`prctl(PR_SET_THP_DISABLE)`). The kernel obeys this for `MADV_COLLAPSE`, too.
    #[error("process {pid} has disabled transparent huge pages (PR_SET_THP_DISABLE){}", Remedy(self.remedy()))]
    SwitchedOff {
        /// The number of the requested process.
        pid: i32,
    },
    /// The kernel has no `MADV_COLLAPSE`.
    #[error(
        "the kernel cannot collapse memory of another process: MADV_COLLAPSE needs Linux 6.1{}",
        Remedy(self.remedy())
    )]
    Unsupported,
    /// The kernel has huge pages of another size than 2 MiB, as with base pages of 16 or 64 KiB, or
    /// no huge pages.
    #[error(
        "transparent huge pages have {bytes} bytes here: only pages of 2 MiB can be tended{}",
        Remedy(self.remedy())
    )]
    OtherHugePages {
        /// Bytes of a huge page; 0 if there are none.
        bytes: u64,
    },
    /// Another tender tends this process.
    #[error("process {pid} has another tender")]
    Taken {
        /// The number of the requested process.
        pid: i32,
    },
    /// The process makes the kernel wait for its memory map.
    #[error("process {pid} keeps the kernel waiting for its memory map")]
    Stuck {
        /// The number of the requested process.
        pid: i32,
    },
    /// No thread for the process could be started.
    #[error("no thread could be started to tend process {pid}")]
    NoThread {
        /// The number of the requested process.
        pid: i32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's files about the process cannot be read.
    #[error("/proc/{pid} cannot be read")]
    Unreadable {
        /// The number of the requested process.
        pid: i32,
        /// The error of reading.
        source: io::Error,
    },
}

impl TendError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone { .. } | Self::Thread { .. } | Self::Kernel { .. } => ErrorKind::Invalid,
            Self::NotPermitted { .. } => ErrorKind::NotPermitted,
            Self::SwitchedOff { .. } | Self::Unsupported | Self::OtherHugePages { .. } => {
                ErrorKind::Unsupported
            }
            Self::Taken { .. } | Self::Stuck { .. } => ErrorKind::Conflict,
            Self::NoThread { .. } => ErrorKind::NoMemory,
            Self::Unreadable { .. } => ErrorKind::Kernel,
        }
    }

    /// Returns a step by which an administrator or the program can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotPermitted { .. } => Some(
                "run with CAP_SYS_PTRACE, CAP_SYS_NICE and CAP_DAC_READ_SEARCH: root has them, but \
                 in a container only those that it is given",
            ),
            Self::SwitchedOff { .. } => Some(
                "start it, and the programs that start it, without PR_SET_THP_DISABLE: Redis and \
                     Valkey: `disable-thp no`; systemd: no `MemoryTHP=disable`; mimalloc: no \
                     MIMALLOC_ALLOW_THP=0",
            ),
            Self::Unsupported => Some("run Linux 6.1 or newer"),
            Self::OtherHugePages { .. } => Some("run a kernel with huge pages of 2 MiB"),
            _ => None,
        }
    }

    /// Converts an error of reading `/proc/PID`.
    pub(crate) fn of_reading(pid: i32, source: io::Error) -> Self {
        match source.raw_os_error() {
            // ESRCH is the answer about a process that ends while its files are read.
            Some(libc::ENOENT | libc::ESRCH) => Self::Gone { pid },
            Some(libc::EACCES | libc::EPERM) => {
                Self::NotPermitted { pid, call: "reading /proc", source }
            }
            _ => Self::Unreadable { pid, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_process_that_cannot_be_tended_has_its_remedy_once() {
        let source = io::ErrorKind::PermissionDenied.into();
        for error in [
            TendError::NotPermitted { pid: 1, call: "process_madvise", source },
            TendError::SwitchedOff { pid: 1 },
            TendError::Unsupported,
            TendError::OtherHugePages { bytes: 512 << 20 },
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }
}
