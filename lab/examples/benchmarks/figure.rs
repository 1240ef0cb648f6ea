//! A figure over all kept runs of one machine.

use hugekit_lab::record::stats::median;
use hugekit_lab::record::{Case, Ratio, Record};
use hugekit_lab::table::Figure;

/// The ratio or case with this ID: the median of all runs, with the range of their medians if there are several, else with
/// the range of the rounds. `None` if no run has it.
pub(crate) fn find(runs: &[&Record], id: &str) -> Option<Figure> {
    let experiments = || runs.iter().flat_map(|run| &run.experiments);
    let ratios: Vec<&Ratio> =
        experiments().flat_map(|one| &one.ratios).filter(|one| one.id == id).collect();
    let cases: Vec<&Case> =
        experiments().flat_map(|one| &one.cases).filter(|one| one.id == id).collect();
    let medians = ratios.iter().map(|ratio| ratio.median);
    let medians: Vec<f64> = medians.chain(cases.iter().map(|case| case.median())).collect();
    let value = if medians.is_empty() { None } else { Some(median(&medians)) }?;
    let rounds = ratios.iter().flat_map(|ratio| [ratio.min, ratio.max]);
    let rounds: Vec<f64> =
        rounds.chain(cases.iter().flat_map(|case| case.samples.clone())).collect();
    let figure = cases.first().map_or(Figure::ratio(value), |case| Figure::of(value, case.unit));
    let figure = match medians.len() {
        1 => figure.within_rounds(ends(&rounds)),
        _ => figure.within_runs(ends(&medians)),
    };
    let is_unlike = ratios.iter().any(|ratio| !ratio.like_for_like);
    Some(if is_unlike { figure.noted(0) } else { figure })
}

fn ends(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, 0.0), |(low, high), &value| (low.min(value), high.max(value)))
}
