//! Arguments of the command that are more than one word of Rust.

use std::time::Duration;

use clap::builder::TypedValueParser;

/// Parses a whole number of seconds.
pub(crate) fn seconds(least: u32) -> impl TypedValueParser<Value = Duration> {
    let number = clap::value_parser!(u32).range(i64::from(least)..);
    number.map(|seconds| Duration::from_secs(seconds.into()))
}
