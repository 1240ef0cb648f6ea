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
mod calibrate;
pub mod compare;
pub mod counters;
mod experiments;
pub mod finding;
mod forking;
mod plain;
mod published;
pub mod reading;
pub mod record;
pub mod report;
pub mod sampler;
mod settings;
pub mod size;
pub mod stats;
mod storm;
mod threads;
pub mod trust;
mod writers;

pub use calibrate::{Calibration, Noise, calibrate};
pub use experiments::{Definition, EXPERIMENTS};
pub use plain::plain;
pub use published::Published;
pub use settings::put_back;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bench::Bench;
use crate::counters::Counting;
use crate::record::{Experiment, Failure};
use crate::size::Size;
use crate::trust::{Moment, Trust};

/// What a run is told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// End within 15 s per experiment.
    pub quick: bool,
    /// Memory to measure on, in bytes; chosen by what is free if not given.
    pub memory: Option<Size>,
    /// Exactly so many rounds, instead of as many as the time allows.
    pub rounds: Option<usize>,
    /// Only routines of this name, beside libc's and the engine's own choice.
    pub routine: Option<String>,
    /// Whether huge-page settings may be changed for the time of the run.
    pub setup: bool,
}

/// Somebody who watches a run and may stop it.
pub trait Observer {
    /// Called at least once a round.
    ///
    /// # Errors
    /// [`Interrupted`] to stop the run here.
    fn check(&self) -> Result<(), Interrupted> {
        Ok(())
    }

    /// A new stage begins, such as `stores 16MiB`.
    fn begin(&self, _stage: &str) {}

    /// How far along the stage is, from 0 to 1.
    fn progress(&self, _fraction: f64) {}

    /// A case is about to be measured once.
    fn turn_begins(&self) {}

    /// The case of this index was measured once.
    fn turn_ends(&self, _case: usize) {}

    /// All rounds are done: the samples of each case, by index.
    fn group_ends(&self, _samples: &[Vec<f64>]) {}
}

/// An observer that watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Quiet;

impl Observer for Quiet {}

