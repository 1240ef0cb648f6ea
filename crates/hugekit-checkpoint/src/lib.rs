//! Saves a running microVM of stock Firecracker: the VM is paused for milliseconds, and its memory
//! is copied while it runs.
//!
//! ```no_run
//! use hugekit_checkpoint::{Settings, checkpoint};
//!
//! let report = checkpoint(&Settings::new(4711, "vm1.sock".into(), "saved".into()))?;
//! println!("{report}");
//! # Ok::<(), hugekit_checkpoint::CheckpointError>(())
//! ```
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod api;
mod checkpoint;
mod delta;
mod error;
mod frozen;
mod granules;
mod guard;
mod mappings;
mod output;
mod pages;
mod previous;
mod report;
mod settings;
mod sink;
mod unnamed;
mod vm;

pub use checkpoint::checkpoint;
pub use error::CheckpointError;
pub use previous::state_of;
pub use report::{Report, Way};
pub use settings::Settings;

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
