//! Tenders keep the private anonymous memory of running processes on huge pages, from outside and
//! without their help. Then `fork(2)` copies entries of 2 MiB instead of 4 KiB, so an in-memory
//! database that saves by a fork stands still for a tenth of the time.
//!
//! A tender calls `process_madvise(2)` with `MADV_COLLAPSE` (Linux 6.1). This copies 2 MiB of small
//! pages into one huge page, whatever the setting of transparent huge pages is. The kernel still
//! performs copy-on-write: while a child lives, it splits the huge pages that the parent or the
//! child writes to. So a [`Tender`] collapses again when the child has ended.
//!
//! The costs are the copy, writers of these 2 MiB that wait meanwhile, and memory for holes of a
//! range (limited by [`TendOptions::growth`]). A tender never changes a byte, never collapses while
//! a forked child shares the memory, never continues when memory of the machine is short, and
//! leaves nothing that must be undone.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//!
//! use hugekit_tend::{TendOptions, Tender};
//!
//! let options = TendOptions { growth: 0.05, ..TendOptions::default() };
//! let mut tender = Tender::builder().process(4711).options(options).build()?;
//! for report in tender.pass(&AtomicBool::new(false))? {
//!     println!("{} bytes on huge pages", report.after.huge);
//! }
//! # Ok::<(), hugekit_tend::TendError>(())
//! ```
#![warn(missing_docs)]

mod allocator;
mod blocks;
mod compaction;
mod error;
mod fork_cost;
mod freed;
mod headroom;
mod history;
mod job;
mod load;
mod mappings;
mod options;
mod outlook;
mod own_memory;
mod pace;
mod pages;
mod plan;
mod relatives;
mod rhythm;
mod share;
mod stalls;
mod status;
mod supply;
mod target;
mod tender;
mod waits;

pub use error::TendError;
pub use fork_cost::ForkCost;
pub use mappings::{Excluded, Extent};
pub use options::TendOptions;
pub use outlook::Outlook;
pub use relatives::{forked_from, named};
pub use status::{Hindrance, PassReport, Status, TendRefusal};
pub use target::Target;
pub use tender::{Builder, Tender, Tending};

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
