//! A drawing: what it is given, and the SVG that the crate `plotters` makes of it.
//!
//! `plotters` was chosen because it draws logarithmic axes without a script or a network and is widely used:
//! `charming` needs a JavaScript engine and `poloto` has linear axes only. Colours in the SVG are those of the
//! light scheme; the style sheet replaces each of them in the dark one. Looks differ in colour and in the shape
//! of their points, so that either may be missed.

use crate::table::figure;
use maud::{Markup, PreEscaped, html};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of every drawing. Drawings are scaled to their place, at most to half of this.
const WIDTH: u32 = 880;

/// The font, and the width of the widest usual letter.
const FONT: (&str, u32) = ("sans-serif", 27);
const LETTER: f64 = 13.4;

/// Looks that differ in colour.
pub(super) const LOOKS: usize = 7;

/// The colours of the style sheet.
const COLORS: [RGBColor; LOOKS] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xc2, 0x4e, 0x00),
    RGBColor(0x00, 0x80, 0x5d),
    RGBColor(0xa8, 0x48, 0x7f),
    RGBColor(0x8a, 0x61, 0x00),
    RGBColor(0x2b, 0x7b, 0xa6),
    RGBColor(0x44, 0x44, 0x44),
];
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const INK: RGBColor = RGBColor(0x1b, 0x1b, 0x1f);
const SOFT: RGBColor = RGBColor(0x55, 0x58, 0x5f);
const RULE: RGBColor = RGBColor(0xd4, 0xd6, 0xdb);

/// Shapes of points, as the legend shows them.
const SHAPES: [&str; 4] = ["●", "▲", "■", "◆"];

/// Beyond this ratio of largest to smallest, a linear axis would hide the small ones.
const WIDE: f64 = 20.0;

/// A range of values, and the values that have a label.
#[derive(Clone, Debug)]
pub(super) struct PlotAxis {
    pub(super) from: f64,
    pub(super) to: f64,
    is_log: bool,
    ticks: Vec<(f64, String)>,
}

impl PlotAxis {
    /// For these values: from zero, or logarithmic where they differ widely.
    pub(super) fn of(values: &[f64]) -> Self {
        let (least, most) = extremes(values);
        if most > WIDE * least { Self::log(values) } else { Self::linear(most) }
    }

    /// From zero, in about five round steps.
    pub(super) fn linear(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let decade = 10_f64.powf((most / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|mantissa| mantissa * decade);
        let step = steps.into_iter().find(|step| step * 5.0 >= most * 0.999).unwrap_or(most);
        let count = (most / step).ceil();
        let ticks = (0..=count as usize).map(|tick| tick as f64 * step);
        let ticks = ticks.map(|tick| (tick, short(tick))).collect();
        Self { from: 0.0, to: count * step, is_log: false, ticks }
    }

    /// Logarithmic, with a little air at both ends.
    pub(super) fn log(values: &[f64]) -> Self {
        let (least, most) = extremes(values);
        let (from, to) = if least <= most { (least / 1.15, most * 1.15) } else { (1.0, 10.0) };
        let is_narrow = (to / from).log10() < 2.5;
        let mantissas: &[f64] = if is_narrow { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
        let all = decades.flat_map(|decade| mantissas.iter().map(move |m| m * 10_f64.powi(decade)));
        let ticks = all.filter(|tick| (from..=to).contains(tick));
        let ticks = ticks.map(|tick| (tick, short(tick))).collect();
        Self { from, to, is_log: true, ticks }
    }

    /// With labels at these values, but for those that would touch the one before.
    pub(super) fn labelled(self, labels: impl IntoIterator<Item = (f64, String)>) -> Self {
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for label in labels {
            if ticks.last().is_none_or(|(last, _)| self.share(label.0) - self.share(*last) > 0.11) {
                ticks.push(label);
            }
        }
        Self { ticks, ..self }
    }

    /// Rows from the top down, each one high, with labels where these are.
    pub(super) fn rows(count: usize, ticks: Vec<(f64, String)>) -> Self {
        Self { from: count as f64, to: 0.0, is_log: false, ticks }
    }

    /// The place of a value, from 0 to 1. Values outside are placed at the nearest end.
    pub(super) fn share(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    pub(super) fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }
}

/// The smallest and the largest above zero. A record of a stranger may have numbers that no axis can have.
fn extremes(values: &[f64]) -> (f64, f64) {
    let above_zero = || values.iter().copied().filter(|value| (1e-300..1e300).contains(value));
    (above_zero().fold(f64::INFINITY, f64::min), above_zero().fold(0.0, f64::max))
}

/// A round number without zeroes behind the point; thousands of thousands short.
fn short(value: f64) -> String {
    let trimmed = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value {
        1e9.. => format!("{value:.0e}"),
        1e6.. => format!("{}M", value / 1e6),
        1e4.. => format!("{}k", value / 1e3),
        10.0.. => format!("{value:.0}"),
        0.0 => "0".to_owned(),
        ..0.01 => format!("{value:.0e}"),
        _ => trimmed(figure(value)),
    }
}

impl Ranged for PlotAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        low + (self.share(*value) * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for PlotAxis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map_or(String::new(), |(_, label)| label.clone())
    }
}

/// The look of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkLook {
    /// A measurement, in the colour and shape of this number.
    Main(usize),
    /// The same with dashes: published figures, and other lines to compare with.
    Dashed(usize),
    /// Measured too, and not what the drawing is about.
    Beside,
    /// A place or level worth a line.
    Rule,
}

