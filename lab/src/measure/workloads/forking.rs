//! `fork(2)` of this process, with memory of one kind of pages in it: how long it takes, and children that
//! share the memory while the parent writes it.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use hugekit::{PopulateOptions, Threads};
use hugekit_machine::size::Size;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, mprotect};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal,
    waitpid,
};
use rustix::thread::disable_transparent_huge_pages;

use crate::measure::LabError;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::arena::huge_bytes_of;
use crate::measure::workloads::folios::large_folios;

/// Private anonymous memory of one kind of pages, which only the children made here get: not those that
/// are made with other memory.
#[derive(Debug)]
pub struct Shared(Anonymous);

impl Shared {
    /// This many bytes, a multiple of the pages' size, every base page of them written.
    pub fn new(pages: Pages, len: usize) -> Result<Self, LabError> {
        let mut shared = Self::untouched(pages, len)?;
        shared.write();
        Ok(shared)
    }

    /// Does [`new`](Self::new) without touching a page.
    pub fn untouched(pages: Pages, len: usize) -> Result<Self, LabError> {
        let mut shared = Self(Anonymous::new(pages, len)?);
        shared.advise(Advice::LinuxDontFork)?;
        Ok(shared)
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0.bytes()
    }

    /// True if at least 95 % of the memory is on transparent huge pages.
    pub fn is_huge(&self) -> bool {
        let addresses = self.0.addresses();
        huge_bytes_of(&addresses).is_some_and(|huge| huge >= addresses.len() / 20 * 19)
    }

    /// True if at least 95 % of the memory is on folios of this size. Taken for true if the kernel does not tell.
    pub fn is_on_folios(&self, folio: usize) -> bool {
        let addresses = self.0.addresses();
        large_folios(&addresses).is_none_or(|folios| folios >= addresses.len() / folio / 20 * 19)
    }

    /// Has huge pages be mapped by entries of base pages, and stay huge.
    pub fn map_by_base_pages(&mut self) -> Result<(), LabError> {
        let len = self.len();
        let page = rustix::param::page_size();
        for huge in self.0.bytes().chunks_mut(Pages::Thp.size()) {
            use rustix::mm::MprotectFlags as Protection;
            let all = Protection::READ | Protection::WRITE;
            for protection in [Protection::READ, all] {
                // SAFETY: a page of our own memory, which no thread writes while it cannot be written.
                unsafe { mprotect(huge.as_mut_ptr().cast(), page, protection) }
                    .map_err(|errno| LabError::Map { len, source: errno.into() })?;
            }
        }
        Ok(())
    }

    /// Writes every base page, as a parent that goes on after a fork.
    pub fn write(&mut self) {
        let memory = self.0.bytes();
        // Page by page, the faults would take longer than all that is measured. Where it is refused, they do.
        let populate = PopulateOptions::new().threads(Threads::Auto);
        let _ = {
            let start = memory.as_mut_ptr().expose_provenance();
            populate.run_range(start..start + memory.len())
        };
        write_pages(memory);
    }

    /// Gives the pages back to the kernel: all of it is zeroes until it is written.
    pub fn give_back(&mut self) -> Result<(), LabError> {
        let len = self.0.bytes().len();
        self.0.give_back(len)
    }

    /// Calls `fork(2)`, and returns the time until it returned in the parent.
    pub fn fork(&mut self) -> Result<Duration, LabError> {
        // It takes no lock that another thread may have held when the process was copied.
        let (child, elapsed) = self.child(|_| ())?;
        child.wait()?;
        Ok(elapsed)
    }

    /// A child that shares the memory and does nothing else.
    pub fn sleeping_child(&mut self) -> Result<Child, LabError> {
        let (child, _) = self.child(|_| {
            loop {
                // SAFETY: waits for a signal, which ends the child.
                unsafe { libc::pause() };
            }
        })?;
        Ok(child)
    }

    /// A child that shares the memory, does `work` on it and ends; and how long fork(2) kept the parent.
    /// `work` neither allocates nor takes locks, which another thread may have held.
    pub fn child(&mut self, work: impl FnOnce(&mut [u8])) -> Result<(Child, Duration), LabError> {
        self.advise(Advice::LinuxDoFork)?;
        let len = self.len();
        let start = Instant::now();
        let child = process(len, || {
            work(self.0.bytes());
            true
        });
        let elapsed = start.elapsed();
        self.advise(Advice::LinuxDontFork)?;
        Ok((child?, elapsed))
    }

    fn len(&self) -> Size {
        Size(self.0.addresses().len())
    }

    fn advise(&mut self, advice: Advice) -> Result<(), LabError> {
        let memory = self.0.bytes();
        // SAFETY: the advices that are given here change no contents.
        unsafe { madvise(memory.as_mut_ptr().cast(), memory.len(), advice) }
            .map_err(|errno| LabError::Map { len: self.len(), source: errno.into() })
    }
}

