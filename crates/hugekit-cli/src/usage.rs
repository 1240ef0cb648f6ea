//! A mistake in the arguments that only the machine shows, such as more memory than there is.

use std::error::Error;
use std::fmt;

/// Ends the program as the parser of arguments does: message on standard error, exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}
