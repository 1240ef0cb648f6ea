//! The matrix that `stores` and `copies` share: libc, every routine of a table, and the engine's own choice,
//! over one workload.

use std::time::Instant;

use hugekit::arch::Routine;

use crate::bench::Bench;
use crate::record::{Case, Ratio};
use crate::sampler::Plan;
use crate::size::{GIB, MIB};

/// A sample moves at least this much, in several passes if need be, so that reading the clock does
/// not show.
const SAMPLE_BYTES: usize = 16 * MIB;

/// Rounds of a GiB and more at least: they take a second, and half of them choose the best.
const LONG_ROUNDS: usize = 4;

/// A routine of the matrix, or the engine's choice of one.
#[derive(Debug)]
pub(super) enum Candidate<F: 'static> {
    Routine(&'static Routine<F>),
    Auto,
}

impl<F> Candidate<F> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Routine(routine) => routine.name(),
            Self::Auto => "auto",
        }
    }
}

/// libc's routine, which is the table's first, the available ones (or the one named), and `auto`.
pub(super) fn candidates<F>(table: &'static [Routine<F>], only: Option<&str>) -> Vec<Candidate<F>> {
    let wanted = |routine: &&Routine<F>| {
        let named = only.is_none_or(|only| only == routine.name());
        routine.is_available() && (named || **routine == table[0])
    };
    let routines = table.iter().filter(wanted).map(Candidate::Routine);
    routines.chain([Candidate::Auto]).collect()
}

/// The routines that cannot take part, and why.
pub(super) fn unavailable<F>(table: &'static [Routine<F>]) -> Option<String> {
    let missing: Vec<String> = table
        .iter()
        .filter(|routine| !routine.is_available())
        .map(|routine| format!("{} (needs {})", routine.name(), routine.needs()))
        .collect();
    (!missing.is_empty()).then(|| format!("not on this CPU: {}", missing.join(", ")))
}

/// The share of an experiment's time that one size of several gets: large ones need more of it for as
/// many rounds.
pub(super) fn share(size: usize, sizes: impl IntoIterator<Item = usize>) -> f64 {
    weight(size) / sizes.into_iter().map(weight).sum::<f64>()
}

/// Rounds for that share.
pub(super) fn plan(bench: &Bench<'_>, share: f64, size: usize) -> Plan {
    let plan = bench.plan(share, 200);
    match bench.options().rounds {
        None if size >= GIB => Plan { min_rounds: LONG_ROUNDS, ..plan },
        _ => plan,
    }
}

fn weight(size: usize) -> f64 {
    if size <= 16 * MIB {
        1.0
    } else if size <= 128 * MIB {
        2.0
    } else {
        4.0
    }
}

/// How often something of `size` bytes is done for one sample.
const fn passes(size: usize) -> usize {
    SAMPLE_BYTES.div_ceil(size)
}

/// Places in memory, one after the other, from the start again at the end.
#[derive(Debug)]
pub(crate) struct Walk {
    len: usize,
    next: usize,
}

impl Walk {
    pub(crate) fn new(len: usize) -> Self {
        Self { len, next: 0 }
    }

    /// Where the next `size` bytes begin.
    pub(crate) fn advance(&mut self, size: usize) -> usize {
        let at = if self.next + size > self.len { 0 } else { self.next };
        self.next = at + size;
        at
    }
}

/// One sample in GiB/s: `pass` moves `size` bytes and is called as often as a sample needs.
pub(crate) fn sample(size: usize, mut pass: impl FnMut()) -> f64 {
    let passes = passes(size);
    let start = Instant::now();
    for _ in 0..passes {
        pass();
    }
    (passes * size) as f64 / GIB as f64 / start.elapsed().as_secs_f64()
}

/// The case of one candidate on one workload.
fn find<'a>(cases: &'a [Case], experiment: &str, name: &str, workload: &str) -> Option<&'a Case> {
    let id = format!("{experiment}/{name}/{workload}");
    cases.iter().find(|case| case.id == id)
}

/// Two candidates on one workload, if both took part.
pub(super) fn between(
    cases: &[Case],
    experiment: &str,
    (baseline, subject): (&str, &str),
    workload: &str,
) -> Option<Ratio> {
    let id = format!("{experiment}/{baseline}-vs-{subject}/{workload}");
    let case = |name| find(cases, experiment, name, workload);
    Some(Ratio::between(id, case(baseline)?, case(subject)?))
}

/// The best routine against `auto`, which is the last of the cases.
pub(super) fn best(cases: &[Case], experiment: &str, workload: &str) -> Option<Ratio> {
    let (auto, routines) = cases.split_last()?;
    let candidates: Vec<&Case> = routines.iter().collect();
    Ratio::with_best(format!("{experiment}/best-vs-auto/{workload}"), &candidates, auto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_stays_within_its_memory_and_starts_again() {
        let mut walk = Walk::new(10);
        assert_eq!([walk.advance(4), walk.advance(4), walk.advance(4)], [0, 4, 0]);
        assert_eq!(walk.advance(6), 4);
    }
}
