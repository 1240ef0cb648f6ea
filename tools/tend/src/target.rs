//! A process that is tended.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_machine::Root;
use hugekit_machine::hugepages::transparent_size;
use hugekit_machine::processes::{ProcessFolder, Program};
use hugekit_sys::other_process::check_collapse;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::param::page_size;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::TendError;
use crate::freed::without_freed;
use crate::mappings::Survey;
use crate::pages::{Look, is_memory_there, look};

/// `PF_KTHREAD` of the kernel's `sched.h`, as `/proc/PID/stat` shows it.
const IS_OF_THE_KERNEL: u32 = 0x0020_0000;

/// A process that may be tended, and that no other tender tends. Descriptors identify the process,
/// so a later process with the same number is never mistaken for it.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    name: Vec<u8>,
    folder: ProcessFolder,
    descriptor: OwnedFd,
    /// Addresses that differ at each start of a program. A forked child has the same addresses
    /// until it starts another program.
    program: Program,
    /// The parent of the process when it was opened.
    parent: i32,
    /// The page map of the process, which only a process that may debug the target can open. A
    /// tender locks the page map, so a second tender of the target finds the lock, and no other
    /// user's process can take it.
    pages: File,
}

impl Target {
    /// # Errors
    /// [`TendError`] with the reason why the process cannot be tended, after a check by the kernel.
    pub fn open(pid: i32) -> Result<Self, TendError> {
        let target = Self::beside_a_tender(pid)?;
        lock(pid, &target.pages)?;
        Ok(target)
    }

    /// Like [`open`](Self::open), also for a process of another tender, for inspection only.
    pub(crate) fn beside_a_tender(pid: i32) -> Result<Self, TendError> {
        let gone = || TendError::Gone { pid };
        let unread = |error| TendError::of_reading(pid, error);
        let folder = ProcessFolder::open(pid).map_err(unread)?;
        match folder.status("Tgid").map_err(unread)?.map(|tgid| tgid as i32) {
            Some(of) if of != pid => return Err(TendError::Thread { pid, of }),
            _ => {}
        }
        let stat = folder.stat().map_err(unread)?;
        if stat.flags & IS_OF_THE_KERNEL != 0 {
            return Err(TendError::Kernel { pid });
        }
        let number = Pid::from_raw(pid).ok_or_else(gone)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty())
            .map_err(|errno| refused(pid, "pidfd_open", &errno.into()))?;
        // The folder was opened first: if its process lives now, the number was not another's in between.
        if folder.stat().map_err(|_| gone())?.is_zombie() {
            return Err(gone());
        }
        let pages =
            folder.file("pagemap").map_err(|error| refused(pid, "open(pagemap)", &error))?;
        check_collapse(descriptor.as_fd())
            .map_err(|errno| refused(pid, "process_madvise", &errno.into()))?;
        if has_switched_off(&folder).map_err(unread)? {
            return Err(TendError::SwitchedOff { pid });
        }
        match transparent_size(&Root::default()).ok().flatten().unwrap_or(0) {
            bytes if bytes == HUGE_PAGE_BYTES as u64 => {}
            bytes => return Err(TendError::OtherHugePages { bytes }),
        }
        let (program, parent) = (stat.program, stat.parent);
        Ok(Self { pid, name: stat.name, folder, descriptor, program, parent, pages })
    }

    /// Returns the number of the process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the name of the process's first thread. Bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    pub(crate) fn folder(&self) -> &ProcessFolder {
        &self.folder
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns every 2 MiB of a survey's ranges with pages in memory, except those with lazily
    /// freed pages, which are recorded in the survey.
    pub(crate) fn look(&self, survey: &mut Survey) -> Result<Vec<Look>, TendError> {
        let unread = |errno: Errno| TendError::of_reading(self.pid, errno.into());
        let mut looks = Vec::new();
        for addresses in &survey.tended {
            looks.extend(look(self.pages.as_fd(), addresses).map_err(unread)?);
        }
        let freed = without_freed(self.pages.as_fd(), &survey.partly_freed, &mut looks);
        survey.leave_out_freed(freed.map_err(unread)?);
        // After `exec` the page map is that of memory that is gone, and says that nothing is there.
        if is_memory_there(self.pages.as_fd()) {
            Ok(looks)
        } else {
            Err(TendError::Gone { pid: self.pid })
        }
    }

    /// Returns whether a range still has the pages of an earlier look, and is not huge by now. After a deletion, an allocator
    /// gives gigabytes back at once: a collapse would fill all of it with zeroes.
    pub(crate) fn is_still(&self, earlier: Look) -> bool {
        let range = earlier.start..earlier.start + HUGE_PAGE_BYTES as u64;
        let now = look(self.pages.as_fd(), &range).unwrap_or_default();
        let is_same = |now: &Look| now.present >= earlier.present && now.is_huge != Some(true);
        now.first().is_some_and(is_same)
    }

    pub(crate) fn program(&self) -> Program {
        self.program
    }

    /// Returns true if the process was a forked child of one of these processes when it was opened,
    /// and had not started another program.
    pub(crate) fn is_child_of(&self, parents: &[(i32, Program)]) -> bool {
        parents.contains(&(self.parent, self.program))
    }

    /// Returns true if the process has disabled transparent huge pages, which a process may do at
    /// any time.
    pub(crate) fn has_switched_off(&self) -> bool {
        has_switched_off(&self.folder).unwrap_or(false)
    }

    /// Its bytes in memory, if it still runs the program that it ran when it was opened.
    pub(crate) fn resident(&self) -> Option<u64> {
        let stat = self.folder.stat().ok()?;
        let is_there = !stat.is_zombie() && stat.program == self.program;
        is_there.then(|| stat.resident * page_size() as u64)
    }
}

fn has_switched_off(folder: &ProcessFolder) -> io::Result<bool> {
    Ok(folder.status("THP_enabled")? == Some(0))
}

fn refused(pid: i32, call: &'static str, error: &io::Error) -> TendError {
    match Errno::from_io_error(error).unwrap_or(Errno::IO) {
        Errno::SRCH | Errno::NOENT => TendError::Gone { pid },
        Errno::INVAL | Errno::NOSYS => TendError::Unsupported,
        errno => TendError::NotPermitted { pid, call, source: errno.into() },
    }
}

/// Locks the page map. The lock needs no file of the tender's, and ends with the process.
fn lock(pid: i32, pages: &File) -> Result<(), TendError> {
    match flock(pages, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(TendError::Taken { pid }),
        locked => locked.map_err(|errno| refused(pid, "flock", &errno.into())),
    }
}
