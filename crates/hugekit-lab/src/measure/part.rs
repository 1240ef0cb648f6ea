//! A part of an experiment: cases that alternate, how they compare, and failures.
//!
//! A part fails alone. A failure, for example of memory that is gone meanwhile, is noted in the record, and
//! the rest of the experiment runs. Only the observer of the run stops everything.

use crate::measure::sampler::{Plan, try_alternate};
use crate::record::published::{Conditions, Figure};
use crate::record::{Case, Experiment, Failure, Ratio, Unit};
use crate::{Interrupted, LabError, Observer};

/// How many rounds to run, and the observer to tell.
#[derive(Clone, Copy)]
pub(crate) struct Rounds<'a> {
    pub(crate) plan: Plan,
    pub(crate) observer: &'a dyn Observer,
}

impl Rounds<'_> {
    /// Measures `experiment/name` for each of these names, `method/workload`. `sample` measures the case of
    /// an index once. A case that fails before it has a sample is only a failure.
    pub(crate) fn measure(
        self,
        experiment: &'static str,
        unit: Unit,
        names: &[String],
        mut sample: impl FnMut(usize) -> Result<f64, LabError>,
    ) -> Result<Part, LabError> {
        let sample = |index| Ok((sample(index)?, ()));
        Ok(self.measure_with(experiment, unit, names, sample)?.0)
    }

    /// As [`measure`](Self::measure), and returns what came with the samples of each case.
    pub(crate) fn measure_with<T>(
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
pub(crate) type Part = Experiment;

impl Experiment {
    /// Only a word to the reader.
    pub(crate) fn notice(notice: impl Into<String>) -> Self {
        Self { notices: vec![notice.into()], ..Self::default() }
    }

    /// Adds a case, if it has samples.
    pub(crate) fn add_case(&mut self, name: &str, unit: Unit, samples: Vec<f64>) {
        if !samples.is_empty() {
            self.cases.push(Case::new(format!("{}/{name}", self.name), unit, samples));
        }
    }

    /// The case of this name, `method/workload`, if it was measured.
    pub(crate) fn case(&self, name: &str) -> Option<&Case> {
        let rest = |case: &Case| case.id.split_once('/').is_some_and(|(_, rest)| rest == name);
        self.cases.iter().find(|case| rest(case))
    }

    /// Compares two methods on a workload, if both were measured. `moved` says why they are not like for like.
    pub(crate) fn compare(
        &mut self,
        (baseline, subject): (&str, &str),
        workload: &str,
        moved: Option<&str>,
    ) {
        let name = format!("{baseline}-vs-{subject}/{workload}");
        let sides = [baseline, subject].map(|method| format!("{method}/{workload}"));
        self.ratio(&name, (&sides[0], &sides[1]), moved);
    }

    /// Compares two cases by their names, if both were measured.
    pub(crate) fn ratio(
        &mut self,
        name: &str,
        (baseline, subject): (&str, &str),
        moved: Option<&str>,
    ) {
        let id = format!("{}/{name}", self.name);
        let sides = self.case(baseline).zip(self.case(subject));
        let ratio = sides.map(|(baseline, subject)| Ratio::between(id, baseline, subject));
        self.ratios.extend(ratio.map(|ratio| moved.into_iter().fold(ratio, Ratio::unlike)));
    }

    /// Puts published figures beside the case or ratio with this ID: those of the same workload there, the
    /// others in the list of figures from elsewhere.
    pub(crate) fn put_beside(&mut self, id: &str, ours: &Conditions, figures: Vec<Figure>) {
        let case = self.cases.iter_mut().find(|case| case.id == id);
        let ratio = self.ratios.iter_mut().find(|ratio| ratio.id == id);
        let place = case.map(|case| &mut case.published);
        let Some(place) = place.or(ratio.map(|ratio| &mut ratio.published)) else { return };
        for figure in figures {
            match figure.elsewhere(id, ours) {
                None => place.push(figure.published),
                Some(elsewhere) => self.elsewhere.push(elsewhere),
            }
        }
    }

    /// Adds a part. If all of it failed, the failure is noted by this name.
    pub(crate) fn add(
        &mut self,
        name: &str,
        part: Result<Part, LabError>,
    ) -> Result<(), Interrupted> {
        match part {
            Ok(part) => self.absorb(part),
            Err(LabError::Interrupted(interrupted)) => return Err(interrupted),
            Err(error) => self.failures.push(Failure::of(&format!("{}/{name}", self.name), &error)),
        }
        Ok(())
    }

    /// Adds all that another part has.
    pub(crate) fn absorb(&mut self, part: Part) {
        self.cases.extend(part.cases);
        self.ratios.extend(part.ratios);
        self.elsewhere.extend(part.elsewhere);
        self.notices.extend(part.notices);
        self.distributions.extend(part.distributions);
        self.timelines.extend(part.timelines);
        self.sequences.extend(part.sequences);
        self.failures.extend(part.failures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Quiet, size::Size};

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