/// The observer stopped the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Why a run could not go on. Settings are back as they were when this is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// More memory was asked for than there is; nothing was mapped.
    #[error("{asked} of memory were asked for, {available} are available")]
    TooLittleMemory {
        /// What was asked for.
        asked: Size,
        /// What the machine, or the control group, would still give.
        available: Size,
    },
    /// Less memory was asked for than the smallest experiment needs.
    #[error("{asked} of memory are too few to measure on: at least {least} are needed")]
    MemoryTooSmall {
        /// What was asked for.
        asked: Size,
        /// The least there must be.
        least: Size,
    },
    /// What the machine has could not be found out.
    #[error(transparent)]
    Machine(#[from] hugekit::machine::Error),
    /// The kernel refused to map or populate memory.
    #[error("cannot map {len} to measure on")]
    Map {
        /// What was to be mapped.
        len: Size,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel refused to copy this process.
    #[error("cannot fork a process that has {len} of memory to share")]
    Fork {
        /// What the child was to share.
        len: Size,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// A setting of the machine could not be read, changed or put back.
    #[error("cannot {verb} {path}")]
    Setting {
        /// `read`, `change`, `restore`, `write to` or `lock`.
        verb: &'static str,
        /// The file.
        path: String,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// Of so many writers, not all were ready in time.
    #[error("of {0} writers, not all were ready to begin in time")]
    Writers(usize),
    /// No further thread could be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// This user may not change the machine's settings.
    #[error("settings of the machine are changed by root only: cannot write to {path}")]
    NotRoot {
        /// Where it would be noted what is changed.
        path: String,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// Another lab may change the machine's settings now, and did not end while it was waited for.
    #[error("{holder} has the machine's settings; it was waited for, {waited} s")]
    Busy {
        /// Who that is.
        holder: String,
        /// For how many seconds.
        waited: u64,
    },
    /// An experiment panicked: a mistake of hugekit's.
    #[error("a mistake in hugekit: {0}")]
    Panicked(String),
    /// The kernel did not say which CPUs this process may use.
    #[error("cannot find out which CPUs may be used")]
    Cpus(#[source] std::io::Error),
    /// A pool to measure could not be made, or could not hand out memory.
    #[error(transparent)]
    Pool(#[from] hugekit::PoolError),
    /// A region to measure could not be prefaulted.
    #[error(transparent)]
    Region(#[from] hugekit::RegionError),
    /// A region to measure could not be forked.
    #[error(transparent)]
    RegionFork(#[from] hugekit::region::ForkError),
    /// Memory to measure could not be snapshotted, or not be saved.
    #[error(transparent)]
    Snapshot(#[from] hugekit::SnapshotError),
    /// The observer stopped the run.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// What came out of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The experiments that were finished, with what failed in them.
    pub experiments: Vec<Experiment>,
    /// Whether the observer stopped it before all of them were.
    pub interrupted: bool,
    /// Whether the CPU's counters were available, and if not, why.
    pub hardware_counters: String,
    /// What is to be said of settings that were put back for another run, or are left as somebody else wants
    /// them.
    pub settings: Vec<String>,
    /// A setting that could not be put back.
    pub not_restored: Option<LabError>,
}

/// Runs experiments, in this order, on memory that is mapped and warmed once for all of them. What fails
/// within one is noted in its record, and the rest runs.
///
/// # Errors
/// [`LabError`] if there is too little memory for anything, or the machine's settings are not to be had. An
/// interrupt is not an error: what was finished is returned.
pub fn run(
    chosen: &[&Definition],
    options: &Options,
    observer: &dyn Observer,
) -> Result<Outcome, LabError> {
    let counting = Counting::new(observer);
    let mut bench = match Bench::new(options, &counting) {
        Err(LabError::Interrupted(_)) => return Ok(nothing_but_interrupted(&counting)),
        bench => bench?,
    };
    let mut experiments = Vec::new();
    let mut interrupted = false;
    for definition in chosen {
        let before = Moment::now();
        match run_one(definition, &mut bench) {
            Ok(experiment) => experiments.push(trusted(experiment, &before, &counting)),
            Err(Interrupted) => {
                interrupted = true;
                break;
            }
        }
    }
    let not_restored = bench.restore_settings().err();
    let settings = bench.settings_notes();
    let hardware_counters = counting.hardware().to_owned();
    Ok(Outcome { experiments, interrupted, hardware_counters, settings, not_restored })
}

fn nothing_but_interrupted(counting: &Counting<'_>) -> Outcome {
    Outcome {
        experiments: Vec::new(),
        interrupted: true,
        hardware_counters: counting.hardware().to_owned(),
        settings: Vec::new(),
        not_restored: None,
    }
}

/// An experiment, or that all of it failed and why.
fn run_one(definition: &Definition, bench: &mut Bench<'_>) -> Result<Experiment, Interrupted> {
    let ran = catch_unwind(AssertUnwindSafe(|| (definition.run)(bench)));
    let error = match ran {
        Ok(Ok(experiment)) => return Ok(experiment),
        Ok(Err(LabError::Interrupted(interrupted))) => return Err(interrupted),
        Ok(Err(error)) => error,
        Err(panic) => LabError::Panicked(message(&*panic)),
    };
    let failures = vec![Failure::of(definition.name, &error)];
    Ok(Experiment { name: definition.name.to_owned(), failures, ..Experiment::default() })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// With how far to trust it, if it ran.
fn trusted(experiment: Experiment, before: &Moment, counting: &Counting<'_>) -> Experiment {
    let counters = counting.take(&experiment.cases);
    let ran = experiment.skipped.is_none();
    let trust = ran.then(|| Trust::since(before, &experiment, counters));
    Experiment { trust, ..experiment }
}
