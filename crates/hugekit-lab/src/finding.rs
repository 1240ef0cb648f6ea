//! An experiment's finding, in one line: the range of its headline comparison.

use crate::EXPERIMENTS;
use crate::record::{Experiment, Ratio, parts};

/// The figure as table, report and comparison print it: three digits at least, and no more decimals than the first of
/// them needs.
#[must_use]
pub fn figure(number: f64) -> String {
    match number {
        number if number < 10.0 => format!("{number:.2}"),
        number if number < 1000.0 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

/// Why ratios are not like for like, each reason once and in order.
#[must_use]
pub fn reasons(ratios: &[Ratio]) -> Vec<&str> {
    let mut reasons = Vec::new();
    for reason in ratios.iter().filter_map(|ratio| ratio.moved.as_deref()) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

/// One line without the experiment's name. It counts like for like only: where work moved elsewhere,
/// a ratio says nothing about which side is faster.
#[must_use]
pub fn finding(experiment: &Experiment) -> String {
    if let Some(skipped) = &experiment.skipped {
        return format!("skipped, {}", skipped.reason);
    }
    let definition = EXPERIMENTS.iter().find(|definition| definition.name == experiment.name);
    let headline = definition.map_or("", |definition| definition.headline);
    let mut fair: Vec<(&Ratio, &str)> = experiment
        .ratios
        .iter()
        .filter(|ratio| ratio.like_for_like)
        .filter_map(|ratio| Some((ratio, parts(&ratio.id)?)))
        .filter(|(_, (methods, _))| *methods == headline)
        .map(|(ratio, (_, workload))| (ratio, workload))
        .collect();
    fair.sort_by(|(a, _), (b, _)| a.median.total_cmp(&b.median));
    let sides = headline.replacen("-vs-", " → ", 1);
    let show =
        |(ratio, workload): &(&Ratio, &str)| format!("{} ({workload})", figure(ratio.median));
    match &fair[..] {
        [] if experiment.cases.is_empty() && !experiment.failures.is_empty() => {
            format!("failed, {}", experiment.failures[0].reason)
        }
        [] => "nothing to compare like for like".to_owned(),
        [only] => format!("{sides}: {} times as fast", show(only)),
        [least, .., most] => format!("{sides}: {} to {} times as fast", show(least), show(most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Case, Unit};

    fn ratio(id: &str, speed_up: f64) -> Ratio {
        let case = |sample| Case {
            id: "x".into(),
            unit: Unit::GibPerSecond,
            samples: vec![sample],
            published: Vec::new(),
        };
        Ratio::between(id.into(), &case(1.0), &case(speed_up))
    }

    #[test]
    fn the_range_of_the_headline_is_what_was_found() {
        let ratios = vec![
            ratio("stores/memset-vs-auto/4KiB", 1.5),
            ratio("stores/memset-vs-auto/1MiB", 1.0),
            ratio("stores/memset-vs-auto/16MiB", 9.0).unlike("elsewhere"),
            ratio("stores/rep_stosb-vs-movnti/16MiB", 7.0),
        ];
        let mut stores = Experiment { name: "stores".into(), ratios, ..Experiment::default() };
        assert_eq!(finding(&stores), "memset → auto: 1.00 (1MiB) to 1.50 (4KiB) times as fast");
        stores.ratios.truncate(1);
        assert_eq!(finding(&stores), "memset → auto: 1.50 (4KiB) times as fast");
        stores.ratios.clear();
        assert_eq!(finding(&stores), "nothing to compare like for like");
    }

    #[test]
    fn each_reason_is_said_once() {
        let moved = |reason| ratio("snapshot/a-vs-b/stall", 2.0).unlike(reason);
        let ratios = [moved("pages"), moved("pool"), ratio("x/a-vs-b/c", 1.0), moved("pages")];
        assert_eq!(reasons(&ratios), ["pages", "pool"]);
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(
            [0.123, 9.5, 12.34, 999.9, 12345.6].map(figure),
            ["0.12", "9.50", "12.3", "999.9", "12346"]
        );
    }
}
