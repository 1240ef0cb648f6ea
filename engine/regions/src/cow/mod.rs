//! Copy-on-write: regions that share memory until one of them writes.
//!
//! A fork and its parent share each granule until one of these regions writes to it. At that write,
//! **the parent keeps its page** and one of the other regions gets a copy. So a parent's addresses,
//! page-table entries and place in the file stay unchanged, whichever forks come and go. The last
//! region that shows a granule copies nothing. Every fork has its own extent, which is reserved
//! when the fork is made, so no write is short of memory.
//!
//! `README.md` beside this file draws the way of one write, and describes the tables, the kernel's
//! mappings and the faults. The modules are in the order of that way.

// The way of one write. The fault of a writer or reader arrives.
mod serve;
// Its thread shares the gate, and finds the region.
mod visit;
// It claims the slot.
mod guard;
// The state of the slot decides what to do.
mod slot;
// The actions are carried out.
mod apply;
// The bytes are copied.
mod frames;
// The kernel's mapping changes.
mod in_kernel;
// The writer is woken.
mod descriptor;

// The tables that these steps read and change.
mod mapping;
mod mappings;
mod slot_table;
mod tables;

// When the kernel refuses, or memory is short.
mod budget;
mod error;
mod retries;
mod whole_region;

// A group: created, joined by its first region, left by its last.
mod folios;
mod fork_support;
mod founding;
mod group;
mod handle;

// A fork: made, read only, and the start of an epoch.
mod compact;
mod epoch;
mod fork;
mod point_in_time;
mod protect_region;
mod unshared;

// Many slots at once.
mod batch;
mod bulk;

#[cfg(test)]
pub(crate) use self::descriptor::Descriptor;
pub(crate) use self::epoch::{EpochWatch, NextEpoch};
pub use self::error::ForkError;
pub(crate) use self::fork::ForkMaker;
pub(crate) use self::founding::FoundingRegion;
pub(crate) use self::group::{ForkGroup, Terms, usual_granule};
pub(crate) use self::handle::CowHandle;
pub use self::point_in_time::Lost;
pub(crate) use self::point_in_time::PointInTime;
pub(crate) use self::unshared::UnsharedSlots;
