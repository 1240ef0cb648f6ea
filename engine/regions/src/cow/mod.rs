//! Copy-on-write: regions that share memory until one of them writes.
//!
//! A fork and its parent share each granule until one of these regions writes to it. At that write,
//! **the parent keeps its page** and one of the other regions gets a copy. So a parent's addresses,
//! page-table entries and place in the file stay unchanged, whichever forks come and go. The last
//! region that shows a granule copies nothing. Every fork has its own extent, which is reserved
//! when the fork is made, so no write is short of memory.
//!
//! `README.md` beside this file describes the tables, the kernel's mappings and the faults.

mod apply;
mod batch;
mod budget;
mod bulk;
mod compact;
mod descriptor;
mod epoch;
mod error;
mod folios;
mod fork;
mod fork_support;
mod founding;
mod frames;
mod group;
mod guard;
mod handle;
mod in_kernel;
mod mapping;
mod mappings;
mod point_in_time;
mod protect_region;
mod retries;
mod serve;
mod slot;
mod slot_table;
mod tables;
mod unshared;
mod visit;
mod whole_region;

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
