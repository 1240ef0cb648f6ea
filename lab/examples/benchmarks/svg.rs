//! A drawing on a logarithmic axis, as SVG. Its colours follow the reader's light or dark mode.

// Writing to a String cannot fail, so the results of `write!` are dropped.
use std::fmt::Write;

/// The size of letters, and the width of one in a wide font.
const FONT: f64 = 15.0;
const LETTER: f64 = 9.2;

/// Left of the axis are the names of the rows.
const LEFT: f64 = 205.0;
const RIGHT: f64 = 840.0;
const WIDTH: f64 = 880.0;

/// Above the rows are the title and the legend.
const TOP: f64 = 66.0;
/// Below them are the labels of the axis.
const BOTTOM: f64 = 34.0;

/// Colours after Okabe and Ito, which colour-blind readers can tell apart: `gain` is blue and `loss` is orange.
const STYLE: &str = "svg{font-family:sans-serif;font-size:15px}\
    .paper{fill:#fff}.ink{fill:#1b1b1f}.soft{fill:#55585f}.grid{stroke:#d4d6db}.rule{stroke:#55585f}\
    .gain{fill:#0072b2;stroke:#0072b2}.loss{fill:#c24e00;stroke:#c24e00}.other{fill:#55585f;stroke:#55585f}\
    .hollow{fill:#fff}.title{font-weight:600}\
    @media(prefers-color-scheme:dark){\
    .paper{fill:#16171a}.ink{fill:#ececf0}.soft{fill:#a9acb5}.grid{stroke:#3c3f46}.rule{stroke:#a9acb5}\
    .gain{fill:#56b4e9;stroke:#56b4e9}.loss{fill:#f08a4b;stroke:#f08a4b}.other{fill:#a9acb5;stroke:#a9acb5}\
    .hollow{fill:#16171a}}";

/// A class of the style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StyleClass {
    Gain,
    Loss,
    Other,
}

impl StyleClass {
    const fn name(self) -> &'static str {
        match self {
            Self::Gain => "gain",
            Self::Loss => "loss",
            Self::Other => "other",
        }
    }
}

/// The decades of the axis, and the labels of values on it.
pub(crate) struct DecadeAxis {
    decades: std::ops::RangeInclusive<i32>,
    label: fn(f64) -> String,
}

