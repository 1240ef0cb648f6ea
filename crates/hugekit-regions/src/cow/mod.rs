//! Copy-on-write: regions that share memory until one of them writes.
//!
//! A fork shares the granules of its parent until one region writes one. Then **the parent keeps its page**
//! and one of the others gets a copy: a parent's addresses, page-table entries and place in the file stay
//! as they are, whichever come and go. The last one to have a granule copies nothing. Every fork
//! has an extent of its own, reserved when it is made, so that no write is ever short of memory.
//!
//! `README.md` beside this file says how the tables, the kernel's mappings and the faults play together.

mod apart;
mod apply;
mod budget;
mod bulk;
mod compact;
mod detach;
mod entry;
mod epoch;
mod error;
mod exclusive;
mod fork;
mod frames;
mod group;
mod guard;
mod hold;
mod mapping;
mod mappings;
mod patience;
mod refused;
mod room;
mod serve;
mod sharers;
mod slot;
mod table;
mod tokens;

pub(crate) use self::apart::Apart;
pub use self::detach::Lost;
pub(crate) use self::epoch::{Turn, Watch};
pub use self::error::ForkError;
#[cfg(test)]
pub(crate) use self::group::Opened;
pub(crate) use self::group::{CowHandle, ForkGroup, Terms, usual_granule};
