//! The lab: experiments that repeat published memory-management figures on this machine.
//!
//! Experiments return records and never print. Cases that are compared alternate within one run,
//! ratios are taken within rounds, and every raw sample is kept; `docs/lab.md` explains how to read
//! the result. Nothing on the machine is changed unless [`Options::setup`] asks for it, and what is
//! changed is put back.

#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod anonymous;
pub mod archive;
mod arena;
mod bench;
mod broker_process;
mod clients;
pub mod compare;
mod conditions;
mod counters;
mod dirty_pages;
mod error;
mod experiments;
pub mod finding;
mod forking;
mod forking_program;
mod latencies;
mod latency_writer;
mod machine;
mod noise;
mod observer;
mod options;
mod paced_writer;
mod plain;
mod published;
pub mod reading;
pub mod record;
mod redis_server;
pub mod report;
mod run;
pub mod sampler;
mod settings;
pub mod size;
pub mod stats;
mod tending;
mod threads;
mod writers;

pub use conditions::Difference;
pub use error::LabError;
pub use experiments::{Definition, EXPERIMENTS};
pub use observer::{Interrupted, Observer, Quiet};
pub use options::Options;
pub use plain::plain;
pub use published::{Elsewhere, Published};
pub use run::{Outcome, run};
pub use settings::put_back;
