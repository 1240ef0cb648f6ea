//! A verdict for each published claim, from the ratios of a record.
//!
//! `table.rs` has the claims and the ratios that repeat them; `rule.rs` decides.

mod rule;
mod table;

use crate::record::Record;
use crate::record::published::PublishedFigure;
use crate::table::figure;
use maud::{Markup, html};

/// A claim of a published work, and how the lab repeats it.
struct Claim {
    work: &'static str,
    says: &'static str,
    /// The number of times as fast that it became there.
    published: fn() -> Vec<PublishedFigure>,
    test: Test,
}

/// The measurements that decide about a claim.
enum Test {
    Ratios(Ratios),
    Counts(EventComparison),
    /// None that one record can have, and why.
    None(&'static str),
}

/// Ratios of one experiment, all of which have to agree.
struct Ratios {
    experiment: &'static str,
    /// The methods in IDs: `baseline-vs-subject`.
    methods: &'static [&'static str],
    workloads: Workloads,
    /// The claimed direction of the subject.
    claims: Direction,
    /// A condition that a run without such ratios does not meet.
    needs: &'static str,
}

/// Events that the CPU counted for two methods of one experiment: the second has fewer.
struct EventComparison {
    experiment: &'static str,
    methods: [&'static str; 2],
    workloads: Workloads,
    event: &'static str,
}

/// The ends of the IDs.
enum Workloads {
    Only(&'static [&'static str]),
    EndingWith(&'static str),
    /// Sizes above the last-level cache.
    OverCache,
    /// Sizes up to half of the last-level cache, which others use too.
    WithinCache,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Faster,
    Slower,
}

/// The ratios that decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The smallest and the largest median. Of counts there are only means, which stand in all three fields.
    pub medians: (f64, f64),
    /// The range in which all medians lie with 95 % confidence each.
    pub certain: (f64, f64),
    /// The smallest and the largest ratio of a round.
    pub rounds: (f64, f64),
}

/// The verdict of a record on a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimVerdict {
    /// Every median has the claimed direction with 95 % confidence.
    Reproduced(Measured),
    /// Some median does not have it, or may not.
    NotReproduced(Measured),
    /// The record has too few such rounds, and why.
    NotTestable(String),
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The published work.
    pub work: &'static str,
    /// The claim.
    pub says: &'static str,
    /// The published factors.
    pub published: String,
    /// The verdict.
    pub verdict: ClaimVerdict,
}

/// The verdict for every claim.
#[must_use]
pub fn all(record: &Record) -> Vec<Judged> {
    table::CLAIMS.iter().map(|claim| judged(claim, record)).collect()
}

/// The same for the claims that an experiment of this record repeats.
#[must_use]
pub fn of_experiments(record: &Record) -> Vec<Judged> {
    let names: Vec<&str> = record.experiments.iter().map(|one| one.name.as_str()).collect();
    let ran = |claim: &&Claim| {
        claim.test.experiment().is_some_and(|experiment| names.contains(&experiment))
    };
    table::CLAIMS.iter().filter(ran).map(|claim| judged(claim, record)).collect()
}

fn judged(claim: &Claim, record: &Record) -> Judged {
    let factors: Vec<f64> = (claim.published)().iter().map(|one| one.published.value).collect();
    Judged {
        work: claim.work,
        says: claim.says,
        published: range(rule::extremes(factors)),
        verdict: rule::verdict(&claim.test, record),
    }
}

impl Test {
    const fn experiment(&self) -> Option<&'static str> {
        match self {
            Self::Ratios(Ratios { experiment, .. })
            | Self::Counts(EventComparison { experiment, .. }) => Some(experiment),
            Self::None(_) => None,
        }
    }
}

impl ClaimVerdict {
    /// In words.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Reproduced(_) => "reproduced",
            Self::NotReproduced(_) => "not reproduced",
            Self::NotTestable(_) => "not testable here",
        }
    }

    /// Its figures, or why it has none.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Reproduced(measured) | Self::NotReproduced(measured) => {
                let Measured { medians, certain, rounds } = *measured;
                let [medians, certain, rounds] = [medians, certain, rounds].map(range);
                format!("{medians} (95 %: {certain}; rounds: {rounds})")
            }
            Self::NotTestable(why) => why.clone(),
        }
    }
}

impl Judged {
    /// On one line, without the name of the verdict.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { work, says, published, verdict } = self;
        format!("{work}: {says}: {}; published {published}", verdict.reason())
    }
}

/// `1.02–1.43`, or one figure if both print alike.
fn range((low, high): (f64, f64)) -> String {
    let (low, high) = (figure(low), figure(high));
    if low == high { low } else { format!("{low}–{high}") }
}

/// The section of a page.
pub(super) fn section(record: &Record) -> Markup {
    let judged = of_experiments(record);
    html! {
        @if !judged.is_empty() {
            h3 { "Published claims" }
            p.hint { (HOW) }
            ul { @for one in &judged { li { b { (one.verdict.name()) } ": " (one.line()) } } }
        }
    }
}

/// The rule in one sentence.
pub const HOW: &str = "Reproduced: the claimed direction is certain to 95 % for every median. Figures are medians, where \
     they lie, and single rounds; above 1 is faster.";
