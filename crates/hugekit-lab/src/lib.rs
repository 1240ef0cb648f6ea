#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod experiments;
pub mod finding;
mod options;
mod run;

pub use experiments::{Definition, EXPERIMENTS};
pub use hugekit_measure::machine::settings::put_back;
pub use hugekit_measure::{Interrupted, LabError, Observer, Quiet};
pub use options::Options;
pub use run::{Outcome, run};
