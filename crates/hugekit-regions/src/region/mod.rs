//! Regions: memory that a pool has allocated, mapped and zeroed.
//!
//! - A [`Region`] has one owner, who reads and writes it as a slice.
//! - A [`SharedRegion`] has as many handles as wanted, for writers that race: guest memory, a
//!   database with a snapshot thread. No slice of it exists; it is accessed through atomics, through
//!   its address, or through the file behind it.
//!
//! One becomes the other by [`Region::share`]. `README.md` beside this file says why there are two,
//! and what `release` does.

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
