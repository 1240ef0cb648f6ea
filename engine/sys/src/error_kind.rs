//! What an error means for a program: one word for each, whatever layer it comes from.
//!
//! The typed errors say what happened in figures; a face in another language, or a caller who only
//! decides whether to go on, needs the kind. One table, so that all faces agree.

use std::error::Error;
use std::fmt::Write;
use std::{fmt, io, iter};

use crate::remedy::WithoutRemedy;

/// The kind of an error, for a program that must decide how to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid. The program must be changed.
    Invalid,
    /// Memory, huge pages, addresses or mappings are short.
    NoMemory,
    /// This process lacks a permission.
    NotPermitted,
    /// This kernel, CPU or kind of memory cannot do it.
    Unsupported,
    /// Another part of this process is in conflict, for example another handler of SIGBUS.
    Conflict,
    /// The operation was cancelled.
    Cancelled,
    /// The snapshot is lost: writers changed more than it may hold, or its memory was unmapped or
    /// replaced.
    Lost,
    /// The object belongs to the parent process; this process is a forked child.
    Forked,
    /// The kernel refused something else.
    Kernel,
}

/// Returns the number of the first system error among an error and its sources; `None` if there is
/// none.
#[must_use]
pub fn system_error(error: &(dyn Error + 'static)) -> Option<i32> {
    chain(error).find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Returns an error and its sources as one line, separated by `: `. The `Display` of an error of
/// this library leaves its source out and ends with its remedy. `{}` of the chain leaves remedies
/// out, for programs that print `remedy()` separately; `{:#}` contains them.
///
/// ```
/// use hugekit_sys::error_chain;
///
/// let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
/// assert_eq!(error_chain(&denied).to_string(), "permission denied");
/// ```
#[must_use]
pub fn error_chain<'a>(error: &'a (dyn Error + 'static)) -> impl fmt::Display + 'a {
    ErrorChain(error)
}

struct ErrorChain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        chain(self.0).enumerate().try_for_each(|(index, error)| {
            f.write_str(if index == 0 { "" } else { ": " })?;
            if f.alternate() {
                write!(f, "{error}")
            } else {
                write!(WithoutRemedy::new(f), "{error}")
            }
        })
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
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
