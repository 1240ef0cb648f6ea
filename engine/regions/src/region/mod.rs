//! Regions: memory that a pool has allocated, mapped and zeroed.
//!
//! - A [`Region`] has one owner, which reads and writes the memory as a slice.
//! - A [`SharedRegion`] has any number of handles, for writers that may race: guest memory, or a
//!   database with a snapshot thread. It has no slice. A program accesses the memory through
//!   atomics, through its address, or through its file.
//!
//! [`Region::share`] turns a region into a shared region. `README.md` beside this file explains why
//! there are two types, and describes `release`.

mod builder;
mod exclusive;
mod fork;
mod mapped;
mod read_only_fork;
mod shared;

pub use crate::cow::ForkError;
pub use builder::RegionBuilder;
pub use exclusive::Region;
pub use fork::ForkBuilder;
pub use mapped::RegionError;
pub use read_only_fork::{ReadOnlyFork, RegionEpoch};
pub use shared::{PinnedRange, SharedRegion};
