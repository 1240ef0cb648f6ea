#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod error;
mod experiments;
mod machine;
mod measure;
mod observer;
mod options;
pub mod record;
pub mod report;
mod run;
pub mod size;
mod workloads;

pub use error::LabError;
pub use experiments::{Definition, EXPERIMENTS};
pub use machine::settings::put_back;
pub use observer::{Interrupted, Observer, Quiet};
pub use options::Options;
pub use record::plain::plain;
pub use record::{Difference, Elsewhere, Published, archive, compare};
pub use report::{claims, finding};
pub use run::{Outcome, run};