impl DecadeAxis {
    /// The decades that these values need.
    pub(crate) fn of(values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Self {
        let (low, high) = values
            .map(f64::log10)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        Self { decades: low.floor() as i32..=high.ceil() as i32, label }
    }

    fn place(&self, value: f64) -> f64 {
        let (from, to) = (f64::from(*self.decades.start()), f64::from(*self.decades.end()));
        let share = (value.log10() - from) / (to - from);
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

/// A drawing that grows downwards, row by row.
pub(crate) struct Drawing {
    axis: DecadeAxis,
    marks: String,
    bottom: f64,
}

impl Drawing {
    pub(crate) const fn new(axis: DecadeAxis) -> Self {
        Self { axis, marks: String::new(), bottom: TOP }
    }

    /// The place of a value on the axis, in pixels.
    pub(crate) fn place(&self, value: f64) -> f64 {
        self.axis.place(value)
    }

    /// A new row with its name; returns the height of its middle.
    pub(crate) fn row(&mut self, name: &str, height: f64) -> f64 {
        let middle = self.bottom + height / 2.0;
        self.bottom += height;
        let (x, y) = (LEFT - 12.0, middle + FONT * 0.35);
        let name = escaped(name);
        let _ = writeln!(
            self.marks,
            "<text class=\"ink\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>"
        );
        middle
    }

    /// A line of words between rows.
    pub(crate) fn heading(&mut self, words: &str) {
        self.bottom += FONT * 2.0;
        let y = self.bottom - FONT * 0.5;
        let words = escaped(words);
        let _ = writeln!(self.marks, "<text class=\"soft\" x=\"14\" y=\"{y:.1}\">{words}</text>");
    }

    /// A point at a value, hollow or filled.
    pub(crate) fn dot(
        &mut self,
        class: StyleClass,
        is_hollow: bool,
        (value, y): (f64, f64),
        radius: f64,
    ) {
        let mark = dot(class, is_hollow, (self.axis.place(value), y), radius);
        self.marks.push_str(&mark);
    }

    /// A line between two values.
    pub(crate) fn line(&mut self, class: StyleClass, (from, to): (f64, f64), y: f64) {
        let (from, to) = (self.axis.place(from), self.axis.place(to));
        let class = class.name();
        let _ = writeln!(
            self.marks,
            "<line class=\"{class}\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke-width=\"2\"/>"
        );
    }

    /// Words to the right of a range of values, or to its left if there is no room.
    pub(crate) fn words(&mut self, words: &str, (from, to): (f64, f64), y: f64) {
        let (from, to) = (self.axis.place(from), self.axis.place(to));
        let is_right = to + 10.0 + words.chars().count() as f64 * LETTER < WIDTH;
        let (x, anchor) = if is_right { (to + 10.0, "start") } else { (from - 10.0, "end") };
        let (y, words) = (y + FONT * 0.35, escaped(words));
        let _ = writeln!(
            self.marks,
            "<text class=\"soft\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
        );
    }

    /// The whole SVG. `rule` is a value with a line of its own; the description says what the drawing shows.
    pub(crate) fn finish(
        self,
        title: &str,
        description: &str,
        legend: &[(StyleClass, bool, String)],
        rule: Option<f64>,
    ) -> String {
        let height = self.bottom + BOTTOM;
        let (title, description) = (escaped(title), escaped(description));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>{title}</title>\n<desc>{description}</desc>\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"6\"/>\n\
             <text class=\"ink title\" x=\"14\" y=\"26\">{title}</text>\n"
        );
        let mut x = 20.0;
        for (class, is_hollow, words) in legend {
            svg += &dot(*class, *is_hollow, (x, 46.0), 4.0);
            let _ = writeln!(
                svg,
                "<text class=\"soft\" x=\"{}\" y=\"51\">{}</text>",
                x + 11.0,
                escaped(words)
            );
            x += words.chars().count() as f64 * LETTER + 36.0;
        }
        let bottom = self.bottom;
        for decade in self.axis.decades.clone() {
            let value = 10_f64.powi(decade);
            let (x, y) = (self.axis.place(value), bottom + FONT + 6.0);
            let class = if rule == Some(value) { "rule" } else { "grid" };
            let label = (self.axis.label)(value);
            let _ = writeln!(
                svg,
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>"
            );
            let _ = writeln!(
                svg,
                "<text class=\"soft\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
            );
        }
        svg + &self.marks + "</svg>\n"
    }
}

fn dot(class: StyleClass, is_hollow: bool, (x, y): (f64, f64), radius: f64) -> String {
    let class = class.name();
    // The later class decides about the filling.
    let class = if is_hollow { format!("{class} hollow") } else { class.to_owned() };
    format!(
        "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" stroke-width=\"1.2\"/>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_placed_by_their_logarithm() {
        let axis = DecadeAxis::of([0.2, 50.0].into_iter(), |value| value.to_string());
        assert_eq!(axis.decades, -1..=2);
        assert_eq!([0.1, 100.0, 1e9].map(|value| axis.place(value)), [LEFT, RIGHT, RIGHT]);
        assert!((axis.place(1.0) - (LEFT + (RIGHT - LEFT) / 3.0)).abs() < 1e-9);
    }

    #[test]
    fn words_are_never_markup() {
        let mut drawing =
            Drawing::new(DecadeAxis::of([1.0, 10.0].into_iter(), |value| value.to_string()));
        let y = drawing.row("a < b", 20.0);
        drawing.words("\"<i>", (1.0, 1.0), y);
        let svg = drawing.finish("<b>", "&", &[(StyleClass::Gain, true, "c>d".into())], Some(1.0));
        assert!(svg.contains("a &lt; b") && svg.contains("&quot;&lt;i&gt;"), "{svg}");
        assert!(!svg.contains("<b>") && svg.contains("<desc>&amp;</desc>"), "{svg}");
    }
}
