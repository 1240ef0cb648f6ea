//! Descriptors of userfaultfd(2) that can do what is needed, or the reason why there are none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::{self, Errno};

use crate::arch;
use crate::machine::Root;
use crate::machine::userfaultfd::{Features, Userfaultfd, Uses};
use crate::pool::{Backing, FaultError};
use crate::sys::{process, userfaultfd};

const DEVICE: &str = "/dev/userfaultfd";

type Open = fn() -> io::Result<OwnedFd>;

/// What a descriptor is to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// First accesses to memory of a pool.
    FirstAccesses(Backing),
    /// First accesses to memory of a pool, and writes to what is shared there.
    SharedWrites(Backing),
    /// Writes to private memory.
    PrivateWrites,
    /// Writes to private memory, which the kernel lets pass and notes in the page table.
    NotedWrites,
}

impl Of {
    fn features(self) -> Features {
        match self {
            Self::FirstAccesses(Backing::Hugetlb1G | Backing::Hugetlb2M) => {
                Features::MISSING_HUGETLBFS.with(Features::MINOR_HUGETLBFS)
            }
            Self::FirstAccesses(Backing::Thp | Backing::Base) => {
                Features::MISSING_SHMEM.with(Features::MINOR_SHMEM)
            }
            Self::SharedWrites(backing) => Self::FirstAccesses(backing)
                .features()
                .with(Features::WRITE_PROTECT)
                .with(Features::WRITE_PROTECT_SHARED),
            Self::PrivateWrites => {
                Features::WRITE_PROTECT.with(Features::WRITE_PROTECT_UNPOPULATED)
            }
            Self::NotedWrites => Self::PrivateWrites.features().with(Features::WRITE_PROTECT_ASYNC),
        }
    }
}

/// One whose faults raise SIGBUS in the thread that faulted. Anybody may have it.
pub(crate) fn for_handling_in_place(of: Of) -> Result<OwnedFd, FaultError> {
    accesses_are_the_cpus()?;
    // Before Linux 5.11 there is no flag for faults of user code alone.
    let ways: [Open; 3] = [userfaultfd::new_user_mode_only, userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, true))?;
    enable(descriptor, of.features().with(Features::SIGBUS), &ways)
}

/// One whose faults, those of system calls and of KVM included, are read from it.
pub(crate) fn for_handler_threads(of: Of) -> Result<OwnedFd, FaultError> {
    accesses_are_the_cpus()?;
    let ways: [Open; 2] = [userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, false))?;
    // To the byte where the kernel can: the page's address serves as well, only less near.
    let needed = of.features().with(Features::THREAD_ID);
    let wanted = needed.with(Features::EXACT_ADDRESS);
    if userfaultfd::enable(&descriptor, wanted.0).is_ok() {
        return Ok(descriptor);
    }
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, false))?;
    enable(descriptor, needed, &ways)
}

/// One that watches writes: no access is ever refused, or waits. Any process may have it.
pub(crate) fn for_watching() -> Result<OwnedFd, FaultError> {
    let ways: [Open; 3] = [userfaultfd::new_user_mode_only, userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, true))?;
    enable(descriptor, Of::NotedWrites.features(), &ways)
}

/// One at which all writes wait, those of system calls and of signal frames too, until they are let pass.
pub(crate) fn for_stopping() -> Result<OwnedFd, FaultError> {
    accesses_are_the_cpus()?;
    let ways: [Open; 2] = [userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, false))?;
    enable(descriptor, Of::PrivateWrites.features(), &ways)
}

fn from_device() -> io::Result<OwnedFd> {
    userfaultfd::new_from_device(Path::new(DEVICE))
}

/// Valgrind runs one thread at a time, and none while one waits in the kernel for a fault to be served, because it does
/// not know that an access may wait: whoever is to serve it never runs, and no signal reaches the program. And a handler
/// of SIGBUS returns to registers as they were some instructions before the access, unless Valgrind is told otherwise
/// (`--vex-iropt-register-updates=allregs-at-mem-access`), so that the program goes on wrong.
fn accesses_are_the_cpus() -> Result<(), FaultError> {
    if arch::runs_on_valgrind() { Err(FaultError::OnValgrind) } else { Ok(()) }
}

