#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arch;
mod clear;
mod copy;
mod engine;
pub mod learning;
pub mod parallel;
pub mod populate;
pub mod profile;
pub mod sweep;

pub use clear::{ClearError, ClearOptions, clear};
pub use copy::{CopyError, CopyOptions, copy};
#[doc(hidden)]
pub use engine::copy_routine_for;
pub use engine::{HintError, Method, Operation, Reuse};
pub use parallel::{Cancel, Threads};
pub use populate::{PopulateError, PopulateOptions};
pub use profile::Profile;
