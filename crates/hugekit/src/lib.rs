//! hugekit: a huge-page memory engine for user space on Linux.
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arch;
mod clear;
pub mod machine;
pub mod profile;
pub mod sweep;
mod sys;

pub use clear::{Clear, ClearError, Reuse, clear};
pub use profile::Profile;
