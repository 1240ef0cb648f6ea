//! An experiment's finding, in one line: the range of its headline comparison.

use crate::record::{Difference, Elsewhere};
use crate::record::{Experiment, Ratio, parts};
use crate::table::{figure, name, sides};

use crate::EXPERIMENTS;

/// Facts about the memory and the run, and figures that were published for other workloads.
#[must_use]
pub fn notices(experiment: &Experiment) -> Vec<String> {
    let own = experiment.memory.iter().chain(&experiment.notices).cloned();
    own.chain(elsewhere(experiment)).collect()
}

/// Disturbances of the experiment, and failures in it.
#[must_use]
pub fn warnings(experiment: &Experiment) -> Vec<String> {
    let noise = experiment.noise.iter().flat_map(|noise| noise.warnings.iter().cloned());
    let failures = experiment.failures.iter();
    noise.chain(failures.map(|one| format!("{} failed: {}", one.case, one.reason))).collect()
}

/// Figures that were published for other workloads, and what differs there: a line for each work and the kernel
/// that was measured there.
fn elsewhere(experiment: &Experiment) -> Vec<String> {
    let all = &experiment.elsewhere;
    let lines = each_once(all.iter().map(work_and_kernel));
    let line = |line: (&str, &str)| {
        let of_it: Vec<&Elsewhere> =
            all.iter().filter(|one| work_and_kernel(one) == line).collect();
        let (figures, differs) = (figures_elsewhere(&of_it), differences(&of_it));
        format!("published elsewhere ({}): {figures}; differs: {differs}", line.0)
    };
    lines.into_iter().map(line).collect()
}

/// The published work, and the kernel there if it is another one than here.
fn work_and_kernel(one: &Elsewhere) -> (&str, &str) {
    let kernel = one.differs.iter().find(|difference| difference.aspect == "kernel");
    (&one.published.source, kernel.map_or("", |kernel| &kernel.there))
}

/// `memset, 2MiB: 8.76 (a CPU), 12.2 (another)`, for each case or ratio that they are nearest to.
fn figures_elsewhere(all: &[&Elsewhere]) -> String {
    let near = each_once(all.iter().map(|one| one.beside.as_str()));
    let of = |id: &str| {
        let figures = all.iter().filter(|one| one.beside == id);
        let figures =
            figures.map(|one| format!("{} ({})", figure(one.published.value), one.published.cpu));
        format!("{}: {}", name(id), figures.collect::<Vec<_>>().join(", "))
    };
    near.into_iter().map(of).collect::<Vec<_>>().join("; ")
}

/// `kernel here instead of there, memory 1GiB instead of 64GiB`, each aspect once.
fn differences(all: &[&Elsewhere]) -> String {
    let every: Vec<&Difference> = all.iter().flat_map(|one| &one.differs).collect();
    let aspects = each_once(every.iter().map(|one| one.aspect.as_str()));
    let of = |aspect: &str| {
        let values = |pick: fn(&Difference) -> &str| {
            let of_it = every.iter().filter(|one| one.aspect == aspect);
            each_once(of_it.map(|one| pick(one))).join(" or ")
        };
        format!("{aspect} {} instead of {}", values(|one| &one.here), values(|one| &one.there))
    };
    aspects.into_iter().map(of).collect::<Vec<_>>().join("; ")
}

fn each_once<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

/// The result in one line without the experiment's name: each headline that was measured. Only ratios that are like
/// for like count: if work moved elsewhere, a ratio does not tell which side is faster.
#[must_use]
pub fn finding(experiment: &Experiment) -> String {
    if let Some(skipped) = &experiment.skipped {
        return format!("skipped, {}", skipped.reason);
    }
    let definition = EXPERIMENTS.iter().find(|definition| definition.name == experiment.name);
    let headlines = definition.map_or(&[][..], |definition| definition.headlines);
    let found: Vec<String> =
        headlines.iter().filter_map(|headline| range(experiment, headline)).collect();
    match &found[..] {
        [] if experiment.cases.is_empty() && !experiment.failures.is_empty() => {
            format!("failed, {}", experiment.failures[0].reason)
        }
        [] => "nothing to compare like for like".to_owned(),
        found => format!("{} times as fast", found.join("; ")),
    }
}

