//! From values to places on the drawing, and the places worth a label.

use crate::finding::figure;
use crate::size::Size;

/// How values are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    Linear,
    Log,
}

/// A range of values on a range of the drawing.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    spread: Spread,
    values: (f64, f64),
    places: (f64, f64),
}

/// Beyond this ratio of largest to smallest, a linear axis would hide the small ones.
const WIDE: f64 = 20.0;

impl Axis {
    /// An axis for these values: from zero, or logarithmic where they differ widely.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone, places: (f64, f64)) -> Self {
        let above_zero = values.clone().filter(|&value| value > 0.0);
        let least = above_zero.clone().fold(f64::INFINITY, f64::min);
        let most = above_zero.fold(0.0, f64::max);
        if most > WIDE * least { Self::log(values, places) } else { Self::linear(most, places) }
    }

    /// An axis from zero.
    pub(super) fn linear(most: f64, places: (f64, f64)) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most);
        let values = (0.0, (most / step).ceil() * step);
        Self { spread: Spread::Linear, values, places }
    }

    /// A logarithmic axis, with a little air at both ends.
    pub(super) fn log(values: impl Iterator<Item = f64> + Clone, places: (f64, f64)) -> Self {
        let above_zero = values.filter(|&value| value > 0.0);
        let least = above_zero.clone().fold(f64::INFINITY, f64::min);
        let most = above_zero.fold(0.0, f64::max);
        let (least, most) = if least <= most { (least, most) } else { (1.0, 10.0) };
        Self { spread: Spread::Log, values: (least / 1.12, most * 1.12), places }
    }

    /// Where a value lies; what lies outside is put at the end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let value = value.clamp(low, high);
        let share = match self.spread {
            Spread::Linear => (value - low) / (high - low),
            Spread::Log => (value / low).ln() / (high / low).ln(),
        };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// Values to be labelled.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let (low, high) = self.values;
        match self.spread {
            Spread::Linear => {
                let step = step(high);
                let steps = (high / step).round() as usize;
                let values = (0..=steps).map(|tick| tick as f64 * step);
                values.map(|value| (value, plain(value))).collect()
            }
            Spread::Log => {
                let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
                let few = (high / low).log10() < 2.5;
                let within: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let values = decades.flat_map(|decade| {
                    within.iter().map(move |mantissa| mantissa * 10f64.powi(decade))
                });
                let inside = values.filter(|value| (low..=high).contains(value));
                inside.map(|value| (value, plain(value))).collect()
            }
        }
    }

    /// Labels for sizes in bytes, without those that would touch the one before.
    pub(super) fn size_ticks(&self, sizes: &[f64]) -> Vec<(f64, String)> {
        const ROOM: f64 = 40.0;
        let mut kept: Vec<(f64, String)> = Vec::new();
        for &size in sizes {
            let far = |(other, _): &(f64, String)| self.place(size) - self.place(*other) >= ROOM;
            if kept.last().is_none_or(far) {
                kept.push((size, Size(size as usize).to_string()));
            }
        }
        kept
    }
}

/// About five round steps up to `most`.
fn step(most: f64) -> f64 {
    let rough = most / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let mantissa = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * decade >= rough * 0.999);
    mantissa.unwrap_or(10.0) * decade
}

/// A round number without zeroes behind the point; thousands of thousands short.
fn plain(value: f64) -> String {
    if value >= 1e6 {
        return format!("{}M", value / 1e6);
    }
    if value >= 1e4 {
        return format!("{}k", value / 1e3);
    }
    let text = if value >= 10.0 { format!("{value:.0}") } else { figure(value) };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        let axis = Axis::of(values.iter().copied(), (0.0, 100.0));
        axis.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn close_values_start_at_zero_and_wide_ones_are_logarithmic() {
        assert_eq!(labels(&[9.0, 94.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(&[0.9, 2.1]), ["0", "0.5", "1", "1.5", "2", "2.5"]);
        assert_eq!(labels(&[0.8, 4000.0]), ["1", "10", "100", "1000"]);
        assert_eq!(labels(&[3.0, 90.0]), ["5", "10", "20", "50", "100"]);
    }

    #[test]
    fn places_grow_with_values_within_the_drawing() {
        for values in [vec![1.0, 5.0, 9.0], vec![0.1, 5.0, 900.0]] {
            let axis = Axis::of(values.iter().copied(), (10.0, 20.0));
            let places: Vec<f64> = values.iter().map(|&value| axis.place(value)).collect();
            assert!(places.is_sorted() && places.iter().all(|place| (10.0..=20.0).contains(place)));
        }
    }

    #[test]
    fn nothing_to_show_is_still_an_axis() {
        assert!(labels(&[]).len() > 1 && labels(&[0.0]).len() > 1);
        assert!(Axis::log([].into_iter(), (0.0, 9.0)).place(5.0).is_finite());
    }

    #[test]
    fn labels_of_sizes_do_not_touch() {
        let sizes = [4096.0, 8192.0, 65536.0];
        let axis = Axis::log(sizes.into_iter(), (0.0, 100.0));
        let labels: Vec<String> = axis.size_ticks(&sizes).into_iter().map(|(_, l)| l).collect();
        assert_eq!(labels, ["4KiB", "64KiB"]);
    }
}
