//! Cases measured in alternation: each ratio compares two cases of one round, so a change of the machine affects both.
//! There is no experiment here.
#![allow(
    missing_docs,
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
