//! Which routine clears and copies how much fastest, warm and cold.
//!
//! *Warm* is the same memory over and over, as in `lab stores` and the warm half of `lab copies`; *cold*
//! a walk over memory far larger than a cache, whose bytes no thread needs afterwards.

use std::collections::BTreeSet;

use hugekit::Profile;
use hugekit::arch::{ClearFn, CopyFn, Routine, clear_routines, copy_routines};
use hugekit::profile::{Bands, Measured, StoredBand};

use super::Effort;
use super::bands::{Point, bands};
use crate::LabError;
use crate::bench::Bench;
use crate::experiments::routine_matrix::{Walk, sample};
use crate::sampler::{Plan, alternate};
use crate::size::{KIB, MIB, Size};
use crate::stats::median;

const WARM: [usize; 20] = [
    2 * KIB,
    4 * KIB,
    8 * KIB,
    16 * KIB,
    32 * KIB,
    64 * KIB,
    128 * KIB,
    256 * KIB,
    512 * KIB,
    MIB,
    2 * MIB,
    3 * MIB,
    4 * MIB,
    6 * MIB,
    8 * MIB,
    12 * MIB,
    16 * MIB,
    24 * MIB,
    32 * MIB,
    64 * MIB,
];

const COLD: [usize; 8] =
    [4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 128 * MIB];

/// Rounds that sort out, and the share of the fastest that a routine must reach in them.
const HEAT_ROUNDS: usize = 2;
const HEAT_SHARE: f64 = 0.7;

/// Clears by one routine.
#[allow(unsafe_code)]
pub(super) fn clear(routine: &Routine<ClearFn>, bytes: &mut [u8]) {
    // SAFETY: the slice is ours alone; the callers name available routines only.
    unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
}

#[allow(unsafe_code)]
fn copy(routine: &Routine<CopyFn>, dst: &mut [u8], src: &[u8]) {
    // SAFETY: two slices of the same length, one of them borrowed mutably; as above.
    unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }.publish();
}

/// All four step functions.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    effort: Effort,
    builtin: &Profile,
    margin: f64,
) -> Result<Measured, LabError> {
    let task = |stage, sizes, is_warm| Task { stage, sizes, is_warm, effort, margin };
    let (clear, copy) = (&builtin.clear, &builtin.copy);
    let clear_warm = task("clear, warm", &WARM, true).run(bench, &clear.warm, measure_clears)?;
    let clear_cold = task("clear, cold", &COLD, false).run(bench, &clear.cold, measure_clears)?;
    let (arena, observer) = bench.arena_and_observer()?;
    arena.fill_with_data(observer)?;
    let copy_warm = task("copy, warm", &WARM, true).run(bench, &copy.warm, measure_copies)?;
    let copy_cold = task("copy, cold", &COLD, false).run(bench, &copy.cold, measure_copies)?;
    Ok(Measured {
        clear_warm: Some(clear_warm),
        clear_cold: Some(clear_cold),
        copy_warm: Some(copy_warm),
        copy_cold: Some(copy_cold),
        ..Measured::default()
    })
}

/// One step function to be found.
#[derive(Clone, Copy, Debug)]
struct Task {
    stage: &'static str,
    sizes: &'static [usize],
    is_warm: bool,
    effort: Effort,
    margin: f64,
}

