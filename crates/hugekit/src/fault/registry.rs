//! Which addresses are served in place, as a signal handler can look it up.
//!
//! A signal may interrupt any thread anywhere, so looking up takes no lock: readers announce
//! themselves in one of two counters and read an immutable, sorted table. Whoever changes the table
//! publishes a new one, directs readers to the other counter, and waits until the first is zero before
//! the old table and what only it named may go. Readers only do what a fault needs and never wait for
//! a writer, so that a writer's wait ends; a writer holds no lock that a reader could need.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{ptr, thread};

use super::served::Served;

/// A table of ranges and who serves them.
#[derive(Debug)]
pub(super) struct Registry {
    table: AtomicPtr<Table>,
    /// Readers now reading, by the parity of the generation they began in.
    readers: [AtomicUsize; 2],
    generation: AtomicUsize,
    /// Held by whoever changes the table.
    writer: Mutex<()>,
}

/// Ascending, disjoint.
type Table = Vec<(Range<usize>, Arc<Served>)>;
