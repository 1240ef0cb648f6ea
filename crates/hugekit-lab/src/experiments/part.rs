//! A part of an experiment: what was measured, and what could not be.
//!
//! A part fails alone. Whatever keeps one from being measured, such as memory that is gone meanwhile, is
//! noted in the record, and the rest of the experiment runs; only the observer of the run stops it.

use crate::published::Elsewhere;
use crate::record::{Case, Distribution, Experiment, Failure, Ratio, Sequence, Timeline};
use crate::sampler::Rounds;
use crate::{Interrupted, LabError};

#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) cases: Vec<Case>,
    pub(super) ratios: Vec<Ratio>,
    pub(super) elsewhere: Vec<Elsewhere>,
    pub(super) notices: Vec<String>,
    pub(super) distributions: Vec<Distribution>,
    pub(super) timelines: Vec<Timeline>,
    pub(super) sequences: Vec<Sequence>,
    pub(super) failures: Vec<Failure>,
}

impl Part {
    /// The cases of rounds by index, `None` for one that failed before it had a sample; every failure is noted.
    pub(super) fn cases_of(
        &mut self,
        rounds: Rounds,
        case: impl Fn(usize, Vec<f64>) -> Case,
    ) -> Vec<Option<Case>> {
        let all = rounds.samples.into_iter().enumerate();
        let all: Vec<Case> = all.map(|(index, samples)| case(index, samples)).collect();
        let failures = rounds.failures.iter();
        let noted = failures.map(|(index, error)| Failure::of(&all[*index].id, error));
        self.failures.extend(noted);
        all.into_iter().map(|case| (!case.samples.is_empty()).then_some(case)).collect()
    }
}

impl Experiment {
    /// Takes in what came of a part. A failure of all of it is noted by its name.
    pub(super) fn add(
        &mut self,
        name: &str,
        part: Result<Part, LabError>,
    ) -> Result<(), Interrupted> {
        let part = match part {
            Ok(part) => part,
            Err(LabError::Interrupted(interrupted)) => return Err(interrupted),
            Err(error) => {
                let name = format!("{}/{name}", self.name);
                Part { failures: vec![Failure::of(&name, &error)], ..Part::default() }
            }
        };
        self.cases.extend(part.cases);
        self.ratios.extend(part.ratios);
        self.elsewhere.extend(part.elsewhere);
        self.notices.extend(part.notices);
        self.distributions.extend(part.distributions);
        self.timelines.extend(part.timelines);
        self.sequences.extend(part.sequences);
        self.failures.extend(part.failures);
        Ok(())
    }
}

/// Of those that there are.
pub(super) fn found(cases: Vec<Option<Case>>) -> Vec<Case> {
    cases.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;
    use crate::sampler::{Plan, try_alternate};
    use crate::{Quiet, size::Size};

    fn refused() -> LabError {
        let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        LabError::Map { len: Size(512 << 20), cause }
    }

    fn case(index: usize, samples: Vec<f64>) -> Case {
        Case {
            id: format!("x/{index}/1"),
            unit: Unit::Microseconds,
            samples,
            published: Vec::new(),
        }
    }

    #[test]
    fn a_case_that_fails_leaves_the_rounds_and_a_note_and_the_others_go_on() {
        let mut turns = 0;
        let rounds = try_alternate(Plan::exactly(4), 3, &Quiet, |case| {
            turns += usize::from(case == 2);
            match case {
                1 => Err(refused()),
                2 if turns == 4 => Err(refused()),
                _ => Ok(1.0),
            }
        });
        let mut part = Part::default();
        let cases = part.cases_of(rounds.unwrap(), case);
        let samples: Vec<_> = cases.iter().map(|c| c.as_ref().map(|c| c.samples.len())).collect();
        assert_eq!(samples, [Some(4), None, Some(2)], "what was measured before is kept");
        let mut failures = part.failures.iter();
        let (one, two) = (failures.next().unwrap(), failures.next().unwrap());
        assert_eq!((one.case.as_str(), two.case.as_str()), ("x/1/1", "x/2/1"));
        assert!(one.reason.starts_with("cannot map 512MiB to measure on: "), "{}", one.reason);
    }

    #[test]
    fn a_part_that_fails_is_noted_and_an_interrupt_goes_on() {
        let mut experiment = Experiment { name: "x".into(), ..Experiment::default() };
        experiment.add("latency", Err(refused())).unwrap();
        assert_eq!(experiment.failures[0].case, "x/latency");
        assert_eq!(experiment.add("rate", Err(Interrupted.into())), Err(Interrupted));
    }
}
