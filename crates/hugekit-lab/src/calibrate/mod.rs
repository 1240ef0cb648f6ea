//! Calibration: what `hugekit tune` measures to write a profile of this machine.
//!
//! The workloads are those of the experiments, in the same alternating rounds, so that a tuned profile
//! is judged by what it was tuned for. A value is other than the built-in one only where that is better
//! beyond what two measurements of the same thing differ by; libc's routines stay wherever nothing beats
//! them clearly, and what cannot be measured here stays built in.

mod bands;
mod near;
mod noise_floor;
mod routines;
mod threads;

use hugekit::Profile;
use hugekit::profile::{Measured, StoredProfile, Tuned};

use crate::bench::{Bench, at_most};
use crate::sampler::Plan;
use crate::size::GIB;
use crate::{LabError, Observer, Options};

pub use noise_floor::NoiseFloor;

/// The outcome of a calibration.
#[derive(Debug)]
pub struct Calibration {
    /// The profile, ready to be stored.
    pub profile: StoredProfile,
    /// How much the machine's other load got in the way.
    pub noise: NoiseFloor,
    /// The values that stayed built in, and why.
    pub notices: Vec<String>,
}

/// How thorough a calibration is.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Rounds that decide one question: as many as its time allows.
    plan: Plan,
    /// Leaves out every other size.
    coarse: bool,
    memory: usize,
}

impl Effort {
    const QUICK: Self = Self { plan: Plan::within(5, 200), coarse: true, memory: GIB };
    const FULL: Self = Self { plan: Plan::within(11, 600), coarse: false, memory: 2 * GIB };
}

/// Measures this machine: within 60 s, a `quick` one within 15 s. `command` is noted in the profile.
///
/// # Errors
/// [`LabError`] if there is too little memory, or the observer stops it.
pub fn calibrate(
    quick: bool,
    command: &str,
    observer: &dyn Observer,
) -> Result<Calibration, LabError> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let options = Options { quick, memory: Some(at_most(effort.memory)?), ..Options::default() };
    let mut bench = Bench::new(&options, observer)?;
    let before = noise_floor::measure(&mut bench, effort)?;
    let (measured, notices) = measure(&mut bench, effort, before)?;
    let noise = before.max(noise_floor::measure(&mut bench, effort)?);
    bench.restore_settings()?;
    let tuned = Tuned { command: command.to_owned(), spread: noise.spread() };
    let profile = StoredProfile::of_this_machine(tuned, measured);
    Ok(Calibration { profile, noise, notices })
}

fn measure(
    bench: &mut Bench<'_>,
    effort: Effort,
    noise: NoiseFloor,
) -> Result<(Measured, Vec<String>), LabError> {
    let margin = noise.margin();
    let builtin = Profile::builtin_here();
    let mut measured = routines::measure(bench, effort, &builtin, margin)?;
    let profile = profile_of(&measured);
    let near = near::measure(bench, effort, &profile, margin)?;
    measured.near_bytes = Some(near.target);
    measured.near_bytes_all = Some(near.all);
    let profile = profile_of(&measured);
    let threads = threads::measure(bench, effort, &profile, margin)?;
    measured.parallel_from = threads.parallel_from;
    measured.min_chunk = threads.min_chunk;
    measured.thread_cap = threads.thread_cap;
    Ok((measured, threads.notices))
}

/// A profile with what is measured so far, to measure the rest by.
fn profile_of(measured: &Measured) -> Profile {
    let tuned = Tuned { command: String::new(), spread: 0.0 };
    let stored = StoredProfile::of_this_machine(tuned, measured.clone());
    stored.for_this_machine().expect("measured here, with routines of here")
}
