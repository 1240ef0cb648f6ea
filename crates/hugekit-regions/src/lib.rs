//! Pools of clean memory, regions, faults served in user space, and forks.

pub mod cow;
pub mod fault;
pub mod pool;
pub mod region;

pub use pool::{Pool, PoolError};
pub use region::{Region, RegionError, SharedRegion};
