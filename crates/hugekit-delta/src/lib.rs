//! States of memory that are saved one after the other, each as what has changed since the one before.
//!
//! A *delta* is a stream of changed bytes with their offsets, checksummed piece by piece, that knows which state it
//! begins with and which it leads to; `docs/delta.md` describes its bytes. A *full* one begins with nothing. Deltas in
//! their order are a *chain*.
//!
//! - [`Chain`] makes them: it takes all bytes of each state in order, such as hugekit's `Snapshot::write_to` gives them,
//!   or those that may have changed, such as its `Changes::write_to` does, and writes those blocks of 4 KiB that have.
//! - [`apply()`] brings a state forward; [`merge()`] makes one delta of several; [`inspect`] says what is in one.
//! - [`Writer`] and [`Reader`] are the stream itself, for a program that knows better what has changed.
//!
//! Nothing is believed of a delta: one that is damaged, truncated, of another base or out of order is refused, with the
//! place, before anything is changed.
//!
//! ```
//! use std::io::{Cursor, Write};
//!
//! use hugekit_delta::{Chain, apply};
//!
//! let mut state = vec![1_u8; 1 << 20];
//! let mut chain = Chain::new(state.len() as u64);
//! let (mut full, mut delta) = (Vec::new(), Vec::new());
//! for out in [&mut full, &mut delta] {
//!     let mut saving = chain.save(out)?;
//!     saving.write_all(&state)?;
//!     saving.finish()?;
//!     state[70_000] += 1;
//! }
//! assert!(delta.len() < 5000);
//!
//! let mut restored = vec![0; 1 << 20];
//! let state = apply(&mut restored, None, &mut Cursor::new(&full))?;
//! apply(&mut restored, Some(state), &mut Cursor::new(&delta))?;
//! assert_eq!((restored[69_999], restored[70_000]), (1, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]
#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr)]

mod apply;
mod chain;
mod error;
mod format;
mod merge;
mod reader;
mod target;
mod writer;

pub use apply::{Contents, apply, inspect};
pub use chain::{BLOCK, Chain, Saved, Saving, SavingChanges};
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
