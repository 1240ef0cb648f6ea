//! Copy-on-write: regions that share memory until one of them writes.
//!
//! A fork and its parent share each granule until one of these regions writes to it. At that write,
//! **the parent keeps its page** and one of the other regions gets a copy. So a parent's addresses,
//! page-table entries and place in the file stay unchanged, whichever forks come and go. The last
//! region that shows a granule copies nothing. Every fork has its own extent, which is reserved
//! when the fork is made, so no write is short of memory.
//!
//! `README.md` beside this file describes the tables, the kernel's mappings and the faults.

mod apart;
mod apply;
mod budget;
mod bulk;
mod compact;
mod descriptor;
mod detach;
mod entry;
mod epoch;
mod error;
mod exclusive;
mod first;
mod folios;
mod fork;
mod frames;
mod group;
mod guard;
mod handle;
mod hold;
mod hold_back;
mod in_kernel;
mod mapping;
mod mappings;
mod patience;
mod reads;
mod refused;
mod room;
mod serve;
mod several;
mod sharers;
mod sharing;
mod slot;
mod table;
mod tables;
mod visit;

pub(crate) use self::apart::Apart;
#[cfg(test)]
pub(crate) use self::descriptor::Descriptor;
pub use self::detach::Lost;
pub(crate) use self::detach::PointInTime;
pub(crate) use self::epoch::{Turn, Watch};
pub use self::error::ForkError;
pub(crate) use self::first::First;
pub(crate) use self::fork::ForkMaker;
pub(crate) use self::group::{ForkGroup, Terms, usual_granule};
pub(crate) use self::handle::CowHandle;
