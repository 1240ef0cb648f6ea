//! A measured value with its ranges, in the parts that every printing has.

use crate::record::Unit;

/// A ratio below this prints as less than 1.00.
const LOSS: f64 = 0.995;

/// A number with three digits, or with two decimals if it is below 10.
#[must_use]
pub fn figure(number: f64) -> String {
    match number {
        number if number < 9.995 => format!("{number:.2}"),
        number if number < 99.95 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

/// A value, and the ranges in which it lay. Ratios below 1 are losses, which every printing emphasizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    value: f64,
    /// Printed behind the value. Microseconds become milliseconds from 1,000 on.
    unit: Option<Unit>,
    is_ratio: bool,
    runs: Option<(f64, f64)>,
    rounds: Option<(f64, f64)>,
    pub(super) note: Option<usize>,
}

/// A piece of a printed figure, and whether it is a loss.
pub(super) type Piece = (String, bool);

impl Figure {
    /// A value whose unit stands elsewhere.
    #[must_use]
    pub const fn plain(value: f64) -> Self {
        Self { value, unit: None, is_ratio: false, runs: None, rounds: None, note: None }
    }

    /// A number of times as fast.
    #[must_use]
    pub const fn ratio(value: f64) -> Self {
        Self { is_ratio: true, ..Self::plain(value) }
    }

    /// A value with its unit.
    #[must_use]
    pub const fn of(value: f64, unit: Unit) -> Self {
        Self { unit: Some(unit), ..Self::plain(value) }
    }

    /// With the range of the medians of several runs, in parentheses.
    #[must_use]
    pub const fn within_runs(self, runs: (f64, f64)) -> Self {
        Self { runs: Some(runs), ..self }
    }

    /// With the range of single rounds, in brackets.
    #[must_use]
    pub const fn within_rounds(self, rounds: (f64, f64)) -> Self {
        Self { rounds: Some(rounds), ..self }
    }

    /// With a mark that refers to a note of the table.
    #[must_use]
    pub const fn noted(self, note: usize) -> Self {
        Self { note: Some(note), ..self }
    }

    /// The value, without its unit.
    #[must_use]
    pub const fn value(&self) -> f64 {
        self.value
    }

    /// The unit that is printed behind the value.
    #[must_use]
    pub const fn unit(&self) -> Option<Unit> {
        self.unit
    }

    /// True if a note of the table is about this figure.
    #[must_use]
    pub const fn is_noted(&self) -> bool {
        self.note.is_some()
    }

    /// True for a ratio that prints as less than 1.00.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.loses(self.value)
    }

    fn loses(&self, value: f64) -> bool {
        self.is_ratio && value < LOSS
    }

    /// The factor of the printed values, and their unit.
    fn scale(&self) -> (f64, &'static str) {
        match self.unit {
            Some(Unit::Microseconds) if self.value >= 1000.0 => (1e-3, "ms"),
            Some(unit) => (1.0, unit.name()),
            None => (1.0, ""),
        }
    }

    fn piece(&self, value: f64) -> Piece {
        (figure(value * self.scale().0), self.loses(value))
    }

    /// The value and its unit, `(the range of runs)` and `[the range of rounds]`.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut pieces = vec![self.piece(self.value)];
        let unit = self.scale().1;
        pieces.extend((!unit.is_empty()).then(|| (format!(" {unit}"), false)));
        for (range, [open, close]) in [(self.runs, [" (", ")"]), (self.rounds, [" [", "]"])] {
            let Some(range) = range else { continue };
            pieces.push((open.to_owned(), false));
            pieces.extend(self.range(range));
            pieces.push((close.to_owned(), false));
        }
        pieces
    }

    /// Both ends, or one figure if they print alike.
    fn range(&self, (low, high): (f64, f64)) -> Vec<Piece> {
        let (low, high) = (self.piece(low), self.piece(high));
        match (low.0 == high.0, low.1 && high.1) {
            (true, _) => vec![low],
            (false, true) => vec![(format!("{}–{}", low.0, high.0), true)],
            (false, false) => vec![low, (format!("–{}", high.0), false)],
        }
    }

    /// All pieces as they are, without emphasis.
    pub(super) fn text(&self) -> String {
        self.pieces().into_iter().map(|(text, _)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(
            [0.123, 9.5, 9.996, 12.34, 99.97, 12345.6].map(figure),
            ["0.12", "9.50", "10.0", "12.3", "100", "12346"]
        );
    }

    #[test]
    fn a_figure_has_its_unit_and_its_ranges() {
        let time = |value| Figure::of(value, Unit::Microseconds);
        assert_eq!(time(0.6).within_runs((0.5, 0.7)).text(), "0.60 µs (0.50–0.70)");
        let times = time(1500.0).within_runs((1500.0, 1500.0)).within_rounds((900.0, 25_000.0));
        assert_eq!(times.text(), "1.50 ms (1.50) [0.90–25.0]");
        assert_eq!(Figure::ratio(2.0).within_rounds((1.0, 132.4)).text(), "2.00 [1.00–132]");
    }

    #[test]
    fn only_ratios_are_losses() {
        assert!(Figure::ratio(0.994).is_loss() && !Figure::ratio(0.996).is_loss());
        assert!(!Figure::plain(0.5).is_loss() && !Figure::of(0.5, Unit::Microseconds).is_loss());
    }
}
