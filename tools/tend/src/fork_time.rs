//! How long a fork took.

use std::time::Duration;

use serde::Serialize;

/// The time that a process stood still for a `fork(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "source", content = "seconds")]
#[non_exhaustive]
pub enum ForkTime {
    /// The process says so itself: Redis, and what is descended of it (`latest_fork_usec` of its `INFO`).
    Told(#[serde(serialize_with = "seconds")] Duration),
    /// By its page tables and what an entry costs on this machine ([`ForkCost`](crate::ForkCost)).
    Estimated(#[serde(serialize_with = "seconds")] Duration),
}

pub(crate) fn seconds<S: serde::Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
