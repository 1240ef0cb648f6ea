//! A drawing of lines: what it is given, and the SVG that comes out.
//!
//! Series differ in colour, in the shape of their points and in their dashes, so that each of these may
//! be missed. Colours are names of the style sheet, which has them for light and dark.

use maud::{Markup, html};

use super::axis::Axis;

/// Width of every drawing; its height is its own. Drawings are scaled to their place, and this is about the
/// width of a telephone, so that labels stay readable there.
pub(super) const WIDTH: f64 = 440.0;

/// Width of a letter in the widest font that is usual.
pub(super) const LETTER: f64 = 6.9;

const HEIGHT: f64 = 266.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// Series that have a colour and shape of their own.
pub(super) const DISTINCT: usize = 7;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A measurement, in one of [`DISTINCT`] looks.
    Main(usize),
    /// Measured too, and not what the drawing is about.
    Beside,
    /// Published figures, in one of [`DISTINCT`] looks.
    Published(usize),
    /// The ideal.
    Ideal,
}

/// Values by one name, in the order of their `x`.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) points: Vec<Point>,
}

#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// In words, for a reader who points at it.
    pub(super) label: String,
    /// Drawn hollow if not like for like.
    pub(super) hollow: bool,
}

/// The meaning of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    Bytes,
    Threads,
    Calls,
}

#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    /// The drawing in words.
    pub(super) description: String,
    pub(super) along: Along,
    pub(super) x_label: &'static str,
    pub(super) y_label: String,
    pub(super) series: Vec<Series>,
    /// Places on the `x` axis worth a line, such as the sizes of caches.
    pub(super) marks: Vec<(f64, &'static str)>,
    /// A value worth a line, such as that of equal speed.
    pub(super) level: Option<f64>,
}

