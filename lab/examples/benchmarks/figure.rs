//! A figure over all kept runs of one machine, as a table's cell has it.

use std::fmt;

use hugekit_lab::record::{Case, Ratio, Record, Unit};

/// What a ratio must be below to count as a loss when it is printed with two decimals.
const LOSS: f64 = 0.995;

/// The medians of all runs, and the lowest and the highest single round.
#[derive(Debug)]
pub(crate) struct Figure {
    medians: Vec<f64>,
    rounds: (f64, f64),
    /// Of a case; a ratio has none.
    unit: Option<Unit>,
    like_for_like: bool,
}

impl Figure {
    /// The ratio or case with this ID; `None` if no run has it.
    pub(crate) fn find(runs: &[&Record], id: &str) -> Option<Self> {
        let experiments = || runs.iter().flat_map(|run| &run.experiments);
        let ratios: Vec<&Ratio> =
            experiments().flat_map(|one| &one.ratios).filter(|one| one.id == id).collect();
        let cases: Vec<&Case> =
            experiments().flat_map(|one| &one.cases).filter(|one| one.id == id).collect();
        let unit = cases.first().map(|case| case.unit);
        if ratios.is_empty() && unit.is_none() {
            return None;
        }
        let of_ratios = ratios.iter().flat_map(|ratio| [ratio.min, ratio.max]);
        let rounds: Vec<f64> =
            of_ratios.chain(cases.iter().flat_map(|case| case.samples.clone())).collect();
        let medians = ratios.iter().map(|ratio| ratio.median);
        Some(Self {
            medians: medians.chain(cases.iter().map(|case| case.median())).collect(),
            rounds: ends(&rounds),
            unit,
            like_for_like: ratios.iter().all(|ratio| ratio.like_for_like),
        })
    }

    /// The middle of the runs' medians.
    pub(crate) fn median(&self) -> f64 {
        let unit = self.unit.unwrap_or(Unit::GibPerSecond);
        let (id, samples) = (String::new(), self.medians.clone());
        Case { id, unit, samples, published: Vec::new() }.median()
    }

    /// Microseconds become milliseconds from 1,000 on.
    fn scale(&self) -> (f64, &'static str) {
        match self.unit {
            Some(Unit::Microseconds) if self.median() >= 1000.0 => (1e-3, " ms"),
            Some(Unit::Microseconds) => (1.0, " µs"),
            Some(Unit::GibPerSecond) => (1.0, " GiB/s"),
            Some(Unit::Mebibytes) => (1.0, " MiB"),
            Some(Unit::Faults) => (1.0, " faults"),
            Some(Unit::Percent) => (1.0, " %"),
            Some(unit) => (1.0, unit.name()),
            None => (1.0, ""),
        }
    }

    /// Losses are bold: only ratios can be losses.
    fn number(&self, value: f64) -> String {
        self.marked(value, digits(value * self.scale().0))
    }

    fn range(&self, (low, high): (f64, f64)) -> String {
        let [first, last] = [low, high].map(|value| digits(value * self.scale().0));
        match (first == last, high < LOSS) {
            (true, _) => self.marked(low, first),
            (false, true) => self.marked(high, format!("{first}–{last}")),
            (false, false) => format!("{}–{last}", self.marked(low, first)),
        }
    }

    fn marked(&self, value: f64, text: String) -> String {
        if self.unit.is_none() && value < LOSS { format!("**{text}**") } else { text }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = self.number(self.median()) + self.scale().1;
        let (runs, rounds) = (self.range(ends(&self.medians)), self.range(self.rounds));
        let mark = if self.like_for_like { "" } else { " \\*" };
        write!(f, "{median} ({runs}) [{rounds}]{mark}")
    }
}

fn ends(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, 0.0), |(low, high), &value| (low.min(value), high.max(value)))
}

/// Three digits, or two decimals.
fn digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(unit: Option<Unit>, medians: &[f64], rounds: (f64, f64)) -> String {
        let medians = medians.to_vec();
        Figure { medians, rounds, unit, like_for_like: unit.is_some() }.to_string()
    }

    #[test]
    fn median_runs_and_rounds_are_printed_and_losses_are_bold() {
        assert_eq!(
            figure(None, &[1.2, 0.9, 1.0], (0.5, 132.4)),
            "1.00 (**0.90**–1.20) [**0.50**–132] \\*"
        );
        assert_eq!(
            figure(None, &[0.7, 0.8], (0.6, 0.9)),
            "**0.75** (**0.70–0.80**) [**0.60–0.90**] \\*"
        );
        assert_eq!(figure(None, &[0.994], (0.996, 1.004)), "**0.99** (**0.99**) [1.00] \\*");
    }

    #[test]
    fn times_have_the_unit_of_their_median_and_are_no_losses() {
        let unit = Some(Unit::Microseconds);
        assert_eq!(figure(unit, &[0.5, 0.7], (0.4, 0.8)), "0.60 µs (0.50–0.70) [0.40–0.80]");
        assert_eq!(figure(unit, &[1500.0], (900.0, 25_000.0)), "1.50 ms (1.50) [0.90–25.0]");
    }
}