/// What the first way that works gives, or what the first way said. A system-call filter may end the
/// process that asks, so it is asked for such a filter first.
fn first_of(ways: &[Open]) -> io::Result<OwnedFd> {
    if process::is_filtered() && !userfaultfd::may_be_asked_for() {
        return from_device().map_err(|_| Errno::PERM);
    }
    let first = ways[0]();
    first.or_else(|error| ways[1..].iter().find_map(|way| way().ok()).ok_or(error))
}

fn enable(descriptor: OwnedFd, wanted: Features, ways: &[Open]) -> Result<OwnedFd, FaultError> {
    match userfaultfd::enable(descriptor.as_fd(), wanted.0) {
        Ok(()) => Ok(descriptor),
        // A descriptor can be asked once, so another one says what there is.
        Err(Errno::INVAL) => Err(lacking(wanted, first_of(ways).and_then(userfaultfd::features))),
        Err(errno) => Err(FaultError::Kernel { call: "UFFDIO_API", source: errno.into() }),
    }
}

const NAMES: [(Features, &str); 10] = [
    (Features::SIGBUS, "SIGBUS in place of events (Linux 4.14)"),
    (Features::THREAD_ID, "the thread that met a fault (Linux 4.14)"),
    (Features::MISSING_HUGETLBFS, "missing pages of hugetlb memory (Linux 4.11)"),
    (Features::MISSING_SHMEM, "missing pages of shared memory (Linux 4.11)"),
    (Features::MINOR_HUGETLBFS, "minor faults of hugetlb memory (Linux 5.13)"),
    (Features::MINOR_SHMEM, "minor faults of shared memory (Linux 5.14)"),
    (Features::WRITE_PROTECT, "protection from writes (Linux 5.7)"),
    (Features::WRITE_PROTECT_SHARED, "protection of shared memory from writes (Linux 5.19)"),
    (Features::WRITE_PROTECT_UNPOPULATED, "protection of untouched pages from writes (Linux 6.4)"),
    (Features::WRITE_PROTECT_ASYNC, "writes noted in the page table (Linux 6.7)"),
];

fn lacking(wanted: Features, there: io::Result<u64>) -> FaultError {
    let there = Features(there.unwrap_or(0));
    let missing = NAMES
        .into_iter()
        .filter(|&(feature, _)| wanted.contains(feature) && !there.contains(feature))
        .map(|(_, name)| name);
    FaultError::Lacking { missing: missing.collect() }
}

/// Why none could be opened, in the words of the rules that the kernel went by.
fn refusal(errno: Errno, user_mode: bool) -> FaultError {
    let unexplained = || FaultError::Kernel { call: "userfaultfd", source: errno.into() };
    let Ok(found) = Userfaultfd::read(&Root::default()) else { return unexplained() };
    // Refused for another reason than permission, such as want of descriptors.
    if found.obstacles.is_empty() || matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM) {
        return unexplained();
    }
    let user_mode = user_mode || found.uses == Uses::None;
    let device = found.device.err().map_or("opens".to_owned(), |error| error.to_string());
    FaultError::NotPermitted { user_mode, obstacles: found.obstacles, device }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_old_kernel_lacks_is_named_and_nothing_else() {
        let wanted = Of::FirstAccesses(Backing::Hugetlb2M).features().with(Features::SIGBUS);
        let there =
            Features::MISSING_HUGETLBFS.with(Features::SIGBUS).with(Features::MISSING_SHMEM);
        let FaultError::Lacking { missing } = lacking(wanted, Ok(there.0)) else { panic!() };
        assert_eq!(missing, ["minor faults of hugetlb memory (Linux 5.13)"]);
        let FaultError::Lacking { missing } = lacking(wanted, Err(Errno::PERM)) else { panic!() };
        assert_eq!(missing.len(), 3);
    }
}