impl Chart {
    fn points(&self) -> impl Iterator<Item = &Point> + Clone {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn x_axis(&self) -> Axis {
        Axis::log(self.points().map(|point| point.x), (LEFT + 8.0, RIGHT - 8.0))
    }

    fn x_ticks(&self, axis: &Axis) -> Vec<(f64, String)> {
        let mut xs: Vec<f64> = self.points().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        match self.along {
            Along::Bytes => axis.size_ticks(&xs),
            Along::Threads => xs.into_iter().map(|x| (x, format!("{x}"))).collect(),
            // Of many calls, every label would touch its neighbours.
            Along::Calls => {
                let doubled = xs.into_iter().filter(|x| (*x as u64).is_power_of_two());
                doubled.map(|x| (x, format!("{x}"))).collect()
            }
        }
    }

    /// The figure with its caption, drawing and legend.
    pub(super) fn render(&self, id: &str) -> Markup {
        let x = self.x_axis();
        let y = Axis::of(self.points().map(|point| point.y).chain(self.level), (BOTTOM, TOP));
        html! {
            figure {
                figcaption { (self.title) }
                svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-labelledby={ (id) "-t " (id) "-d" } {
                    title id={ (id) "-t" } { (self.title) }
                    desc id={ (id) "-d" } { (self.description) }
                    g.grid {
                        @for (value, label) in y.ticks() {
                            (line(LEFT, y.place(value), RIGHT, y.place(value)))
                            (text(LEFT - 6.0, y.place(value) + 3.5, "end", &label))
                        }
                        @for (value, label) in self.x_ticks(&x) {
                            (line(x.place(value), BOTTOM, x.place(value), BOTTOM + 4.0))
                            (text(x.place(value), BOTTOM + 16.0, "middle", &label))
                        }
                    }
                    g.marks { @for mark in self.marks_within() { (self.mark(&x, mark)) } }
                    @if let Some(level) = self.level { g.level { (line(LEFT, y.place(level), RIGHT, y.place(level))) } }
                    @for series in drawn_last(&self.series) { (series.render(&x, &y)) }
                    (text(LEFT - 40.0, 12.0, "start", &self.y_label))
                    (text(RIGHT, HEIGHT - 6.0, "end", self.x_label))
                }
                (legend(&self.series))
            }
        }
    }

    fn marks_within(&self) -> impl Iterator<Item = &(f64, &'static str)> {
        let (least, most) = self.points().fold((f64::INFINITY, 0.0_f64), |(least, most), point| {
            (least.min(point.x), most.max(point.x))
        });
        self.marks.iter().filter(move |(at, _)| (least..=most).contains(at))
    }

    fn mark(&self, x: &Axis, (at, name): &(f64, &'static str)) -> Markup {
        html! {
            (line(x.place(*at), TOP, x.place(*at), BOTTOM))
            // Above the drawing, where no series passes.
            (text(x.place(*at), TOP - 4.0, "middle", name))
        }
    }
}

/// The drawing's subject comes to lie above the rest.
fn drawn_last(series: &[Series]) -> impl Iterator<Item = &Series> {
    let is_main = |series: &&Series| matches!(series.role, Role::Main(_));
    series.iter().filter(move |s| !is_main(s)).chain(series.iter().filter(is_main))
}

impl Series {
    fn class(&self) -> String {
        match self.role {
            Role::Main(look) => format!("series s{look}"),
            Role::Beside => "series beside".to_owned(),
            Role::Published(look) => format!("series published s{look}"),
            Role::Ideal => "series ideal".to_owned(),
        }
    }

    fn shape(&self) -> Option<usize> {
        match self.role {
            Role::Main(look) | Role::Published(look) => Some(look),
            Role::Beside | Role::Ideal => None,
        }
    }

    fn render(&self, x: &Axis, y: &Axis) -> Markup {
        let places: Vec<(f64, f64)> =
            self.points.iter().map(|point| (x.place(point.x), y.place(point.y))).collect();
        html! {
            g class=(self.class()) {
                path.line d=(polyline(&places)) { title { (self.name) } }
                @if let Some(shape) = self.shape() {
                    @for (point, &(x, y)) in self.points.iter().zip(&places) {
                        path.point.hollow[point.hollow] d=(outline(shape, x, y)) { title { (point.label) } }
                    }
                }
            }
        }
    }

    fn swatch(&self) -> Markup {
        html! {
            svg.swatch xmlns="http://www.w3.org/2000/svg" viewBox="0 0 28 12" aria-hidden="true" {
                g class=(self.class()) {
                    path.line d="M1,6 L27,6" {}
                    @if let Some(shape) = self.shape() { path.point d=(outline(shape, 14.0, 6.0)) {} }
                }
            }
        }
    }
}

/// Names beside their looks; what is beside the point is named together.
fn legend(series: &[Series]) -> Markup {
    let (beside, named): (Vec<&Series>, Vec<&Series>) =
        series.iter().partition(|series| series.role == Role::Beside);
    let others: Vec<&str> = beside.iter().map(|series| series.name.as_str()).collect();
    html! {
        ul.legend {
            @for series in named { li { (series.swatch()) (series.name) } }
            @if let Some(first) = beside.first() { li { (first.swatch()) (others.join(", ")) } }
        }
    }
}

fn polyline(places: &[(f64, f64)]) -> String {
    let moves = std::iter::once('M').chain(std::iter::repeat('L'));
    let steps = moves.zip(places).map(|(step, (x, y))| format!("{step}{x:.1},{y:.1}"));
    steps.collect::<Vec<_>>().join(" ")
}

/// Circle, square, diamond, triangles, cross, bar.
pub(super) fn outline(shape: usize, x: f64, y: f64) -> String {
    let around = |corners: &[(f64, f64)]| {
        let places: Vec<(f64, f64)> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        polyline(&places) + " Z"
    };
    match shape % DISTINCT {
        0 => format!("M{:.1},{y:.1} a3.4,3.4 0 1,0 6.8,0 a3.4,3.4 0 1,0 -6.8,0 Z", x - 3.4),
        1 => around(&[(-3.0, -3.0), (3.0, -3.0), (3.0, 3.0), (-3.0, 3.0)]),
        2 => around(&[(0.0, -4.4), (4.4, 0.0), (0.0, 4.4), (-4.4, 0.0)]),
        3 => around(&[(0.0, -4.2), (4.0, 3.2), (-4.0, 3.2)]),
        4 => around(&[(0.0, 4.2), (4.0, -3.2), (-4.0, -3.2)]),
        5 => around(&[(-4.2, -1.4), (4.2, -1.4), (4.2, 1.4), (-4.2, 1.4)]),
        _ => around(&[(-1.4, -4.2), (1.4, -4.2), (1.4, 4.2), (-1.4, 4.2)]),
    }
}

pub(super) fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> Markup {
    html! { path.line d=(polyline(&[(x1, y1), (x2, y2)])) {} }
}

pub(super) fn text(x: f64, y: f64, anchor: &str, words: &str) -> Markup {
    html! { text x=(format!("{x:.1}")) y=(format!("{y:.1}")) text-anchor=(anchor) { (words) } }
}
