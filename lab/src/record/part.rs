//! Putting an experiment together: cases that were measured, how they compare, published figures beside them.

use crate::record::published::{Conditions, PublishedFigure};
use crate::record::{Case, Experiment, Ratio, Unit};

impl Experiment {
    /// Only a word to the reader.
    pub fn notice(notice: impl Into<String>) -> Self {
        Self { notices: vec![notice.into()], ..Self::default() }
    }

    /// Adds a case, if it has samples.
    pub fn add_case(&mut self, name: &str, unit: Unit, samples: Vec<f64>) {
        if !samples.is_empty() {
            self.cases.push(Case::new(format!("{}/{name}", self.name), unit, samples));
        }
    }

    /// The case of this name, `method/workload`, if it was measured.
    pub fn case(&self, name: &str) -> Option<&Case> {
        let rest = |case: &Case| case.id.split_once('/').is_some_and(|(_, rest)| rest == name);
        self.cases.iter().find(|case| rest(case))
    }

    /// Compares two methods on a workload, if both were measured. `moved` says why they are not like for like.
    pub fn compare(
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
    pub fn ratio(&mut self, name: &str, (baseline, subject): (&str, &str), moved: Option<&str>) {
        let id = format!("{}/{name}", self.name);
        let sides = self.case(baseline).zip(self.case(subject));
        let ratio = sides.map(|(baseline, subject)| Ratio::between(id, baseline, subject));
        self.ratios.extend(ratio.map(|ratio| moved.into_iter().fold(ratio, Ratio::unlike)));
    }

    /// Puts published figures beside the case or ratio with this ID: those of the same workload there, the
    /// others in the list of figures from elsewhere.
    pub fn put_beside(&mut self, id: &str, ours: &Conditions, figures: Vec<PublishedFigure>) {
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

    /// Adds all that another part has.
    pub fn absorb(&mut self, part: Self) {
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
