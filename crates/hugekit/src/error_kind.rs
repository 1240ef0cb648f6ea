//! What an error means for a program: one word for each, whatever layer it comes from.
//!
//! The typed errors say what happened in figures; a face in another language, or a caller who only
//! decides whether to go on, needs the kind. One table, so that all faces agree.

use std::convert::Infallible;
use std::error::Error;
use std::io;

use crate::cow::ForkError;
use crate::engine::HintError;
use crate::lease::protocol::{Malformed, Refusal};
use crate::lease::{LeaseError, Unfit};
use crate::parallel::JobError;
use crate::pool::FaultError;
use crate::profile::AlreadyInstalled;
use crate::snapshot::Unsuitable;
use crate::{ClearError, CopyError, PoolError, PopulateError, RegionError, SnapshotError};

/// What an error means for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument makes no sense: a mistake of the program.
    Invalid,
    /// Memory, huge pages, addresses or mappings are short.
    NoMemory,
    /// This process may not do it.
    NotPermitted,
    /// This kernel, CPU or kind of memory cannot do it.
    Unsupported,
    /// Something else in this process stands in the way, such as another handler of SIGBUS.
    Conflict,
    /// It was cancelled.
    Cancelled,
    /// The snapshot is lost: writers outran it, or its owner took the memory away.
    Lost,
    /// What it is about belongs to the process that this one was forked from.
    Forked,
    /// The kernel refused something else.
    Kernel,
}

/// The number of the first system error among an error and its sources, if there is one.
#[must_use]
pub fn system_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let errors = std::iter::successors(Some(error), |&error| error.source());
    errors.filter_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error()).next()
}

/// What an error of the kernel means where nothing more is known.
fn of_kind(kind: io::ErrorKind) -> ErrorKind {
    match kind {
        // `clone` and `madvise` say EAGAIN where threads or mappings are short.
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::WouldBlock => {
            ErrorKind::NoMemory
        }
        io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Kernel,
    }
}

/// What a job's own error means.
trait Classified {
    fn kind(&self) -> ErrorKind;
}

impl Classified for Infallible {
    fn kind(&self) -> ErrorKind {
        match *self {}
    }
}

impl Classified for PopulateError {
    fn kind(&self) -> ErrorKind {
        Self::kind(self)
    }
}

fn of_job<E: Classified>(error: &JobError<E>) -> ErrorKind {
    match error {
        JobError::NoThreads => ErrorKind::Invalid,
        JobError::NoCpus => ErrorKind::Unsupported,
        JobError::Cancelled { .. } => ErrorKind::Cancelled,
        JobError::Chunk { error, .. } => error.kind(),
        JobError::Forked => ErrorKind::Forked,
    }
}

impl PopulateError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported => ErrorKind::Unsupported,
            Self::NotMapped | Self::NotWritable => ErrorKind::Invalid,
            Self::NothingBehind | Self::OutOfMemory => ErrorKind::NoMemory,
            Self::Poisoned => ErrorKind::Kernel,
            Self::Kernel(kind) => of_kind(*kind),
        }
    }
}

impl JobError<PopulateError> {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        of_job(self)
    }
}

impl HintError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TargetOutside { .. } => ErrorKind::Invalid,
            Self::RoutineUnavailable { .. } => ErrorKind::Unsupported,
        }
    }
}

impl ClearError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Hint(error) => error.kind(),
            Self::Job(error) => of_job(error),
        }
    }
}

impl CopyError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::LengthsDiffer { .. } | Self::Overlap { .. } => ErrorKind::Invalid,
            Self::Hint(error) => error.kind(),
            Self::Job(error) => of_job(error),
        }
    }
}

impl Malformed {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Unsupported
    }
}

impl Refusal {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotUnderstood { .. } => ErrorKind::Unsupported,
            Self::NotServed { .. } => ErrorKind::NotPermitted,
            Self::WrongSize { .. } => ErrorKind::Invalid,
            Self::OverQuota { .. }
            | Self::NoneReady { .. }
            | Self::NoPages { .. }
            | Self::Busy { .. }
            | Self::NotPopulated { .. } => ErrorKind::NoMemory,
            Self::Ending => ErrorKind::Conflict,
        }
    }
}

impl Unfit {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::PageSize { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }
}

impl LeaseError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoBroker { source, .. } => match of_kind(source.kind()) {
                ErrorKind::NotPermitted => ErrorKind::NotPermitted,
                _ => ErrorKind::Unsupported,
            },
            Self::Untrusted { .. } => ErrorKind::NotPermitted,
            Self::Refused(refusal) => refusal.kind(),
            Self::NoAnswer { .. } | Self::HungUp | Self::Unasked(_) => ErrorKind::Conflict,
            Self::Malformed(malformed) => malformed.kind(),
            Self::Unfit(unfit) => unfit.kind(),
            Self::NoHugePages { .. } => ErrorKind::Unsupported,
            Self::Pages(_) | Self::Heap(_) => ErrorKind::NoMemory,
            Self::Populate(error) => error.kind(),
            Self::Kernel { source, .. } => of_kind(source.kind()),
        }
    }
}

impl AlreadyInstalled {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Conflict
    }
}

impl FaultError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotPermitted { .. } => ErrorKind::NotPermitted,
            Self::Lacking { .. } | Self::Collapsible | Self::OnValgrind => ErrorKind::Unsupported,
            Self::HandlerReplaced | Self::Blocked => ErrorKind::Conflict,
            Self::NoThreads | Self::TooManyThreads { .. } => ErrorKind::Invalid,
            Self::NotStarted(source) => of_kind(source.kind()),
            Self::Kernel { source, .. } => of_kind(source.kind()),
        }
    }
}

