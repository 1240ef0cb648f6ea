//! From which size on threads pay off, in chunks of which length, and how many of them.

use std::time::Instant;

use hugekit::parallel::Placement;
use hugekit::{ClearOptions, Profile, Reuse, Threads};

use super::Effort;
use crate::LabError;
use crate::bench::Bench;
use crate::sampler::alternate;
use crate::size::{MIB, Size};
use crate::stats::median_ratio;

const FROM: [usize; 5] = [4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB];

const CHUNKS: [usize; 3] = [2 * MIB, 4 * MIB, 8 * MIB];

/// Enough for many threads, and for no cache.
const LARGE: usize = 256 * MIB;

/// Values that were found; `None` stays built in, for the reason in the notices.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) parallel_from: Option<usize>,
    pub(super) min_chunk: Option<usize>,
    pub(super) thread_cap: Option<usize>,
    pub(super) notices: Vec<String>,
}

/// One way to clear: how much, by how many threads, in chunks of at least which length.
#[derive(Clone, Copy, Debug)]
struct Way {
    size: usize,
    threads: usize,
    min_chunk: usize,
}

pub(super) fn measure(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    margin: f64,
) -> Result<Found, LabError> {
    let most = Placement::here().threads();
    if most < 2 {
        let notice = "threads: this process has the time of one CPU only; built in".to_owned();
        return Ok(Found { notices: vec![notice], ..Found::default() });
    }
    let mut found = Found::default();
    let threads = most.min(profile.thread_cap);
    found.parallel_from = measure_from(bench, effort, profile, threads, margin)?;
    if found.parallel_from.is_none() {
        found.notices.push(format!(
            "parallel_from: {threads} threads clear {} no faster than one does; built in",
            Size(FROM[FROM.len() - 1])
        ));
    }
    found.min_chunk = Some(measure_chunk(bench, effort, profile, threads, margin)?);
    if most >= 4 {
        found.thread_cap = Some(measure_cap(bench, effort, profile, most, margin)?);
    } else {
        found.notices.push(format!("thread_cap: not to be found with {most} CPUs; built in"));
    }
    Ok(found)
}

/// Bandwidths of these ways, in alternation.
fn rates(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    ways: &[Way],
) -> Result<Vec<Vec<f64>>, LabError> {
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin("threads");
    let bytes = arena.bytes();
    Ok(alternate(effort.plan, ways.len(), observer, |index| {
        let Way { size, threads, min_chunk } = ways[index];
        let profile = Profile { min_chunk, ..profile.clone() };
        let clear = ClearOptions::new().reuse(Reuse::None).threads(Threads::Exactly(threads));
        let start = Instant::now();
        clear.profile(&profile).run(&mut bytes[..size]).expect("there are threads");
        size as f64 / start.elapsed().as_secs_f64()
    })?)
}

/// The least size from which on threads gain more than the margin, at all larger ones too.
fn measure_from(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    threads: usize,
    margin: f64,
) -> Result<Option<usize>, LabError> {
    let mut gains = Vec::new();
    for size in FROM {
        let way = |threads| Way { size, threads, min_chunk: profile.min_chunk };
        let rates = rates(bench, effort, profile, &[way(1), way(threads)])?;
        gains.push(median_ratio(&rates[1], &rates[0]));
    }
    Ok(first_of_all_better(&gains, margin).map(|first| FROM[first]))
}

/// The least minimum chunk that is within the margin of the best: it shares most evenly.
fn measure_chunk(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    threads: usize,
    margin: f64,
) -> Result<usize, LabError> {
    let size = FROM[FROM.len() - 1];
    let ways = CHUNKS.map(|min_chunk| Way { size, threads, min_chunk });
    let rates = rates(bench, effort, profile, &ways)?;
    let gains: Vec<f64> = rates.iter().map(|of| median_ratio(of, &rates[0])).collect();
    let best = gains.iter().copied().fold(0.0, f64::max);
    let first = gains.iter().position(|gain| gain * (1.0 + margin) >= best);
    Ok(CHUNKS[first.unwrap_or(0)])
}

/// As many threads as gained something over half as many.
fn measure_cap(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    most: usize,
    margin: f64,
) -> Result<usize, LabError> {
    let counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|&n| n < most)
        .chain([most])
        .collect();
    let size = LARGE.min(bench.arena()?.len());
    let way = |&threads: &usize| Way { size, threads, min_chunk: profile.min_chunk };
    let ways: Vec<Way> = counts.iter().map(way).collect();
    let rates = rates(bench, effort, profile, &ways)?;
    let steps: Vec<f64> = rates.windows(2).map(|pair| median_ratio(&pair[1], &pair[0])).collect();
    let useful = steps.iter().rposition(|&gain| gain > 1.0 + margin).map_or(0, |step| step + 1);
    Ok(counts[useful])
}

/// The first from which on all are better than 1 by more than the margin.
fn first_of_all_better(gains: &[f64], margin: f64) -> Option<usize> {
    let last_not = gains.iter().rposition(|&gain| gain <= 1.0 + margin);
    let first = last_not.map_or(0, |last| last + 1);
    (first < gains.len()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_pay_off_from_where_they_always_do() {
        assert_eq!(first_of_all_better(&[1.5, 0.9, 1.2, 1.4], 0.05), Some(2));
        assert_eq!(first_of_all_better(&[1.5, 1.2], 0.05), Some(0));
        assert_eq!(first_of_all_better(&[1.5, 1.04], 0.05), None);
    }
}