impl MarkLook {
    fn color(self) -> RGBColor {
        match self {
            Self::Main(look) | Self::Dashed(look) => COLORS[look % LOOKS],
            Self::Beside | Self::Rule => SOFT,
        }
    }

    fn legend(self) -> Markup {
        let sign = match self {
            Self::Main(look) => SHAPES[look % SHAPES.len()].to_owned(),
            Self::Dashed(look) => format!("┄{}┄", SHAPES[look % SHAPES.len()]),
            Self::Rule => "┄┄".to_owned(),
            Self::Beside => "─".to_owned(),
        };
        let class = match self {
            Self::Main(look) | Self::Dashed(look) => format!("s{}", look % LOOKS),
            Self::Beside | Self::Rule => String::new(),
        };
        html! { span class=(class) aria-hidden="true" { (sign) " " } }
    }
}

type At = (f64, f64);

/// A part of a drawing, in the order in which they are drawn.
#[derive(Debug)]
pub(super) enum Mark {
    Line(MarkLook, Vec<At>),
    /// Hollow if it is not like for like.
    Point {
        look: usize,
        at: At,
        is_hollow: bool,
    },
    /// A single sample.
    Dot(usize, At),
    Box(usize, [At; 2]),
    Words(At, String),
}

#[derive(Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    /// The drawing in words.
    pub(super) description: String,
    pub(super) x: PlotAxis,
    pub(super) y: PlotAxis,
    pub(super) x_label: &'static str,
    pub(super) y_label: String,
    pub(super) height: u32,
    pub(super) marks: Vec<Mark>,
    pub(super) legend: Vec<(MarkLook, String)>,
}

