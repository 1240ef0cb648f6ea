#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod experiments;
pub mod finding;
pub mod measure;
mod options;
pub mod record;
pub mod report;
mod run;
pub mod table;

pub use experiments::{Definition, EXPERIMENTS};
pub use measure::machine::settings::put_back;
pub use measure::{Interrupted, LabError, Observer, Quiet};
pub use options::Options;
pub use run::{Outcome, run};
