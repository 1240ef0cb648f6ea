//! hugekit: a huge-page memory engine for user space on Linux.
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod machine;
mod sys;