/// The least and the most of a comparison's fair ratios, if there are any.
fn range(experiment: &Experiment, headline: &str) -> Option<String> {
    let mut fair: Vec<(&Ratio, &str)> = experiment
        .ratios
        .iter()
        .filter(|ratio| ratio.like_for_like)
        .filter_map(|ratio| Some((ratio, parts(&ratio.id)?)))
        .filter(|(_, (methods, _))| *methods == headline)
        .map(|(ratio, (_, workload))| (ratio, workload))
        .collect();
    fair.sort_by(|(a, _), (b, _)| a.median.total_cmp(&b.median));
    let sides = sides(headline);
    let show =
        |(ratio, workload): &(&Ratio, &str)| format!("{} ({workload})", figure(ratio.median));
    match &fair[..] {
        [] => None,
        [only] => Some(format!("{sides}: {}", show(only))),
        [least, .., most] => Some(format!("{sides}: {} to {}", show(least), show(most))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_the_headline_is_what_was_found() {
        let ratios = vec![
            Ratio::example("stores/memset-vs-auto/4KiB", 1.5),
            Ratio::example("stores/memset-vs-auto/1MiB", 1.0),
            Ratio::example("stores/memset-vs-auto/16MiB", 9.0).unlike("elsewhere"),
            Ratio::example("stores/rep_stosb-vs-movnti/16MiB", 7.0),
        ];
        let mut stores = Experiment { name: "stores".into(), ratios, ..Experiment::default() };
        assert_eq!(finding(&stores), "memset → auto: 1.00 (1MiB) to 1.50 (4KiB) times as fast");
        stores.ratios.truncate(1);
        assert_eq!(finding(&stores), "memset → auto: 1.50 (4KiB) times as fast");
        stores.ratios.clear();
        assert_eq!(finding(&stores), "nothing to compare like for like");
    }

    #[test]
    fn every_headline_that_was_measured_is_found() {
        let ratios = vec![
            Ratio::example("demand/kernel-thp-vs-dirty/2MiB", 2.0),
            Ratio::example("demand/map-populate-vs-dirty/1GiB", 30.0),
            Ratio::example("demand/kernel-hugetlb-vs-dirty/1GiB", 4.0),
        ];
        let demand = Experiment { name: "demand".into(), ratios, ..Experiment::default() };
        let expected =
            "kernel-hugetlb → dirty: 4.00 (1GiB); kernel-thp → dirty: 2.00 (2MiB) times as fast";
        assert_eq!(finding(&demand), expected);
    }

    #[test]
    fn figures_of_another_workload_say_what_differs() {
        let figure = |beside: &str, value, kernel: &str, memory: &str| {
            let differs = |aspect: &str, here: &str, there: &str| Difference {
                aspect: aspect.into(),
                here: here.into(),
                there: there.into(),
            };
            let (source, cpu) = ("ktask".to_owned(), "SPARC".to_owned());
            Elsewhere {
                beside: beside.into(),
                published: crate::record::Published { source, cpu, value, spread_percent: None },
                differs: vec![differs("kernel", "none", kernel), differs("memory", "4GiB", memory)],
            }
        };
        let elsewhere = vec![
            figure("parallel/a-vs-b/2", 1.97, "4.14", "50GiB"),
            figure("parallel/a-vs-b/2", 1.91, "4.14", "9GiB"),
            figure("parallel/a-vs-b/2", 1.50, "4.15", "9GiB"),
        ];
        let said = super::elsewhere(&Experiment { elsewhere, ..Experiment::default() });
        let expected = [
            "published elsewhere (ktask): a → b, 2: 1.97 (SPARC), 1.91 (SPARC); differs: kernel none instead of \
             4.14; memory 4GiB instead of 50GiB or 9GiB",
            "published elsewhere (ktask): a → b, 2: 1.50 (SPARC); differs: kernel none instead of 4.15; memory \
             4GiB instead of 9GiB",
        ];
        assert_eq!(said, expected);
    }
}
