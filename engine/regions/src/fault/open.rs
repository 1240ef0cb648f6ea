//! Descriptors of userfaultfd(2) with the required features, or the reason why there are none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::{self, Errno};

use crate::pool::{Backing, FaultError};
use hugekit_bulk::arch;
use hugekit_machine::Root;
use hugekit_machine::userfaultfd::{Features, Userfaultfd, Uses};
use hugekit_sys::error_chain;
use hugekit_sys::{mapping, process, userfaultfd};

const DEVICE: &str = "/dev/userfaultfd";

type Open = fn() -> io::Result<OwnedFd>;

/// The events that a descriptor reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// First accesses to memory of a pool.
    FirstAccesses(Backing),
    /// First accesses to memory of a pool, and writes to its shared memory.
    SharedWrites(Backing),
    /// Writes to private memory.
    PrivateWrites(Untouched),
    /// Writes to private memory, which the kernel permits and records in the page table.
    NotedWrites,
}

/// The way to write-protect private pages that no thread has touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untouched {
    /// By marks, like all other pages.
    Marked,
    /// Not at all: the page of zeroes is mapped there first, as by a read.
    Zeroes,
}

/// The features that are needed to watch writes to a pool's memory.
const SHARED_WRITES: Features = Features::WRITE_PROTECT.with(Features::WRITE_PROTECT_SHARED);

impl Of {
    fn features(self) -> Features {
        match self {
            Self::FirstAccesses(backing) if is_collapsible(backing) => {
                first_accesses(backing).with(SHARED_WRITES)
            }
            Self::FirstAccesses(backing) => first_accesses(backing),
            Self::SharedWrites(backing) => first_accesses(backing).with(SHARED_WRITES),
            Self::PrivateWrites(Untouched::Marked) => {
                Features::WRITE_PROTECT.with(Features::WRITE_PROTECT_UNPOPULATED)
            }
            Self::PrivateWrites(Untouched::Zeroes) => Features::WRITE_PROTECT,
            Self::NotedWrites => {
                let writes = Self::PrivateWrites(Untouched::Marked);
                writes.features().with(Features::WRITE_PROTECT_ASYNC)
            }
        }
    }

    /// Returns the error for a kernel that lacks these features.
    fn refused(self, missing: Features) -> FaultError {
        match self {
            Self::FirstAccesses(_) if SHARED_WRITES.contains(missing) => FaultError::Collapsible,
            _ => FaultError::Lacking { missing: names(missing) },
        }
    }
}

fn first_accesses(backing: Backing) -> Features {
    if backing.is_reserved() {
        Features::MISSING_HUGETLBFS.with(Features::MINOR_HUGETLBFS)
    } else {
        Features::MISSING_SHMEM.with(Features::MINOR_SHMEM)
    }
}

/// Returns true if any process that may advise this one can have huge pages of this memory mapped
/// without a fault, unless writes to it are watched too.
pub(super) fn is_collapsible(backing: Backing) -> bool {
    !backing.is_reserved() && mapping::can_collapse()
}

/// Opens a descriptor whose faults raise SIGBUS in the faulting thread. Every process may open one.
pub fn for_serving_in_place(of: Of) -> Result<OwnedFd, FaultError> {
    accesses_are_the_cpus()?;
    // Before Linux 5.11 there is no flag for faults of user code alone.
    let ways: [Open; 3] = [userfaultfd::new_user_mode_only, userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, true))?;
    enable(descriptor, of, Features::SIGBUS, &ways)
}

/// Opens a descriptor from which handler threads read faults, also those of system calls and of
/// KVM.
pub fn for_handler_threads(of: Of) -> Result<OwnedFd, FaultError> {
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
    enable(descriptor, of, Features::THREAD_ID, &ways)
}

/// Opens a descriptor for writes to private memory. Also returns the way in which it protects
/// untouched pages.
pub fn for_private_writes(
    open: fn(Of) -> Result<OwnedFd, FaultError>,
) -> Result<(OwnedFd, Untouched), FaultError> {
    let with = |untouched| open(Of::PrivateWrites(untouched)).map(|opened| (opened, untouched));
    match with(Untouched::Marked) {
        Err(FaultError::Lacking { .. }) => with(Untouched::Zeroes),
        opened => opened,
    }
}

/// Opens a descriptor that records writes. No access is refused or waits. Every process may open
/// one.
pub fn for_watching() -> Result<OwnedFd, FaultError> {
    let ways: [Open; 3] = [userfaultfd::new_user_mode_only, userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, true))?;
    enable(descriptor, Of::NotedWrites, Features(0), &ways)
}

/// Opens a descriptor that makes all writes to private memory wait, also those of system calls and of signal frames,
/// until they pass.
pub fn for_stopping(of: Of) -> Result<OwnedFd, FaultError> {
    accesses_are_the_cpus()?;
    let ways: [Open; 2] = [userfaultfd::new_whole, from_device];
    let descriptor = first_of(&ways).map_err(|errno| refusal(errno, false))?;
    enable(descriptor, of, Features(0), &ways)
}

fn from_device() -> io::Result<OwnedFd> {
    userfaultfd::new_from_device(Path::new(DEVICE))
}

