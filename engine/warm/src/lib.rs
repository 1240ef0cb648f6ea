#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::incompatible_msrv)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod error;
mod file_system;
mod options;
mod report;
mod units;
mod users;
mod warmer;
mod window;

pub use error::WarmError;
pub use options::{WarmMode, WarmOptions};
pub use report::{LeftSmall, WarmReport, WhySmall};
pub use users::FileUsers;
pub use warmer::{CacheLock, Warmed, Warmer, can_be_warmed};

use std::path::Path;

/// Puts the page cache of a file on huge pages, with the default options: every process that maps the file from then on
/// gets one page fault for each 2 MiB. [`Warmer`] has the options.
///
/// A file with a limit of memory that is smaller, or with holes, is handled as [`Warmer::run`] explains.
///
/// # Errors
/// [`WarmError`].
pub fn warm(path: impl AsRef<Path>) -> Result<WarmReport, WarmError> {
    Ok(Warmer::new(WarmOptions::default()).run(path.as_ref())?.report)
}
