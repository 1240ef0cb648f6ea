//! A part of an experiment: cases that alternate, how they compare, and failures.
//!
//! A part fails alone. A failure, for example of memory that is gone meanwhile, is noted in the record, and
//! the rest of the experiment runs. Only the observer of the run stops everything.

use crate::record::{Experiment, Failure, Unit};

use crate::measure::sampler::{Plan, try_alternate};
use crate::measure::{Interrupted, LabError, Observer};

/// The number of rounds, and the observer of them.
#[derive(Clone, Copy)]
pub struct Rounds<'a> {
    pub plan: Plan,
    pub observer: &'a dyn Observer,
}

impl Rounds<'_> {
    /// Measures `experiment/name` for each of these names, `method/workload`. `sample` measures the case of
    /// an index once. A case that fails before it has a sample is only a failure.
    pub fn measure(
        self,
        experiment: &'static str,
        unit: Unit,
        names: &[String],
        mut sample: impl FnMut(usize) -> Result<f64, LabError>,
    ) -> Result<Part, LabError> {
        let sample = |index| Ok((sample(index)?, ()));
        Ok(self.measure_with(experiment, unit, names, sample)?.0)
    }

    /// Does [`measure`](Self::measure), and also returns the values that came with the samples of each case.
    pub fn measure_with<T>(
        self,
        experiment: &'static str,
        unit: Unit,
        names: &[String],
        mut sample: impl FnMut(usize) -> Result<(f64, T), LabError>,
    ) -> Result<(Part, Vec<Vec<T>>), LabError> {
        let mut others: Vec<Vec<T>> = names.iter().map(|_| Vec::new()).collect();
        let rounds = try_alternate(self.plan, names.len(), self.observer, |index| {
            let (value, other) = sample(index)?;
            others[index].push(other);
            Ok(value)
        })?;
        for (others, samples) in others.iter_mut().zip(&rounds.samples) {
            // The first one belongs to the round that is thrown away.
            others.drain(..others.len() - samples.len());
        }
        let mut part = Part::new(experiment);
        for (index, error) in &rounds.failures {
            part.failures.push(Failure::of(&format!("{experiment}/{}", names[*index]), error));
        }
        for (name, samples) in names.iter().zip(rounds.samples) {
            part.add_case(name, unit, samples);
        }
        Ok((part, others))
    }
}

/// A part is a record of its experiment that lacks the other parts.
pub type Part = Experiment;

/// An experiment of parts.
pub trait Parts {
    /// Adds a part. If all of it failed, the failure is noted by this name.
    fn add(&mut self, name: &str, part: Result<Part, LabError>) -> Result<(), Interrupted>;
}

impl Parts for Experiment {
    fn add(&mut self, name: &str, part: Result<Part, LabError>) -> Result<(), Interrupted> {
        match part {
            Ok(part) => self.absorb(part),
            Err(LabError::Interrupted(interrupted)) => return Err(interrupted),
            Err(error) => self.failures.push(Failure::of(&format!("{}/{name}", self.name), &error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use {crate::measure::Quiet, hugekit_machine::size::Size};

    fn refused() -> LabError {
        let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        LabError::Map { len: Size(512 << 20), source: cause }
    }

    fn rounds(count: usize) -> Rounds<'static> {
        Rounds { plan: Plan::exactly(count), observer: &Quiet }
    }

    #[test]
    fn a_case_that_fails_leaves_the_rounds_and_a_note_and_the_others_go_on() {
        let (names, mut turns) = (["0/1", "1/1", "2/1"].map(str::to_owned), 0);
        let measured = rounds(4).measure_with("x", Unit::Microseconds, &names, |case| {
            turns += usize::from(case == 2);
            match case {
                1 => Err(refused()),
                2 if turns == 4 => Err(refused()),
                _ => Ok((1.0, turns)),
            }
        });
        let (mut part, others) = measured.unwrap();
        let samples = |name: &str| part.case(name).map(|case| case.samples.len());
        assert_eq!(names.each_ref().map(|name| samples(name)), [Some(4), None, Some(2)]);
        assert_eq!(others[2], [2, 3], "without that of the first round");
        let failed: Vec<&str> = part.failures.iter().map(|one| one.case.as_str()).collect();
        assert_eq!(failed, ["x/1/1", "x/2/1"]);
        let reason = &part.failures[0].reason;
        assert!(reason.starts_with("cannot map 512MiB to measure on: "), "{reason}");
        part.compare(("0", "1"), "1", None);
        part.compare(("0", "2"), "1", Some("pages"));
        let ratios: Vec<_> =
            part.ratios.iter().map(|one| (one.id.as_str(), one.like_for_like)).collect();
        assert_eq!(ratios, [("x/0-vs-2/1", false)]);
    }

    #[test]
    fn a_part_that_fails_is_noted_and_an_interrupt_goes_on() {
        let mut experiment = Experiment::new("x");
        experiment.add("latency", Err(refused())).unwrap();
        assert_eq!(experiment.failures[0].case, "x/latency");
        assert_eq!(experiment.add("rate", Err(Interrupted.into())), Err(Interrupted));
    }
}