/// A child that does `work` and ends; it has failed if `work` says so or panics. `work` takes no lock that another
/// thread may have held, and allocates only while no other thread runs, or if the C library's allocator bears that,
/// as glibc's. `len` is the memory that it is about.
pub fn process(len: Size, work: impl FnOnce() -> bool) -> Result<Child, LabError> {
    let parent = getpid();
    // SAFETY: the child does `work`, which takes no lock that a thread of the parent holds, and then `_exit`, which takes none.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A panic would go on in the caller, which is the parent's.
        let work = || catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
        let succeeded = end_with(parent, Signal::KILL).is_ok() && work();
        let status = if succeeded { libc::EXIT_SUCCESS } else { libc::EXIT_FAILURE };
        // SAFETY: `_exit` has no precondition; it runs no destructors and flushes no buffers.
        unsafe { libc::_exit(status) };
    }
    let child = Pid::from_raw(child).filter(|child| child.as_raw_nonzero().get() > 0);
    let refused = || LabError::Fork { len, source: io::Error::last_os_error() };
    child.map(|pid| Child { pid, len, waited: false }).ok_or_else(refused)
}

/// Has the program end, by this signal, when this process does: not even SIGKILL leaves it behind.
pub fn end_with_this_process(command: &mut Command, signal: Signal) {
    let parent = getpid();
    // SAFETY: between fork and exec the child makes two system calls, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(move || end_with(parent, signal)) };
}

/// Has the kernel give the program no transparent huge pages, whatever is asked of it.
pub fn on_base_pages(command: &mut Command) {
    // SAFETY: between fork and exec the child makes one system call, which neither allocates nor takes a lock.
    unsafe { command.pre_exec(|| Ok(disable_transparent_huge_pages(true)?)) };
}

/// Has a child end with its parent, which would otherwise leave it, and the lock on settings with it. An error if the
/// parent has ended already: the kernel sends no signal then.
fn end_with(parent: Pid, signal: Signal) -> io::Result<()> {
    set_parent_process_death_signal(Some(signal))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Stores one byte to every base page.
pub fn write_pages(memory: &mut [u8]) {
    for page in memory.chunks_mut(rustix::param::page_size()) {
        page[0] = page[0].wrapping_add(1);
    }
}

/// A child that is killed when dropped, unless it was waited for.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    len: Size,
    waited: bool,
}

impl Child {
    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Until it has ended by itself.
    pub fn wait(mut self) -> Result<(), LabError> {
        self.waited = true;
        let waited = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
        let status = waited.map_err(|errno| self.failed(errno.into()))?;
        match status.and_then(|(_, status)| status.exit_status()) {
            Some(0) => Ok(()),
            _ => Err(self.failed(io::Error::other("the child was killed, or gave up"))),
        }
    }

    fn failed(&self, source: io::Error) -> LabError {
        LabError::Fork { len: self.len, source }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.waited {
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    #[test]
    fn a_fork_takes_time_and_leaves_memory_as_it_was() {
        for pages in [Pages::Base, Pages::Thp] {
            let mut shared = Shared::new(pages, 4 * MIB).unwrap();
            assert!(pages == Pages::Thp || !shared.is_huge());
            for generation in 1..3 {
                assert!(shared.fork().unwrap() > Duration::ZERO);
                assert!(shared.bytes().chunks(4096).all(|page| page[0] == generation));
                shared.write();
            }
        }
    }

    #[test]
    fn huge_pages_are_mapped_by_base_pages_and_hold_what_they_held() {
        let mut shared = Shared::new(Pages::Thp, 4 * MIB).unwrap();
        shared.map_by_base_pages().unwrap();
        assert!(!shared.is_huge());
        shared.write();
        assert!(shared.bytes().chunks(4096).all(|page| page[0] == 2));
    }

    #[test]
    fn what_a_child_writes_stays_there_and_one_that_fails_is_reported() {
        let mut shared = Shared::new(Pages::Base, MIB).unwrap();
        let (child, _) = shared.child(|bytes| bytes.fill(7)).unwrap();
        child.wait().unwrap();
        assert_eq!(shared.bytes()[0], 1);
        // SAFETY: ends the child.
        let (child, _) = shared.child(|_| unsafe { libc::_exit(3) }).unwrap();
        assert!(child.wait().unwrap_err().to_string().starts_with("cannot fork a process"));
    }

    #[test]
    fn child_that_panics_has_failed_and_runs_nothing_of_its_parents() {
        // No hook, whose lock another thread of the parent may hold.
        let child = process(Size(0), || std::panic::resume_unwind(Box::new(())));
        let error = child.unwrap().wait().unwrap_err();
        assert!(matches!(error, LabError::Fork { .. }), "{error}");
    }

    #[test]
    fn memory_that_another_child_is_made_with_is_not_in_it() {
        let (mut one, mut other) =
            (Shared::new(Pages::Base, MIB).unwrap(), Shared::new(Pages::Base, MIB).unwrap());
        let address = other.bytes().as_mut_ptr().addr();
        let (child, _) = one
            .child(|_| {
                let mut present = 0_u8;
                // SAFETY: asks whether the page is mapped, and writes only the byte that says so.
                let asked = unsafe { libc::mincore(address as *mut _, 4096, &raw mut present) };
                if asked == 0 {
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(1) };
                }
            })
            .unwrap();
        child.wait().unwrap();
    }

    /// Covers a child whose parent was killed before the child could ask to end with it.
    #[test]
    fn child_of_another_parent_does_no_work() {
        let test = getpid();
        let child = process(Size(0), || {
            let is_refused = end_with(getpid(), Signal::KILL).is_err();
            is_refused && end_with(test, Signal::KILL).is_ok()
        });
        child.unwrap().wait().unwrap();
    }

    #[test]
    fn a_sleeping_child_goes_when_dropped() {
        let mut shared = Shared::new(Pages::Base, MIB).unwrap();
        let child = shared.sleeping_child().unwrap();
        let pid = child.pid;
        shared.write();
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