/// Samples of each of these routines at this size, warm or not.
type Measure<F> = fn(
    &mut Bench<'_>,
    (usize, bool),
    Plan,
    &[&'static Routine<F>],
) -> Result<Vec<Vec<f64>>, LabError>;

impl Task {
    fn run<F: Table>(
        self,
        bench: &mut Bench<'_>,
        builtin: &Bands<F>,
        measure: Measure<F>,
    ) -> Result<Vec<StoredBand>, LabError> {
        let routines = available(F::table());
        let mut points = Vec::new();
        let most = bench.arena()?.len() / 4;
        for size in self.sizes_with(builtin).into_iter().filter(|&size| size <= most) {
            bench.arena_and_observer()?.1.begin(&format!("{} {}", self.stage, Size(size)));
            let default = builtin.routine_for(size);
            let builtin = routines.iter().position(|&routine| routine == default).unwrap_or(0);
            let at = (size, self.is_warm);
            let heat = measure(bench, at, Plan::exactly(HEAT_ROUNDS), &routines)?;
            let finalists = finalists(&heat, builtin);
            let chosen: Vec<_> = finalists.iter().map(|&routine| routines[routine]).collect();
            let finals = measure(bench, at, self.effort.plan, &chosen)?;
            let mut samples = vec![Vec::new(); routines.len()];
            finalists.into_iter().zip(finals).for_each(|(routine, of)| samples[routine] = of);
            points.push(Point { size, builtin, samples });
        }
        let names: Vec<&str> = routines.iter().map(|routine| routine.name()).collect();
        Ok(bands(&points, &names, self.margin))
    }

    /// The sizes to measure at, and those at which the built-in routine changes.
    fn sizes_with<F>(self, builtin: &Bands<F>) -> BTreeSet<usize> {
        let step = if self.effort.coarse { 2 } else { 1 };
        let edges = builtin.as_slice().iter().map(|band| band.from).filter(|&from| from > 0);
        let most = self.sizes[self.sizes.len() - 1];
        self.sizes.iter().copied().step_by(step).chain(edges.filter(|&edge| edge <= most)).collect()
    }
}

/// The available routines of a table; libc's comes first.
fn available<F>(table: &'static [Routine<F>]) -> Vec<&'static Routine<F>> {
    table.iter().filter(|routine| routine.is_available()).collect()
}

/// libc's routine, the one built in, and all that were not much slower than the fastest.
fn finalists(heat: &[Vec<f64>], builtin: usize) -> Vec<usize> {
    let medians: Vec<f64> = heat.iter().map(|samples| median(samples)).collect();
    let fastest = medians.iter().copied().fold(0.0, f64::max);
    let qualifies = |&routine: &usize| {
        routine == 0 || routine == builtin || medians[routine] >= HEAT_SHARE * fastest
    };
    (0..medians.len()).filter(qualifies).collect()
}

/// A kind of routine with its table.
trait Table: Sized + 'static {
    fn table() -> &'static [Routine<Self>];
}

impl Table for ClearFn {
    fn table() -> &'static [Routine<Self>] {
        clear_routines()
    }
}

impl Table for CopyFn {
    fn table() -> &'static [Routine<Self>] {
        copy_routines()
    }
}

fn measure_clears(
    bench: &mut Bench<'_>,
    (size, is_warm): (usize, bool),
    plan: Plan,
    routines: &[&'static Routine<ClearFn>],
) -> Result<Vec<Vec<f64>>, LabError> {
    let (arena, observer) = bench.arena_and_observer()?;
    let bytes = arena.bytes();
    let mut walk = Walk::new(bytes.len());
    Ok(alternate(plan, routines.len(), observer, |index| {
        let mut pass = || {
            let at = if is_warm { 0 } else { walk.advance(size) };
            clear(routines[index], &mut bytes[at..][..size]);
        };
        if is_warm {
            sample(size, &mut pass);
        }
        sample(size, pass)
    })?)
}

fn measure_copies(
    bench: &mut Bench<'_>,
    (size, is_warm): (usize, bool),
    plan: Plan,
    routines: &[&'static Routine<CopyFn>],
) -> Result<Vec<Vec<f64>>, LabError> {
    let (arena, observer) = bench.arena_and_observer()?;
    let half = arena.len() / 2;
    let (source, destination) = arena.bytes().split_at_mut(half);
    let mut walk = Walk::new(half);
    Ok(alternate(plan, routines.len(), observer, |index| {
        let mut pass = || {
            let at = if is_warm { 0 } else { walk.advance(size) };
            copy(routines[index], &mut destination[at..][..size], &source[at..][..size]);
        };
        if is_warm {
            sample(size, &mut pass);
        }
        sample(size, pass)
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_is_always_a_finalist_and_the_slow_are_not() {
        let heat = [vec![1.0, 1.0], vec![10.0, 10.0], vec![7.5, 7.5], vec![6.0, 6.0]];
        assert_eq!(finalists(&heat, 0), [0, 1, 2]);
        assert_eq!(finalists(&heat, 3), [0, 1, 2, 3]);
    }

    #[test]
    fn sizes_ascend() {
        assert!(WARM.is_sorted() && COLD.is_sorted());
    }
}
