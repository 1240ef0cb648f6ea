//! A process of its own with private memory, which forks when it is told to and says how long that took.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use hugekit_machine::size::Size;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::measure::LabError;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::forking::{Child, process};

const NAME: &str = "a program that forks";

/// After a fork, parent and child share memory of which the parent writes one page in so many.
const WRITTEN: usize = 256;

/// The state of the program's memory before it is tended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heap {
    /// Base pages, which no tender changes.
    Base,
    /// Base pages, because huge ones were not to be had when they were touched.
    Small,
    /// Huge pages, as far as the kernel has them.
    Huge,
    /// `Small`, with holes: one page of 16 in every fourth 2 MiB, and every second page in every other fourth.
    WithHoles,
}

impl Heap {
    /// True if the heap has the base page with this index.
    fn has(self, page: usize) -> bool {
        let in_huge = Pages::Thp.size() / rustix::param::page_size();
        match (self, page / in_huge % 4) {
            (Self::WithHoles, 0) => !page.is_multiple_of(16),
            (Self::WithHoles, 2) => !page.is_multiple_of(2),
            _ => true,
        }
    }

    fn pages(self) -> Pages {
        match self {
            Self::Base => Pages::Base,
            Self::Small | Self::WithHoles => Pages::Unsaid,
            Self::Huge => Pages::Thp,
        }
    }
}

/// Killed when dropped.
#[derive(Debug)]
pub struct ForkingProgram {
    child: Child,
    orders: File,
    answers: File,
}

impl ForkingProgram {
    /// With this many bytes of memory, filled.
    pub fn start(heap: Heap, len: usize) -> Result<Self, LabError> {
        let (heard, orders) = pipe()?;
        let (answers, told) = pipe()?;
        let child = process(Size(len), || serve(heap, len, &heard, &told).is_ok())?;
        // An answer that never comes is the end of the pipe.
        drop(told);
        let mut program = Self { child, orders, answers };
        program.answer()?;
        Ok(program)
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.child.pid().as_raw_pid()
    }

    /// Lets the program fork, and returns the time of `fork(2)`. While the child lived, the program wrote to some pages.
    /// The child has ended.
    pub fn fork(&mut self) -> Result<Duration, LabError> {
        self.orders.write_all(&[0]).map_err(failed)?;
        self.answer()
    }

    /// Bytes of its private memory that are there.
    pub fn resident(&self) -> Result<u64, LabError> {
        Ok(hugekit_tend::Extent::of(self.pid())?.all)
    }

    fn answer(&mut self) -> Result<Duration, LabError> {
        let mut nanoseconds = [0; size_of::<u64>()];
        self.answers.read_exact(&mut nanoseconds).map_err(failed)?;
        Ok(Duration::from_nanos(u64::from_ne_bytes(nanoseconds)))
    }
}

fn failed(source: io::Error) -> LabError {
    LabError::Program { name: NAME, source }
}

/// Its reader and its writer.
fn pipe() -> Result<(File, File), LabError> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    Ok((read.into(), write.into()))
}

/// The program: allocates nothing, because another thread may have held the allocator when it was forked.
fn serve(heap: Heap, len: usize, mut orders: &File, mut answers: &File) -> io::Result<()> {
    let refused = |_| io::ErrorKind::OutOfMemory;
    let mut memory = filled(heap, len).map_err(refused)?;
    let mut random = fastrand::Rng::with_seed(len as u64);
    answers.write_all(&[0; size_of::<u64>()])?;
    loop {
        orders.read_exact(&mut [0])?;
        let took = fork_and_write(&mut memory, heap, &mut random).map_err(refused)?;
        answers.write_all(&(took.as_nanos() as u64).to_ne_bytes())?;
    }
}

/// Memory with all pages written that the heap has.
fn filled(heap: Heap, len: usize) -> Result<Anonymous, LabError> {
    let mut memory = Anonymous::new(heap.pages(), len)?;
    let is_small = heap != Heap::Huge;
    if is_small {
        no_huge_pages(true);
    }
    for (index, page) in memory.bytes().chunks_mut(rustix::param::page_size()).enumerate() {
        if heap.has(index) {
            page[0] = 1;
        }
    }
    if is_small {
        no_huge_pages(false);
    }
    Ok(memory)
}

/// Turns transparent huge pages of this process off or on, whatever the setting. A kernel without them refuses.
fn no_huge_pages(off: bool) {
    // SAFETY: changes what later faults of this process get, and no memory.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(off), 0, 0, 0) };
}

fn fork_and_write(
    memory: &mut Anonymous,
    heap: Heap,
    random: &mut fastrand::Rng,
) -> Result<Duration, LabError> {
    let memory = memory.bytes();
    let page = rustix::param::page_size();
    let pages = memory.len() / page;
    let began = Instant::now();
    let child = process(Size(memory.len()), || {
        loop {
            // SAFETY: waits for a signal, which ends the child.
            unsafe { libc::pause() };
        }
    })?;
    let took = began.elapsed();
    for _ in 0..pages / WRITTEN {
        let at = random.usize(..pages);
        if heap.has(at) {
            memory[at * page] = memory[at * page].wrapping_add(1);
        }
    }
    drop(child);
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    #[test]
    fn program_forks_as_often_as_it_is_told_and_has_its_memory() {
        for heap in [Heap::Base, Heap::Small, Heap::Huge, Heap::WithHoles] {
            let mut program = ForkingProgram::start(heap, 16 * MIB).unwrap();
            assert!(program.fork().unwrap() > Duration::ZERO);
            assert!(program.fork().unwrap() > Duration::ZERO);
            let resident = program.resident().unwrap();
            assert!(resident >= 13 * MIB as u64, "{heap:?}: {resident}");
        }
    }

    #[test]
    fn program_that_gets_no_memory_is_an_error() {
        let error = ForkingProgram::start(Heap::Base, 1 << 46).unwrap_err();
        assert!(matches!(error, LabError::Program { .. }), "{error:?}");
    }

    #[test]
    fn program_that_was_killed_is_an_error() {
        let mut program = ForkingProgram::start(Heap::Base, MIB).unwrap();
        rustix::process::kill_process(program.child.pid(), rustix::process::Signal::KILL).unwrap();
        let error = program.fork().unwrap_err();
        assert!(matches!(error, LabError::Program { .. }), "{error:?}");
    }
}
