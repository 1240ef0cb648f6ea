//! How long the kernel takes to copy this process, with memory of one kind of pages in it.

#![allow(unsafe_code)]

use std::io;
use std::time::{Duration, Instant};

use hugekit::Populate;
use rustix::mm::{Advice, madvise};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::LabError;
use crate::arena::huge_bytes_of;
use crate::size::Size;

/// What maps the memory that a child shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Entries of single base pages.
    Base,
    /// Transparent huge pages, as far as the kernel finds any.
    Thp,
}

/// Memory of one kind of pages, which children share; what is beside it they do not get.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    memory: &'a mut [u8],
    beside: &'a mut [u8],
}

impl<'a> Shared<'a> {
    /// `memory` and what is `beside` it are whole pages of private anonymous memory; what they held
    /// is lost.
    pub(crate) fn new(
        memory: &'a mut [u8],
        beside: &'a mut [u8],
        pages: Pages,
    ) -> Result<Self, LabError> {
        let shared = Self { memory, beside };
        let kind = match pages {
            Pages::Base => Advice::LinuxNoHugepage,
            Pages::Thp => Advice::LinuxHugepage,
        };
        // Kernels without transparent huge pages have base pages, and refuse to be told.
        let _ = advise(shared.memory, kind);
        let advised = advise(shared.memory, Advice::LinuxDontNeed);
        advised
            .and_then(|()| advise(shared.beside, Advice::LinuxDontFork))
            .map_err(map(&shared))?;
        Populate::new()
            .run_raw(shared.memory.as_mut_ptr(), shared.memory.len())
            .map_err(|error| map(&shared)(io::Error::other(error)))?;
        Ok(shared)
    }

    /// Whether as good as all of the memory is on huge pages.
    pub(crate) fn is_huge(&self) -> bool {
        huge_bytes_of(self.memory).is_some_and(|huge| huge >= self.memory.len() / 20 * 19)
    }

    /// How long `fork(2)` keeps the parent, every page of it written since the last one.
    pub(crate) fn fork(&mut self) -> Result<Duration, LabError> {
        for page in self.memory.chunks_mut(rustix::param::page_size()) {
            page[0] = page[0].wrapping_add(1);
        }
        timed_fork().map_err(|cause| LabError::Fork { len: Size(self.memory.len()), cause })
    }
}

/// The memory is on huge pages again, and written; whoever measures on it next finds it as any other.
impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let _ = advise(self.beside, Advice::LinuxDoFork);
        let _ = advise(self.memory, Advice::LinuxHugepage);
        let _ = advise(self.memory, Advice::LinuxDontNeed);
        let _ = Populate::new().run_raw(self.memory.as_mut_ptr(), self.memory.len());
    }
}

fn map(shared: &Shared<'_>) -> impl Fn(io::Error) -> LabError + use<> {
    let len = Size(shared.memory.len());
    move |cause| LabError::Map { len, cause }
}

fn advise(memory: &mut [u8], advice: Advice) -> io::Result<()> {
    if memory.is_empty() {
        return Ok(());
    }
    // SAFETY: private anonymous memory, borrowed mutably. `DontNeed` leaves zeroes, which are
    // initialised bytes; the other advices that are given here change no contents.
    Ok(unsafe { madvise(memory.as_mut_ptr().cast(), memory.len(), advice) }?)
}

fn timed_fork() -> io::Result<Duration> {
    let start = Instant::now();
    // SAFETY: the child does nothing but `_exit`, which takes no lock that another thread may have
    // held when the process was copied.
    let child = match unsafe { libc::fork() } {
        // SAFETY: `_exit` has no precondition; it runs no destructors and flushes no buffers.
        0 => unsafe { libc::_exit(0) },
        child => child,
    };
    let elapsed = start.elapsed();
    let child = Pid::from_raw(child).filter(|child| child.as_raw_nonzero().get() > 0);
    let child = child.ok_or_else(io::Error::last_os_error)?;
    rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    Ok(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;
    use crate::arena::Arena;
    use crate::size::MIB;

    #[test]
    fn a_fork_takes_time_and_leaves_memory_as_it_was() {
        let mut arena = Arena::warmed(6 * MIB, &Quiet).unwrap();
        for pages in [Pages::Base, Pages::Thp] {
            let (memory, beside) = arena.bytes().split_at_mut(4 * MIB);
            let mut shared = Shared::new(memory, beside, pages).unwrap();
            assert!(shared.memory.iter().all(|&byte| byte == 0));
            assert!(pages == Pages::Thp || !shared.is_huge());
            for generation in 1..3 {
                assert!(shared.fork().unwrap() > Duration::ZERO);
                assert!(shared.memory.chunks(4096).all(|page| page[0] == generation));
            }
            assert!(shared.beside.iter().all(|&byte| byte == 1));
        }
    }
}
