//! How many threads work on a node's memory at once, counting every job of every process.
//!
//! A node's bandwidth is used up by a few threads; more of them, of however many jobs, only take CPUs from other
//! programs. So a thread of [`Threads::Auto`](super::Threads::Auto) takes one of the node's slots, and a job gets no
//! helper for which there is none. A node has as many slots as a job may have threads, and no more than it has CPUs, so
//! that the machine never has more threads than CPUs by this either.
//!
//! A slot is the lock of one byte of a file that every process can open ([`byte_lock`]): the kernel gives back those of
//! a process that dies. Each job opens the file for itself, so that jobs of one process count as those of several do.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{self, Errno};

use hugekit_sys::{byte_lock, process};

/// The distance between the first slots of two nodes: more than any machine has CPUs.
const SLOTS_PER_NODE: u64 = 1 << 20;

/// In memory on every system that has POSIX shared memory; a container that has its own counts its own jobs.
const FILE: &CStr = c"/dev/shm/hugekit-threads";

/// The slots that a job has until this is dropped.
pub(super) struct Slots {
    file: Option<OwnedFd>,
    taken: Vec<u64>,
}

impl Slots {
    /// None yet. If the file cannot be opened, there is one for every thread.
    pub(super) fn none() -> Self {
        let file = open().inspect_err(|&error| report_once(error));
        Self { file: file.ok(), taken: Vec::new() }
    }

    /// Takes one more of a node's, of which there are `limit`; whether one was free.
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
    /// Closing the file is not enough if a child was forked meanwhile: it has it too.
    fn drop(&mut self) {
        for (file, &slot) in
            self.file.iter().flat_map(|file| self.taken.iter().map(move |slot| (file, slot)))
        {
            let _ = byte_lock::unlock(file, slot);
        }
    }
}

/// A filter that does not know these calls may end the process for them.
fn open() -> io::Result<OwnedFd> {
    if process::is_filtered() { Err(Errno::PERM) } else { byte_lock::open(FILE) }
}

fn report_once(error: Errno) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        hugekit_sys::events::warn!("threads of other jobs are not counted: {FILE:?}: {error}");
    }
}
