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
mod checkpoints;
mod children;
mod delta;
mod error;
mod fork;
mod fork_error;
mod fork_report;
mod fork_settings;
mod frozen;
mod granules;
mod guard;
mod lineage;
mod mappings;
mod nursery;
mod output;
mod pages;
mod preserved;
mod previous;
mod report;
mod room;
mod saving;
mod series;
mod series_settings;
mod settings;
mod shortage;
mod sink;
mod unnamed;
mod vm;
mod writes;

pub use checkpoint::checkpoint;
pub use error::CheckpointError;
pub use fork::{Forked, fork};
pub use fork_error::ForkError;
pub use fork_report::{ChildReport, ForkReport};
pub use fork_settings::{ChildSettings, ForkSettings};
pub use guard::MOST_STARTED as MOST_CHILDREN;
pub use lineage::{ForkedVm, VmMemory, forked_vms};
pub use previous::state_of;
pub use report::{Report, Way};
pub use series::checkpoint_series;
pub use series_settings::SeriesSettings;
pub use settings::Settings;

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
