#![doc = include_str!("../README.md")]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![allow(
    missing_debug_implementations,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "its items serve the experiments alone"
)]

pub mod counters;
mod error;
pub mod latencies;
pub mod machine;
pub mod noise;
mod observer;
pub mod part;
pub mod sampler;
pub mod workloads;

pub use error::LabError;
pub use observer::{Interrupted, Observer, Quiet};