impl PoolError {
    /// What it means for a program. Of several backings that could not be had, the last one's.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoBytes
            | Self::TooLarge { .. }
            | Self::NotInherited
            | Self::NoTiers
            | Self::Watermarks { .. } => ErrorKind::Invalid,
            Self::NoBacking { fallbacks } => {
                fallbacks.last().map_or(ErrorKind::Unsupported, |fallback| fallback.reason.kind())
            }
            Self::NotEnoughHugePages(_)
            | Self::NotEnoughMemory { .. }
            | Self::OverGroupLimit { .. }
            | Self::NoRoom { .. }
            | Self::Heap(_) => ErrorKind::NoMemory,
            Self::NotMapped { source, .. } => of_kind(source.kind()),
            Self::NoHugePages { .. } | Self::NoThp { .. } => ErrorKind::Unsupported,
            Self::Populate(error) => error.kind(),
            Self::Clear(error) => error.kind(),
            Self::NodePolicy(source) if source.kind() == io::ErrorKind::InvalidInput => {
                ErrorKind::Invalid
            }
            Self::NodePolicy(source) => of_kind(source.kind()),
            Self::Fault(error) => error.kind(),
            Self::Lease(error) => error.kind(),
            Self::Taken => ErrorKind::Invalid,
            Self::NoDescriptor(source) | Self::Kernel { source, .. } => of_kind(source.kind()),
            Self::Forked => ErrorKind::Forked,
        }
    }
}

impl RegionError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfRange { .. }
            | Self::Unaligned { .. }
            | Self::NotWholeFolios { .. }
            | Self::NoBytes => ErrorKind::Invalid,
            Self::Populate(error) => error.kind(),
            Self::Clear(error) => error.kind(),
            Self::Kept(kind) => of_kind(*kind),
            Self::Copy(error) => error.kind(),
            Self::Forks => ErrorKind::Conflict,
            Self::Heap(_) => ErrorKind::NoMemory,
            Self::Forked => ErrorKind::Forked,
        }
    }
}

impl ForkError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Gigantic => ErrorKind::Unsupported,
            Self::Granule { .. } | Self::GranuleDiffers { .. } | Self::FaultModeDiffers { .. } => {
                ErrorKind::Invalid
            }
            Self::Pool(error) => error.kind(),
            Self::Fault(error) => error.kind(),
            Self::FileGiven | Self::OtherEpoch => ErrorKind::Conflict,
            Self::Mappings { .. } | Self::Heap(_) => ErrorKind::NoMemory,
            Self::NotMapped { source, .. } => of_kind(source.kind()),
            Self::NotReady(error) => error.kind(),
            Self::Copy(error) => error.kind(),
            Self::Kept(source) | Self::Kernel { source, .. } => of_kind(source.kind()),
            Self::Forked => ErrorKind::Forked,
        }
    }
}

impl SnapshotError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Empty { .. }
            | Self::Unmapped { .. }
            | Self::OutOfRange { .. }
            | Self::LengthsDiffer { .. } => ErrorKind::Invalid,
            Self::Unsuitable { reason, .. } => match reason {
                Unsuitable::OtherUserfaultfd | Unsuitable::OtherFaultMode => ErrorKind::Conflict,
                _ => ErrorKind::Unsupported,
            },
            Self::Blocked { .. } | Self::Unquiet { .. } => ErrorKind::Conflict,
            Self::Unwatched { .. } => ErrorKind::Unsupported,
            Self::Fault(error) => error.kind(),
            Self::Memory(error) => error.kind(),
            Self::Fork(error) => error.kind(),
            Self::Machine(error) => error.kind().map_or(ErrorKind::Kernel, of_kind),
            Self::Write { .. } => ErrorKind::Kernel,
            Self::NotStarted(source)
            | Self::NoRoom { source, .. }
            | Self::Kernel { source, .. } => of_kind(source.kind()),
            Self::CowLimitExceeded { .. }
            | Self::Changed { .. }
            | Self::Unserved
            | Self::Refused => ErrorKind::Lost,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Heap(_) => ErrorKind::NoMemory,
            Self::Forked => ErrorKind::Forked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Done;
    use crate::pool::{Backing, Fallback};

    #[test]
    fn kind_of_nested_errors_is_that_of_the_innermost() {
        let short = PoolError::NoRoom { wanted: 2, free: 1, longest: 1 };
        let fallbacks = vec![Fallback { backing: Backing::Base, reason: short }];
        let fork = ForkError::Pool(PoolError::NoBacking { fallbacks });
        assert_eq!(fork.kind(), ErrorKind::NoMemory);
        let chunk = JobError::Chunk {
            range: 0..1,
            done: Done::nothing(1),
            error: PopulateError::NotWritable,
        };
        assert_eq!(RegionError::Populate(chunk).kind(), ErrorKind::Invalid);
    }

    #[test]
    fn kind_of_a_wrapped_system_error_is_found() {
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let inner = PoolError::Kernel { call: "memfd_create", source };
        assert_eq!(inner.kind(), ErrorKind::Kernel);
        assert_eq!(system_error(&ForkError::Pool(inner)), Some(libc::EMFILE));
        assert_eq!(system_error(&PoolError::NoBytes), None);
    }
}