/// Returns an error under Valgrind, for two reasons. Valgrind runs one thread at a time, and none
/// while a thread waits in the kernel for a fault, because it does not know that an access may
/// wait. So the handler thread never runs, and no signal reaches the program. And a handler of
/// SIGBUS returns to registers from some instructions before the access, unless
/// `--vex-iropt-register-updates=allregs-at-mem-access` is set, so the program would continue with
/// wrong values.
fn accesses_are_the_cpus() -> Result<(), FaultError> {
    if arch::runs_on_valgrind() { Err(FaultError::OnValgrind) } else { Ok(()) }
}

/// Returns the descriptor of the first way that works, or else the error of the first way. A
/// system-call filter may end the process for the call, so the filter is checked first.
fn first_of(ways: &[Open]) -> io::Result<OwnedFd> {
    if process::is_filtered() && !userfaultfd::may_be_asked_for() {
        return from_device().map_err(|_| Errno::PERM);
    }
    let first = ways[0]();
    first.or_else(|error| ways[1..].iter().find_map(|way| way().ok()).ok_or(error))
}

fn enable(
    descriptor: OwnedFd,
    of: Of,
    told: Features,
    ways: &[Open],
) -> Result<OwnedFd, FaultError> {
    let wanted = of.features().with(told);
    match userfaultfd::enable(descriptor.as_fd(), wanted.0) {
        Ok(()) => Ok(descriptor),
        // A descriptor can be asked once, so another one says what there is.
        Err(Errno::INVAL) => {
            let there = first_of(ways).and_then(userfaultfd::features).unwrap_or(0);
            Err(of.refused(Features(wanted.0 & !there)))
        }
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

fn names(missing: Features) -> Vec<&'static str> {
    let is_missing = |&(feature, _): &(Features, _)| missing.contains(feature);
    NAMES.into_iter().filter(is_missing).map(|(_, name)| name).collect()
}

/// Returns the reason why no descriptor could be opened, according to the rules of the kernel.
fn refusal(errno: Errno, user_mode: bool) -> FaultError {
    let unexplained = || FaultError::Kernel { call: "userfaultfd", source: errno.into() };
    let Ok(found) = Userfaultfd::read(&Root::default()) else { return unexplained() };
    // Refused for another reason than permission, such as want of descriptors.
    if found.obstacles.is_empty() || matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM) {
        return unexplained();
    }
    not_permitted(found, user_mode)
}

fn not_permitted(found: Userfaultfd, user_mode: bool) -> FaultError {
    let user_mode = user_mode || found.uses == Uses::None;
    // An error names the device itself.
    let device = found
        .device
        .err()
        .map_or(format!("{DEVICE} opens"), |error| error_chain(&error).to_string());
    FaultError::NotPermitted { user_mode, obstacles: found.obstacles, device }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::Error;
    use hugekit_machine::userfaultfd::Obstacle;

    #[test]
    fn open_that_is_refused_names_the_device_once() {
        let denied = std::io::ErrorKind::PermissionDenied.into();
        let found = |device| Userfaultfd {
            uses: Uses::UserModeOnly,
            features: Features(0),
            obstacles: vec![Obstacle::Unprivileged],
            device,
        };
        for device in [Err(Error::Unreadable { path: DEVICE.into(), source: denied }), Ok(())] {
            let refused = not_permitted(found(device), false);
            let said = error_chain(&refused).to_string();
            assert_eq!(said.matches(DEVICE).count(), 1, "{said}");
        }
    }

    #[test]
    fn open_on_an_old_kernel_names_what_it_lacks_alone() {
        let of = Of::FirstAccesses(Backing::Hugetlb2M);
        let wanted = of.features().with(Features::SIGBUS);
        let there =
            Features::MISSING_HUGETLBFS.with(Features::SIGBUS).with(Features::MISSING_SHMEM);
        let refused = |there: Features| of.refused(Features(wanted.0 & !there.0));
        let FaultError::Lacking { missing } = refused(there) else { panic!() };
        assert_eq!(missing, ["minor faults of hugetlb memory (Linux 5.13)"]);
        let FaultError::Lacking { missing } = refused(Features(0)) else { panic!() };
        assert_eq!(missing.len(), 3);
    }

    #[test]
    fn open_on_a_kernel_that_collapses_is_told_from_one_that_lacks_all() {
        for backing in [Backing::Thp, Backing::Base] {
            let of = Of::FirstAccesses(backing);
            assert!(matches!(of.refused(SHARED_WRITES), FaultError::Collapsible));
            assert!(matches!(of.refused(Features::WRITE_PROTECT_SHARED), FaultError::Collapsible));
            let more = SHARED_WRITES.with(Features::MINOR_SHMEM);
            assert!(matches!(of.refused(more), FaultError::Lacking { .. }));
            let of = Of::SharedWrites(backing);
            assert!(matches!(of.refused(SHARED_WRITES), FaultError::Lacking { .. }));
        }
    }

    #[test]
    fn open_on_a_kernel_that_collapses_watches_writes() {
        for &backing in Backing::ALL {
            let watched = Of::FirstAccesses(backing).features().contains(SHARED_WRITES);
            assert_eq!(watched, !backing.is_reserved() && mapping::can_collapse());
        }
    }
}
