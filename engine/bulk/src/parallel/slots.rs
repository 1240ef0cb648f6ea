//! The number of threads that work on a node's memory at the same time, counted over all jobs of
//! all processes.
//!
//! A few threads use all of a node's bandwidth. More threads, of any number of jobs, only take CPUs
//! from other programs. So a thread of [`Threads::Auto`](super::Threads::Auto) takes a slot of the
//! node, and a job gets no helper for which there is no slot. A node has as many slots as a job may
//! have threads, but no more than it has CPUs. So these jobs never have more threads than the
//! machine has CPUs.
//!
//! A slot is the lock of one byte of a file that every process can open ([`byte_lock`]). The kernel
//! releases the locks of a process that ends. Each job opens the file itself, so jobs of one
//! process count like jobs of several processes.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{self, Errno};

use hugekit_sys::{byte_lock, process};

/// The distance between the first slots of two nodes. It exceeds the number of CPUs of any machine.
const SLOTS_PER_NODE: u64 = 1 << 20;

/// The file, which is in memory on every system with POSIX shared memory. A container with its own
/// file counts only its own jobs.
const FILE: &CStr = c"/dev/shm/hugekit-threads";

/// The slots of a job, until the value is dropped.
pub(super) struct Slots {
    file: Option<OwnedFd>,
    taken: Vec<u64>,
}

impl Slots {
    /// Returns no slots. If the file cannot be opened, there is a slot for every thread.
    pub(super) fn none() -> Self {
        let file = open().inspect_err(|&error| report_once(error));
        Self { file: file.ok(), taken: Vec::new() }
    }

    /// Takes one more slot of a node, which has `limit` slots. Returns true if a slot was free.
    pub(super) fn take_slot(&mut self, node: u32, limit: usize) -> bool {
        let Some(file) = &self.file else { return true };
        let first = u64::from(node) * SLOTS_PER_NODE;
        let untaken = (first..first + limit as u64).filter(|slot| !self.taken.contains(slot));
        for slot in untaken {
            match byte_lock::try_lock(file, slot) {
                Ok(true) => {
                    self.taken.push(slot);
                    return true;
                }
                Ok(false) => {}
                Err(_no_locks_left) => return true,
            }
        }
        false
    }
}

impl Drop for Slots {
    /// Closing the file is not enough if a child was forked since, because the child has the file
    /// open, too.
    fn drop(&mut self) {
        for (file, &slot) in
            self.file.iter().flat_map(|file| self.taken.iter().map(move |slot| (file, slot)))
        {
            let _ = byte_lock::unlock(file, slot);
        }
    }
}

/// A system-call filter that does not know these calls may end the process.
fn open() -> io::Result<OwnedFd> {
    if process::is_filtered() { Err(Errno::PERM) } else { byte_lock::open(FILE) }
}

fn report_once(error: Errno) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        hugekit_sys::events::warn!("threads of other jobs are not counted: {FILE:?}: {error}");
    }
}
