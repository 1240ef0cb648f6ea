//! Deltas: states of memory that are saved one after the other, each as the changes since the
//! previous state.
//!
//! A *delta* is a stream of changed bytes with their offsets. Each piece has a checksum. A delta
//! contains the ID of the state at which it begins, and of the state at which it ends.
//! `docs/delta.md` describes its bytes. A *full* delta begins with no state. Deltas in their order
//! are a *chain*.
//!
//! - [`Chain`] makes deltas. Pass it all bytes of each state in order, as hugekit's
//!   `Snapshot::write_to` does, or only the bytes that may have changed, as hugekit's
//!   `Changes::deliver` does. The chain compares them with the last state by tags, and writes the
//!   blocks of 4 KiB that have changed.
//! - [`apply()`] applies a delta to a state. [`merge()`] makes one delta of several deltas.
//!   [`inspect`] returns the content of a delta.
//! - [`Writer`] and [`Reader`] write and read the stream itself, for a program that finds the
//!   changes by other means.
//!
//! A reader trusts no byte of a delta. A delta that is damaged, truncated, out of order, or of
//! another base is refused, with the offset, before anything is changed.
//!
//! ```
//! use std::fs::{self, File};
//! use std::io::Write;
//!
//! use hugekit_delta::{Chain, apply};
//!
//! let folder = tempfile::tempdir()?;
//! let mut state = vec![1_u8; 1 << 20];
//! let mut chain = Chain::new(state.len() as u64);
//! let paths = ["0.delta", "1.delta"].map(|name| folder.path().join(name));
//! for path in &paths {
//!     let file = File::create(path)?;
//!     let mut saving = chain.save(&file)?;
//!     saving.write_all(&state)?;
//!     saving.finish()?;
//!     state[70_000] += 1;
//! }
//! assert!(fs::metadata(&paths[1])?.len() < 5000);
//!
//! let (mut restored, mut current) = (vec![0; 1 << 20], None);
//! for path in &paths {
//!     current = Some(apply(&mut restored, current, &mut File::open(path)?)?);
//! }
//! assert_eq!((restored[69_999], restored[70_000]), (1, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]
#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr)]

mod apply;
mod blocks;
mod chain;
mod error;
mod files;
mod format;
mod last_state;
mod merge;
mod reader;
mod tag;
mod target;
mod writer;

pub use apply::{Contents, apply, inspect};
pub use blocks::BLOCK;
pub use chain::{Chain, Saved, Saving, SavingChanges};
pub use error::DeltaError;
pub use format::{LONGEST, NoStateId, StateId};
pub use merge::merge;
pub use reader::{Change, Header, Reader};
pub use target::Target;
pub use writer::Writer;

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the programs of the guide as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/delta.md")]
struct Guide;
