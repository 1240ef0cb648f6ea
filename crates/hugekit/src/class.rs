//! What an error means for a program: one word for each, whatever layer it comes from.
//!
//! The typed errors say what happened in figures; a face in another language, or a caller who only
//! decides whether to go on, needs the class. One table, so that all faces agree.

use std::convert::Infallible;
use std::error::Error;
use std::io;

use crate::cow::ForkError;
use crate::engine::HintError;
use crate::parallel::JobError;
use crate::pool::FaultError;
use crate::snapshot::Unsuitable;
use crate::{ClearError, CopyError, PoolError, PopulateError, RegionError, SnapshotError};

/// What an error means for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
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
fn of_kind(kind: io::ErrorKind) -> ErrorClass {
    match kind {
        // `clone` and `madvise` say EAGAIN where threads or mappings are short.
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::WouldBlock => {
            ErrorClass::NoMemory
        }
        io::ErrorKind::PermissionDenied => ErrorClass::NotPermitted,
        io::ErrorKind::Unsupported => ErrorClass::Unsupported,
        _ => ErrorClass::Kernel,
    }
}

/// What a job's own error means.
trait Classified {
    fn class(&self) -> ErrorClass;
}

impl Classified for Infallible {
    fn class(&self) -> ErrorClass {
        match *self {}
    }
}

impl Classified for PopulateError {
    fn class(&self) -> ErrorClass {
        Self::class(self)
    }
}

fn of_job<E: Classified>(error: &JobError<E>) -> ErrorClass {
    match error {
        JobError::NoThreads => ErrorClass::Invalid,
        JobError::NoCpus => ErrorClass::Unsupported,
        JobError::Cancelled { .. } => ErrorClass::Cancelled,
        JobError::Chunk { error, .. } => error.class(),
        JobError::Forked => ErrorClass::Forked,
    }
}

impl PopulateError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unsupported => ErrorClass::Unsupported,
            Self::NotMapped | Self::NotWritable => ErrorClass::Invalid,
            Self::NothingBehind | Self::OutOfMemory => ErrorClass::NoMemory,
            Self::Poisoned => ErrorClass::Kernel,
            Self::Kernel(kind) => of_kind(*kind),
        }
    }
}

impl JobError<PopulateError> {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        of_job(self)
    }
}

impl HintError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::TargetOutside { .. } => ErrorClass::Invalid,
            Self::RoutineUnavailable { .. } => ErrorClass::Unsupported,
        }
    }
}

impl ClearError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Hint(error) => error.class(),
            Self::Job(error) => of_job(error),
        }
    }
}

impl CopyError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::LengthsDiffer { .. } | Self::Overlap { .. } => ErrorClass::Invalid,
            Self::Hint(error) => error.class(),
            Self::Job(error) => of_job(error),
        }
    }
}

impl FaultError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotPermitted { .. } => ErrorClass::NotPermitted,
            Self::Lacking { .. } | Self::Collapsible | Self::OnValgrind => ErrorClass::Unsupported,
            Self::HandlerReplaced | Self::Blocked => ErrorClass::Conflict,
            Self::NoThreads | Self::TooManyThreads { .. } => ErrorClass::Invalid,
            Self::NotStarted(source) => of_kind(source.kind()),
            Self::Kernel { source, .. } => of_kind(source.kind()),
        }
    }
}

impl PoolError {
    /// What it means for a program. Of several backings that could not be had, the last one's.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoBytes | Self::TooLarge { .. } | Self::NoRungs | Self::Watermarks { .. } => {
                ErrorClass::Invalid
            }
            Self::NoBacking { falls } => {
                falls.last().map_or(ErrorClass::Unsupported, |fall| fall.reason.class())
            }
            Self::NotEnoughHugePages { .. }
            | Self::NotEnoughMemory { .. }
            | Self::OverGroupLimit { .. }
            | Self::NoRoom { .. } => ErrorClass::NoMemory,
            Self::NotMapped { source, .. } => of_kind(source.kind()),
            Self::NoHugePages { .. } | Self::NoThp { .. } => ErrorClass::Unsupported,
            Self::Populate(error) => error.class(),
            Self::Clear(error) => error.class(),
            Self::NodePolicy(source) if source.kind() == io::ErrorKind::InvalidInput => {
                ErrorClass::Invalid
            }
            Self::NodePolicy(source) => of_kind(source.kind()),
            Self::Fault(error) => error.class(),
            Self::NoDescriptor(source) | Self::Kernel { source, .. } => of_kind(source.kind()),
            Self::Forked => ErrorClass::Forked,
        }
    }
}

