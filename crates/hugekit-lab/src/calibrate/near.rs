//! How wide the near window is best: by clearing a cold folio and using some or all of it.

use hugekit::{ClearOptions, Profile};

use super::Effort;
use crate::LabError;
use crate::bench::Bench;
use crate::experiments::clear::{After, Walk};
use crate::sampler::alternate;
use crate::size::{KIB, MIB, Size};
use crate::stats::median;

const FOLIO: usize = 2 * MIB;

const WIDTHS: [usize; 7] = [8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB];

/// Bytes of the near window by what is used next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub(super) target: usize,
    pub(super) all: usize,
}

pub(super) fn measure(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    margin: f64,
) -> Result<Near, LabError> {
    let touch = times(bench, effort, profile, After::Touch(4 * KIB))?;
    let write = times(bench, effort, profile, After::WriteAll)?;
    Ok(Near { target: widest(&touch, margin), all: narrowest(&write, margin) })
}

/// Samples in microseconds for each width.
fn times(
    bench: &mut Bench<'_>,
    effort: Effort,
    profile: &Profile,
    after: After,
) -> Result<Vec<Vec<f64>>, LabError> {
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("near window of {}", Size(FOLIO)));
    let mut walk = Walk::new(FOLIO);
    let bytes = arena.bytes();
    Ok(alternate(effort.plan, WIDTHS.len(), observer, |index| {
        let clear =
            ClearOptions::new().profile(profile).reuse(after.reuse()).near_bytes(WIDTHS[index]);
        walk.measure(bytes, after, |folio, target| {
            clear.clone().target(target).run(folio).expect("targets lie within the folio");
        })
    })?)
}

/// The widest window that costs no more than the margin when only the target is used: a program that uses a
/// little more than that finds it cached too.
fn widest(times: &[Vec<f64>], margin: f64) -> usize {
    let medians: Vec<f64> = times.iter().map(|samples| median(samples)).collect();
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let fits = medians.iter().rposition(|&median| median <= least * (1.0 + margin));
    WIDTHS[fits.unwrap_or(0)]
}

/// The narrowest window that is within the margin of the fastest when all of it is used: it leaves the
/// most of the cache to others.
fn narrowest(times: &[Vec<f64>], margin: f64) -> usize {
    let medians: Vec<f64> = times.iter().map(|samples| median(samples)).collect();
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let fits = medians.iter().position(|&median| median <= least * (1.0 + margin));
    WIDTHS[fits.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_widens_one_window_and_narrows_the_other() {
        let times = [10.2, 10.0, 10.4, 10.9, 12.0, 14.0, 20.0].map(|time| vec![time]);
        assert_eq!(widest(&times, 0.05), 32 * KIB);
        assert_eq!(narrowest(&times, 0.05), 8 * KIB);
        assert_eq!(narrowest(&times, 0.01), 16 * KIB);
    }
}
