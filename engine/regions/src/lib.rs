//! Pools of zeroed memory, regions, faults that are handled in user space, and forks.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![allow(
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    reason = "items that are not re-exported by hugekit are of the engine"
)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cow;
pub mod fault;
pub mod pool;
pub mod region;

pub use pool::{Pool, PoolError};
pub use region::{Region, RegionError, SharedRegion};
