//! How long the call takes that takes a snapshot, while no thread writes: beside `mprotect` of the same memory, which
//! protects it too, beside the system call alone by which a snapshot protects it, and beside `fork(2)`. Memory that was
//! never touched has no pages to protect, but a userfaultfd has to mark each of them.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::slice_from_raw_parts;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::forking::Shared;
use crate::record::Unit;
use hugekit::Snapshot;
use hugekit::fault::FaultMode;
use hugekit_machine::size::Size;
use hugekit_machine::userfaultfd::Features;
use hugekit_sys::userfaultfd;
use rustix::mm::{MprotectFlags, mprotect};

/// Private anonymous memory.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Written(Pages),
    Untouched(Pages),
}

const MEMORIES: [(&str, Memory); 4] = [
    ("call-base", Memory::Written(Pages::Base)),
    ("call-thp", Memory::Written(Pages::Thp)),
    ("call-untouched", Memory::Untouched(Pages::Base)),
    ("call-untouched-thp", Memory::Untouched(Pages::Thp)),
];

type Call = fn(&mut Shared) -> Result<Duration, LabError>;

const CALLS: [(&str, Call); 4] = [
    ("mprotect", protect),
    ("uffdio", mark),
    ("fork2", Shared::fork),
    ("anonymous", take_snapshot),
];

const NOT_KEPT: &str =
    "the call only protects: it keeps no state, and the program has to handle each write";

pub(super) fn measure(state: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin(&format!("snapshot call {}", Size(state)));
    let cases: Vec<_> =
        MEMORIES.iter().flat_map(|memory| CALLS.map(|call| (memory, call))).collect();
    let names: Vec<_> =
        cases.iter().map(|((memory, _), (call, _))| format!("{call}/{memory}")).collect();
    let mut part = rounds.measure("snapshot", Unit::Microseconds, &names, |index| {
        let ((_, memory), (_, call)) = cases[index];
        // New each time: a call before this one has left page tables, and pages that are not writable.
        let mut memory = match memory {
            Memory::Written(pages) => Shared::new(*pages, state)?,
            Memory::Untouched(pages) => Shared::untouched(*pages, state)?,
        };
        Ok(call(&mut memory)?.as_secs_f64() * 1e6)
    })?;
    for (memory, _) in MEMORIES {
        part.compare(("mprotect", "anonymous"), memory, Some(NOT_KEPT));
        part.compare(("uffdio", "anonymous"), memory, Some(NOT_KEPT));
        part.compare(("fork2", "anonymous"), memory, None);
    }
    Ok(part)
}

fn protect(memory: &mut Shared) -> Result<Duration, LabError> {
    let bytes = memory.bytes();
    let began = Instant::now();
    // SAFETY: no thread writes to this memory until its mapping ends, which is next.
    let protected =
        unsafe { mprotect(bytes.as_mut_ptr().cast(), bytes.len(), MprotectFlags::READ) };
    let elapsed = began.elapsed();
    let len = Size(bytes.len());
    protected.map(|()| elapsed).map_err(|errno| LabError::Map { len, source: errno.into() })
}

/// The system call alone, as far as the kernel has it: before Linux 6.4, pages that were never touched get no mark.
fn mark(memory: &mut Shared) -> Result<Duration, LabError> {
    let bytes = memory.bytes().as_ptr_range();
    let addresses = bytes.start.addr()..bytes.end.addr();
    let marked = userfaultfd::new_user_mode_only().and_then(|descriptor| {
        userfaultfd::enable(&descriptor, Features::WRITE_PROTECT_UNPOPULATED.0)
            .or_else(|_| userfaultfd::enable(&descriptor, 0))?;
        userfaultfd::register_for_copies(descriptor.as_fd(), &addresses, false)?;
        let began = Instant::now();
        userfaultfd::protect(descriptor.as_fd(), &addresses, true)?;
        Ok(began.elapsed())
    });
    let len = Size(addresses.len());
    marked.map_err(|errno| LabError::Map { len, source: errno.into() })
}

fn take_snapshot(memory: &mut Shared) -> Result<Duration, LabError> {
    let bytes = memory.bytes();
    let range = slice_from_raw_parts(bytes.as_ptr(), bytes.len());
    let builder = Snapshot::builder().fault_mode(FaultMode::InPlace);
    let began = Instant::now();
    // SAFETY: the memory outlives the snapshot, and no thread writes to it.
    let snapshot = unsafe { builder.of_anonymous(range) }?;
    let elapsed = began.elapsed();
    drop(snapshot);
    Ok(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    #[test]
    fn each_call_takes_time() {
        for (_, call) in CALLS {
            let mut memory = Shared::new(Pages::Base, MIB).unwrap();
            match call(&mut memory) {
                // A sandbox without userfaultfd has no snapshots.
                Err(LabError::Snapshot(_) | LabError::Map { .. }) => {}
                elapsed => assert!(elapsed.unwrap() > Duration::ZERO),
            }
        }
    }
}
