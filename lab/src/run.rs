//! A run: experiments in their order, on memory that is warmed once, and their record.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::measure::LabError;
use crate::measure::counters::Counting;
use crate::measure::machine::{clearing_kernel, describe};
use crate::measure::noise::{Moment, uncontrolled};
use crate::measure::{Interrupted, Observer};
use crate::record::{Experiment, Failure, KIND, Machine, Ratio, Record, VERSION, parts};
use hugekit_machine::Root;
use hugekit_machine::plain;
use jiff::Timestamp;

use crate::experiments::Bench;
use crate::experiments::Definition;
use crate::finding::finding;
use crate::options::Options;

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The experiments that were finished, with what failed in them.
    pub experiments: Vec<Experiment>,
    /// True if the observer stopped the run before its last experiment.
    pub interrupted: bool,
    /// `available`, or the reason why the CPU's counters were not.
    pub hardware_counters: String,
    /// Notes on settings that were put back for another run, or are left as another program wants
    /// them.
    pub settings: Vec<String>,
    /// A setting that could not be put back.
    pub not_restored: Option<LabError>,
}

impl Outcome {
    /// A record of what came out of a run on this machine.
    #[must_use]
    pub fn record(self, command: &str) -> Record {
        let Self { experiments, hardware_counters, .. } = self;
        let machine = Machine { hardware_counters, ..describe(&Root::default()) };
        let host = machine.hypervisor.as_deref();
        Record {
            uncontrolled: uncontrolled(host, &machine.hardware_counters),
            schema: format!("{KIND}{VERSION}"),
            made: Timestamp::now(),
            // A file may be called anything.
            command: plain(command),
            machine,
            experiments,
        }
    }
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
    let (mut experiments, mut interrupted) = (Vec::new(), false);
    let mut bench = match Bench::new(options, &counting) {
        Err(LabError::Interrupted(_)) => None,
        bench => Some(bench?),
    };
    for (number, definition) in (1..).zip(chosen) {
        let Some(bench) = bench.as_mut() else {
            interrupted = true;
            break;
        };
        let before = Moment::now();
        observer.experiment_begins(definition.name, number, chosen.len());
        match run_one(definition, bench) {
            Ok(experiment) => {
                let experiment = with_noise(experiment, &before, &counting);
                observer.experiment_ends(&experiment.name, &finding(&experiment));
                experiments.push(experiment);
            }
            Err(Interrupted) => {
                interrupted = true;
                break;
            }
        }
    }
    let not_restored = bench.as_mut().and_then(|bench| bench.restore_settings().err());
    let settings = bench.as_mut().map_or(Vec::new(), Bench::settings_notes);
    let hardware_counters = counting.hardware().to_owned();
    Ok(Outcome { experiments, interrupted, hardware_counters, settings, not_restored })
}

/// An experiment, or that all of it failed and why.
fn run_one(definition: &Definition, bench: &mut Bench<'_>) -> Result<Experiment, Interrupted> {
    let ran = catch_unwind(AssertUnwindSafe(|| (definition.run)(bench)));
    let error = match ran {
        Ok(Ok(mut experiment)) => {
            experiment.notices.extend(bench.short_of_memory().map(str::to_owned));
            experiment.notices.extend(which_kernel(&experiment.ratios));
            return Ok(experiment);
        }
        Ok(Err(LabError::Interrupted(interrupted))) => return Err(interrupted),
        Ok(Err(error)) => error,
        Err(panic) => LabError::Panicked(message(&*panic)),
    };
    let failures = vec![Failure::of(definition.name, &error)];
    Ok(Experiment { failures, ..Experiment::new(definition.name) })
}

/// Methods of the kernel's in ids.
const OF_THE_KERNEL: [&str; 3] = ["kernel", "fork2", "map-populate"];

/// The kernel that ratios compare with, if some do: a later one may have taken over what is compared.
fn which_kernel(ratios: &[Ratio]) -> Option<String> {
    let against = |ratio: &Ratio| {
        let method = parts(&ratio.baseline).map_or("", |(method, _)| method);
        OF_THE_KERNEL.iter().any(|kernel| method.contains(kernel))
    };
    ratios.iter().any(against).then(|| format!("the kernel in ratios is {}", clearing_kernel()))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// With its noise, if it ran.
fn with_noise(experiment: Experiment, before: &Moment, counting: &Counting<'_>) -> Experiment {
    let counters = counting.take(&experiment.cases);
    let ran = experiment.skipped.is_none();
    let noise = ran.then(|| before.noise(&experiment, counters));
    Experiment { noise, ..experiment }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Case, Unit};

    #[test]
    fn a_record_names_the_kernel_that_its_ratios_compare_with_and_no_other() {
        let case =
            |method: &str| Case::new(format!("x/{method}/2MiB"), Unit::Microseconds, vec![1.0]);
        let ratio = |baseline: &str| Ratio::between("r".into(), &case(baseline), &case("region"));
        for method in ["kernel-thp", "sustained-kernel-thp", "fork2-4k", "map-populate"] {
            let said = which_kernel(&[ratio("memset"), ratio(method)]).unwrap();
            assert_eq!(said, format!("the kernel in ratios is {}", clearing_kernel()), "{method}");
        }
        assert_eq!(which_kernel(&[ratio("memset"), ratio("unbatched")]), None);
        assert!(
            clearing_kernel()
                .to_string()
                .contains(rustix::system::uname().release().to_str().unwrap())
        );
    }
}
