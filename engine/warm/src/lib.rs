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

/// Puts the page cache of a file on huge pages, with the default options. Every process that maps
/// the file afterwards gets one page fault for each 2 MiB. [`Warmer`] does this with options.
///
/// [`Warmer::run`] explains files with holes, and files that are larger than a limit of memory.
///
/// # Errors
/// [`WarmError`]. Units that stay on small pages are no error: [`WarmReport::left`] counts them.
pub fn warm(path: impl AsRef<Path>) -> Result<WarmReport, WarmError> {
    Ok(Warmer::new(WarmOptions::default()).run(path.as_ref())?.report)
}
