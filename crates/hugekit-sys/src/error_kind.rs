//! What an error means for a program: one word for each, whatever layer it comes from.
//!
//! The typed errors say what happened in figures; a face in another language, or a caller who only
//! decides whether to go on, needs the kind. One table, so that all faces agree.

use std::error::Error;
use std::io;

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

/// The kernel's answer, if an error carries nothing else.
impl From<io::ErrorKind> for ErrorKind {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            // `clone` and `madvise` answer EAGAIN if threads or mappings are short.
            io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::WouldBlock => {
                Self::NoMemory
            }
            io::ErrorKind::PermissionDenied => Self::NotPermitted,
            io::ErrorKind::Unsupported => Self::Unsupported,
            _ => Self::Kernel,
        }
    }
}
