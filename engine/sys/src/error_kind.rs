//! Kinds of errors: the consequence of an error for a program, in one word, the same for all
//! layers.
//!
//! The typed errors describe the failure in figures. A binding of another language needs only the
//! kind, and so does a caller that only decides whether to continue. One table makes all bindings
//! agree.

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
    /// Memory, huge pages, addresses or mappings are not sufficient.
    NoMemory,
    /// This process lacks a permission.
    NotPermitted,
    /// This kernel, this CPU or this kind of memory does not support the operation.
    Unsupported,
    /// Another part of this process is in conflict, for example another handler of SIGBUS.
    Conflict,
    /// The operation was cancelled.
    Cancelled,
    /// The snapshot is lost: writers changed more memory than the snapshot may hold, or the
    /// snapshot's memory was unmapped or replaced.
    Lost,
    /// The object belongs to the parent process; this process is a forked child.
    Forked,
    /// The kernel refused the operation for another reason.
    Kernel,
}

/// Returns the number (`errno`) of the first system error among an error and its sources. `None` if
/// there is no system error.
#[must_use]
pub fn system_error(error: &(dyn Error + 'static)) -> Option<i32> {
    chain(error).find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Returns the text of an error and its sources as one line, separated by `: `. The `Display` of
/// one error of this library does not contain its source, and ends with its remedy. In the text of
/// this function, `{}` leaves all remedies out, for programs that print `remedy()` separately.
/// `{:#}` contains the remedies.
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

/// Converts the kernel's answer, for errors that contain no other information.
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