impl RegionError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::OutOfRange { .. }
            | Self::Unaligned { .. }
            | Self::NotWholeFolios { .. }
            | Self::NoBytes => ErrorClass::Invalid,
            Self::Prefault(error) => error.class(),
            Self::Clear(error) => error.class(),
            Self::Kept(kind) => of_kind(*kind),
            Self::Copy(error) => error.class(),
            Self::Forks => ErrorClass::Conflict,
            Self::Forked => ErrorClass::Forked,
        }
    }
}

impl ForkError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Gigantic => ErrorClass::Unsupported,
            Self::Granule { .. } | Self::GranuleDiffers { .. } | Self::HandlingDiffers { .. } => {
                ErrorClass::Invalid
            }
            Self::Pool(error) => error.class(),
            Self::Fault(error) => error.class(),
            Self::FileGiven => ErrorClass::Conflict,
            Self::Mappings { .. } => ErrorClass::NoMemory,
            Self::NotMapped { source, .. } => of_kind(source.kind()),
            Self::NotReady(error) => error.class(),
            Self::Copy(error) => error.class(),
            Self::Kept(source) | Self::Kernel { source, .. } => of_kind(source.kind()),
            Self::Forked => ErrorClass::Forked,
        }
    }
}

impl SnapshotError {
    /// What it means for a program.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Empty { .. }
            | Self::Unmapped { .. }
            | Self::OutOfRange { .. }
            | Self::LengthsDiffer { .. } => ErrorClass::Invalid,
            Self::Unsuitable { reason, .. } => match reason {
                Unsuitable::OtherUserfaultfd | Unsuitable::OtherHandling => ErrorClass::Conflict,
                _ => ErrorClass::Unsupported,
            },
            Self::Blocked { .. } | Self::Unquiet { .. } => ErrorClass::Conflict,
            Self::Fault(error) => error.class(),
            Self::Memory(error) => error.class(),
            Self::Fork(error) => error.class(),
            Self::Machine(error) => error.kind().map_or(ErrorClass::Kernel, of_kind),
            Self::Write { .. } => ErrorClass::Kernel,
            Self::NotStarted(source) | Self::Kernel { source, .. } => of_kind(source.kind()),
            Self::Outrun { .. } | Self::Changed { .. } | Self::Unserved | Self::Refused => {
                ErrorClass::Lost
            }
            Self::Cancelled { .. } => ErrorClass::Cancelled,
            Self::Forked => ErrorClass::Forked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Backing, Fall};

    #[test]
    fn the_class_is_that_of_the_innermost_reason() {
        let short = PoolError::NoRoom { wanted: 2, free: 1, longest: 1 };
        let falls = vec![Fall { backing: Backing::Base, reason: short }];
        let fork = ForkError::Pool(PoolError::NoBacking { falls });
        assert_eq!(fork.class(), ErrorClass::NoMemory);
        let chunk = JobError::Chunk { range: 0..1, bytes: 0, error: PopulateError::NotWritable };
        assert_eq!(RegionError::Prefault(chunk).class(), ErrorClass::Invalid);
    }

    #[test]
    fn system_errors_are_found_below_others() {
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let inner = PoolError::Kernel { call: "memfd_create", source };
        assert_eq!(inner.class(), ErrorClass::Kernel);
        assert_eq!(system_error(&ForkError::Pool(inner)), Some(libc::EMFILE));
        assert_eq!(system_error(&PoolError::NoBytes), None);
    }
}
