//! Measuring: rounds in alternation, and what disturbed them.

pub(crate) mod counters;
pub(crate) mod latencies;
pub(crate) mod noise;
pub(crate) mod part;
pub(crate) mod sampler;