impl Plot {
    /// The figure with its caption, drawing and legend.
    pub(super) fn render(&self) -> Markup {
        let mut svg = String::new();
        self.draw(&mut svg).expect("drawing to memory does not fail");
        html! {
            figure {
                figcaption { (self.title) }
                div.plot role="img" aria-label=(self.description) { (PreEscaped(svg)) }
                @if !self.legend.is_empty() {
                    ul.legend { @for (look, name) in &self.legend { li { (look.legend()) (name) } } }
                }
            }
        }
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let area = SVGBackend::with_string(svg, (WIDTH, self.height)).into_drawing_area();
        let letters = self.y.ticks.iter().map(|(_, label)| label.chars().count()).max();
        let left = (letters.unwrap_or(0) as f64 * LETTER) as u32 + 26;
        let mut chart = ChartBuilder::on(&area)
            .margin_top(if self.y_label.is_empty() { 16 } else { 46 })
            .margin_right(30)
            .x_label_area_size(if self.x_label.is_empty() { 44 } else { 74 })
            .y_label_area_size(left)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let soft = TextStyle::from(FONT).color(&SOFT);
        chart
            .configure_mesh()
            .bold_line_style(RULE)
            .light_line_style(TRANSPARENT)
            .axis_style(RULE)
            .label_style(soft.clone())
            .draw()?;
        for mark in &self.marks {
            draw(&mut chart, mark)?;
        }
        let bottom_right = ((WIDTH - 30) as i32, self.height as i32 - 6);
        area.draw(&Text::new(self.y_label.as_str(), (4, 8), soft.clone()))?;
        let right = soft.pos(Pos::new(HPos::Right, VPos::Bottom));
        area.draw(&Text::new(self.x_label, bottom_right, right))?;
        area.present()
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<PlotAxis, PlotAxis>>;

fn draw(
    chart: &mut Chart<'_, '_>,
    mark: &Mark,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let area = chart.plotting_area();
    match mark {
        Mark::Line(look @ (MarkLook::Dashed(_) | MarkLook::Rule), points) => {
            let style = look.color().stroke_width(if *look == MarkLook::Rule { 2 } else { 3 });
            area.draw(&DashedPathElement::new(points.clone(), 9, 9, style))
        }
        Mark::Line(look, points) => {
            let width = if *look == MarkLook::Beside { 2 } else { 4 };
            area.draw(&PathElement::new(points.clone(), look.color().stroke_width(width)))
        }
        Mark::Point { look, at, is_hollow } => {
            let (outline, fill) = (COLORS[look % LOOKS].stroke_width(3), COLORS[look % LOOKS]);
            let fill = if *is_hollow { PAPER.filled() } else { fill.filled() };
            let shape = shape(*look);
            area.draw(&(EmptyElement::at(*at) + Polygon::new(shape.clone(), fill)))?;
            area.draw(&(EmptyElement::at(*at) + PathElement::new(closed(shape), outline)))
        }
        Mark::Dot(look, at) => {
            area.draw(&Circle::new(*at, 4, COLORS[look % LOOKS].mix(0.45).filled()))
        }
        Mark::Box(look, corners) => {
            area.draw(&Rectangle::new(*corners, COLORS[look % LOOKS].mix(0.6).filled()))
        }
        Mark::Words(at, words) => {
            let style = TextStyle::from(FONT).color(&INK);
            area.draw(&(EmptyElement::at(*at) + Text::new(words.clone(), (8, 2), style)))
        }
    }
}

/// The corners of a point, around it.
fn shape(look: usize) -> Vec<(i32, i32)> {
    match look % SHAPES.len() {
        0 => {
            let angles = (0..12).map(|step| f64::from(step) / 12.0 * std::f64::consts::TAU);
            angles
                .map(|at| ((at.cos() * 7.0).round() as i32, (at.sin() * 7.0).round() as i32))
                .collect()
        }
        1 => vec![(0, -9), (8, 6), (-8, 6)],
        2 => vec![(-6, -6), (6, -6), (6, 6), (-6, 6)],
        _ => vec![(0, -9), (9, 0), (0, 9), (-9, 0)],
    }
}

fn closed(mut corners: Vec<(i32, i32)>) -> Vec<(i32, i32)> {
    corners.extend(corners.first().copied());
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &PlotAxis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn close_values_start_at_zero_and_wide_ones_are_logarithmic() {
        let of = |values: &[f64]| labels(&PlotAxis::of(values)).join(" ");
        assert_eq!(of(&[9.0, 94.0]), "0 20 40 60 80 100");
        assert_eq!(of(&[0.9, 2.1]), "0 0.5 1 1.5 2 2.5");
        assert_eq!(of(&[0.8, 4000.0]), "1 10 100 1000");
        assert_eq!(of(&[3.0, 90.0]), "5 10 20 50 100");
    }

    #[test]
    fn places_grow_with_values_within_the_drawing() {
        for values in [&[1.0, 5.0, 9.0], &[0.1, 5.0, 900.0]] {
            let axis = PlotAxis::of(values);
            let places = values.map(|value| axis.map(&value, (10, 20)));
            assert!(places.is_sorted() && places.iter().all(|place| (10..=20).contains(place)));
        }
    }

    #[test]
    fn nothing_to_show_is_still_an_axis() {
        assert!(PlotAxis::of(&[]).ticks.len() > 1 && PlotAxis::of(&[0.0]).ticks.len() > 1);
        assert!(PlotAxis::log(&[]).share(5.0).is_finite());
        for values in [[5e-324, f64::MAX], [-1.0, f64::MAX], [1e-299, 1e299]] {
            let labels = PlotAxis::of(&values).ticks;
            assert!(labels.len() < 700 && labels.iter().all(|(_, label)| label.len() < 9));
        }
    }

    #[test]
    fn labels_do_not_touch() {
        let sizes = [4096.0, 4097.0, 65536.0];
        let axis = PlotAxis::log(&sizes).labelled(sizes.map(|size| (size, size.to_string())));
        assert_eq!(labels(&axis), ["4096", "65536"]);
    }
}
