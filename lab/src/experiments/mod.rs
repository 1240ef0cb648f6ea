//! The experiments. Each has a file, or a folder of parts, and a line in [`EXPERIMENTS`].

mod bench;
mod checkpoint;
mod clear;
mod copies;
mod cow;
mod demand;
mod epochs;
mod fault;
mod files;
mod fork;
mod learn;
mod lease;
mod memory_sources;
mod parallel;
mod redis;
mod restore;
mod routine_matrix;
mod snapshot;
mod snapshot_call;
mod stores;
mod tend;
mod warm;

pub(crate) use bench::{Bench, halved_to_fit};

use crate::measure::LabError;
use crate::record::Experiment;

/// An experiment: its name on the command line, what it repeats and why, and how it runs.
#[derive(Debug)]
pub struct Definition {
    /// The name.
    pub name: &'static str,
    /// The repeated work in one line.
    pub repeats: &'static str,
    /// The work it repeats, and the use of it, for the report.
    pub why: &'static str,
    /// The comparisons that sum it up, the most telling first: `baseline-vs-subject`. A machine may lack the pages
    /// for some of them.
    pub headlines: &'static [&'static str],
    /// True if a run without named experiments has it. Those experiments end within three minutes together.
    pub is_core: bool,
    pub(crate) run: fn(&mut Bench<'_>) -> Result<Experiment, LabError>,
}

/// Every experiment, in the order of a run of all.
pub const EXPERIMENTS: &[Definition] = &[
    stores::DEFINITION,
    copies::DEFINITION,
    learn::DEFINITION,
    clear::DEFINITION,
    parallel::DEFINITION,
    demand::DEFINITION,
    fault::DEFINITION,
    cow::DEFINITION,
    fork::DEFINITION,
    snapshot::DEFINITION,
    epochs::DEFINITION,
    lease::DEFINITION,
    tend::DEFINITION,
    redis::DEFINITION,
    restore::DEFINITION,
    checkpoint::DEFINITION,
    warm::DEFINITION,
];
