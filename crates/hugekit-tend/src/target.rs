//! A process that is tended.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hugekit::HUGE_PAGE_BYTES;
use procfs::process::{Process, Stat};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::collapse;
use crate::error::TendError;
use crate::pages::{Look, look};

/// `PF_KTHREAD` of the kernel's `sched.h`, as `/proc/PID/stat` shows it.
const IS_OF_THE_KERNEL: u32 = 0x0020_0000;

/// A process that may be tended, and that no other tender has. What stands for it are descriptors, so that no other
/// process can be taken for it that is given its number later.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    name: String,
    process: Process,
    descriptor: OwnedFd,
    /// Of what begins where at each start of a program: a forked child has the same, until it starts another one.
    program: Program,
    /// Its page map, open: that is a permission, too.
    pages: File,
    /// Its folder of `/proc`, which a tender locks: the next one of this process is told.
    folder: File,
}

/// What tells a process that runs on after a fork from one that has started another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    stack: u64,
    code: u64,
}

impl Program {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { stack: stat.startstack, code: stat.startcode }
    }
}

impl Target {
    /// # Errors
    /// Why it cannot be tended; the kernel was asked.
    pub fn open(pid: i32) -> Result<Self, TendError> {
        let target = Self::beside_a_tender(pid)?;
        lock(pid, &target.folder)?;
        Ok(target)
    }

    /// As [`open`](Self::open), also of one that another tender has: to look at.
    pub(crate) fn beside_a_tender(pid: i32) -> Result<Self, TendError> {
        let gone = || TendError::Gone { pid };
        let process = Process::new(pid).map_err(|error| TendError::of_reading(pid, error))?;
        let status = process.status().map_err(|error| TendError::of_reading(pid, error))?;
        if status.tgid != pid {
            return Err(TendError::Thread { pid, of: status.tgid });
        }
        let stat = process.stat().map_err(|error| TendError::of_reading(pid, error))?;
        if stat.flags & IS_OF_THE_KERNEL != 0 {
            return Err(TendError::Kernel { pid });
        }
        let number = Pid::from_raw(pid).ok_or_else(gone)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty()).map_err(|_| gone())?;
        // Opened before the look at what stands behind both: they are of one process if it lives now.
        if !process.is_alive() || stat.state == 'Z' {
            return Err(gone());
        }
        let folder = File::open(format!("/proc/{pid}")).map_err(|_| gone())?;
        let pages = openat(&folder, c"pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| refused(pid, "open(pagemap)", errno))?;
        collapse::is_permitted(descriptor.as_fd())
            .map_err(|errno| refused(pid, "process_madvise", errno))?;
        if status.thp_enabled == Some(false) {
            return Err(TendError::SwitchedOff { pid });
        }
        match huge_page_bytes() {
            bytes if bytes == HUGE_PAGE_BYTES as u64 => {}
            bytes => return Err(TendError::OtherHugePages { bytes }),
        }
        let name = stat.comm.clone();
        let program = Program::of(&stat);
        Ok(Self { pid, name, process, descriptor, program, pages: pages.into(), folder })
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its first thread's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// All 2 MiB of these ranges in which something is there.
    pub(crate) fn look(&self, ranges: &[Range<u64>]) -> Result<Vec<Look>, TendError> {
        let mut looks = Vec::new();
        for addresses in ranges {
            match look(self.pages.as_fd(), addresses) {
                Ok(found) => looks.extend(found),
                Err(Errno::SRCH) => return Err(TendError::Gone { pid: self.pid }),
                // Unmapped meanwhile.
                Err(_) => {}
            }
        }
        Ok(looks)
    }

    pub(crate) fn program(&self) -> Program {
        self.program
    }

    /// Whether it still runs the program that it ran when it was opened.
    pub(crate) fn is_there(&self) -> bool {
        self.process
            .stat()
            .is_ok_and(|stat| stat.state != 'Z' && Program::of(&stat) == self.program)
    }
}

/// 0 without transparent huge pages.
fn huge_page_bytes() -> u64 {
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(0)
}

fn refused(pid: i32, call: &'static str, errno: Errno) -> TendError {
    match errno {
        Errno::SRCH | Errno::NOENT => TendError::Gone { pid },
        Errno::INVAL | Errno::NOSYS => TendError::Unsupported,
        errno => TendError::NotPermitted { pid, call, source: errno.into() },
    }
}

/// A lock on the process's own folder of `/proc`: it needs no file of ours, and goes with the process.
fn lock(pid: i32, folder: &File) -> Result<(), TendError> {
    match flock(folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(TendError::Taken { pid }),
        locked => locked.map_err(|errno| refused(pid, "flock", errno)),
    }
}
