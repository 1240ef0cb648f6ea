//! The matrix that `stores` and `copies` share: libc, every routine of a table, and the engine's own choice,
//! over one workload.

use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::record::{Ratio, Unit, parts};
use hugekit_bulk::arch::{Kind, Routine};
use hugekit_bulk::learning::{ChosenBy, Used};
use hugekit_machine::CacheSizes;
use hugekit_machine::size::{GIB, MIB};

use super::Bench;

/// A sample moves at least this much, in several passes if need be, so that reading the clock does
/// not show.
const SAMPLE_BYTES: usize = 16 * MIB;

/// Rounds of a GiB and more at least: they take a second, and half of them choose the best.
const LONG_ROUNDS: usize = 4;

/// Follows the label of a workload whose time includes a reader's.
pub(super) const READ_LABEL: &str = "+read";

const AUTO_LEAVES_NOTHING: &str = "what auto streamed is not in the cache for the next reader, as the other routine's bytes may be; \
     +read counts the reader";
const AUTO_LEAVES_MORE: &str = "what the other routine streamed is not in the cache for the next reader, as auto's bytes may be; \
     +read counts the reader";

/// A routine of the matrix, or the engine's choice of one.
#[derive(Debug)]
pub(super) enum Candidate<F: 'static> {
    Routine(&'static Routine<F>),
    Auto,
    /// `Auto`, which also returns the routine of each operation.
    Asked,
}

impl<F> Candidate<F> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Routine(routine) => routine.name(),
            Self::Auto | Self::Asked => "auto",
        }
    }
}

/// The work of the candidates.
#[derive(Clone, Debug)]
pub(super) struct MatrixWorkload {
    pub(super) label: String,
    pub(super) size: usize,
    /// True if each case runs once unmeasured, because the case before left its own bytes in the cache.
    pub(super) is_warmed: bool,
    /// True if bytes may stay in the cache, and no reader shows that.
    pub(super) leaves_reader_out: bool,
}

/// The routines of a table as candidates of one experiment.
#[derive(Debug)]
pub(super) struct Matrix<F: 'static> {
    experiment: &'static str,
    table: &'static [Routine<F>],
    candidates: Vec<Candidate<F>>,
    by_auto: ByAuto,
}

impl<F> Matrix<F> {
    /// libc's routine, which is the table's first, the available ones (or the one named), and `auto`.
    pub(super) fn new(
        experiment: &'static str,
        table: &'static [Routine<F>],
        only: Option<&str>,
    ) -> Self {
        let wanted = |routine: &&Routine<F>| {
            let named = only.is_none_or(|only| only == routine.name());
            routine.is_available() && (named || **routine == table[0])
        };
        let routines = table.iter().filter(wanted).map(Candidate::Routine);
        let candidates = routines.chain([Candidate::Auto]).collect();
        Self { experiment, table, candidates, by_auto: ByAuto::default() }
    }

    /// All of them on one workload, and `auto` against libc and the best. `once` does it once, and answers
    /// [`Candidate::Asked`].
    pub(super) fn measure(
        &mut self,
        rounds: Rounds<'_>,
        workload: &MatrixWorkload,
        mut once: impl FnMut(&Candidate<F>) -> Option<Used>,
    ) -> Result<Part, LabError> {
        let MatrixWorkload { label, size, .. } = workload;
        let names: Vec<String> =
            self.candidates.iter().map(|one| format!("{}/{label}", one.name())).collect();
        let mut used = Vec::new();
        rounds.observer.begin(&format!("{} {label}", self.experiment));
        let mut part = rounds.measure(self.experiment, Unit::GibPerSecond, &names, |index| {
            let candidate = &self.candidates[index];
            if workload.is_warmed {
                sample(*size, || {
                    once(candidate);
                });
            }
            let sample = sample(*size, || {
                once(candidate);
            });
            if matches!(candidate, Candidate::Auto) {
                used.extend(once(&Candidate::Asked));
            }
            Ok(sample)
        })?;
        let used = mostly(&used);
        self.by_auto.add(label, used);
        part.compare((self.table[0].name(), "auto"), label, None);
        if let Some((auto, routines)) = part.cases.split_last() {
            let id = format!("{}/best-vs-auto/{label}", self.experiment);
            part.ratios.extend(Ratio::with_best(id, &routines.iter().collect::<Vec<_>>(), auto));
        }
        if workload.leaves_reader_out {
            let ratios = part.ratios.into_iter();
            part.ratios = ratios.map(|ratio| marked(ratio, self.table, used)).collect();
        }
        Ok(part)
    }

    /// Which routines cannot take part, and which ones `auto` chose.
    pub(super) fn notices(&self) -> impl Iterator<Item = String> {
        unavailable(self.table).into_iter().chain(self.by_auto.notice())
    }
}

/// The routines that cannot take part, and why.
fn unavailable<F>(table: &'static [Routine<F>]) -> Option<String> {
    let missing: Vec<String> = table
        .iter()
        .filter(|routine| !routine.is_available())
        .map(|routine| format!("{} (needs {})", routine.name(), routine.needs()))
        .collect();
    (!missing.is_empty()).then(|| format!("not on this CPU: {}", missing.join(", ")))
}

/// Loads all of it once, as fast as a plain loop can: LLVM makes vector instructions of it.
pub(super) fn read_all(bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    let of_words = words.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word));
    let of_rest = rest.iter().fold(0, |sum, byte| sum ^ byte);
    std::hint::black_box((of_words, of_rest));
}

/// True if this many bytes may still be in the cache when their next reader comes. A machine that does
/// not describe its caches has one all the same.
pub(super) fn may_be_cached(bytes: usize, caches: Option<CacheSizes>) -> bool {
    caches.is_none_or(|caches| bytes <= caches.llc)
}

/// Marks a comparison of a routine that leaves in the cache what it wrote with one that does not, of
/// bytes that would have fitted: the next reader pays, and its time is not counted here.
pub(super) fn marked<F>(ratio: Ratio, table: &'static [Routine<F>], auto: Option<Used>) -> Ratio {
    let kind = |name: &str| table.iter().find(|one| one.name() == name).map(Routine::kind);
    let baseline = parts(&ratio.baseline).and_then(|(name, _)| kind(name));
    match (baseline, auto.and_then(|auto| kind(auto.routine))) {
        (Some(Kind::Cached), Some(Kind::Streaming)) => ratio.unlike(AUTO_LEAVES_NOTHING),
        (Some(Kind::Streaming), Some(Kind::Cached)) => ratio.unlike(AUTO_LEAVES_MORE),
        _ => ratio,
    }
}

/// `movdir64b, learned`.
pub(super) fn chosen(used: Used) -> String {
    let by = match used.by {
        ChosenBy::Learned => "learned",
        ChosenBy::Profile => "by the profile",
        ChosenBy::Caller => "as asked",
        _ => "for another reason",
    };
    format!("{}, {by}", used.routine)
}

/// The routine of most of `auto`'s operations on one workload. Its choice may change from one round to the next.
fn mostly(used: &[Used]) -> Option<Used> {
    let times = |one: &Used| used.iter().filter(|other| *other == one).count();
    used.iter().max_by_key(|one| times(one)).copied()
}

/// The routines that `auto` came to, each with its workloads.
#[derive(Debug, Default)]
struct ByAuto(Vec<(String, Vec<String>)>);

impl ByAuto {
    /// In most operations on this workload.
    fn add(&mut self, workload: &str, used: Option<Used>) {
        let Some(routine) = used.map(chosen) else { return };
        match self.0.iter_mut().find(|(other, _)| *other == routine) {
            Some((_, workloads)) => workloads.push(workload.to_owned()),
            None => self.0.push((routine, vec![workload.to_owned()])),
        }
    }

    /// For the reader of the record.
    fn notice(&self) -> Option<String> {
        let of = |(routine, workloads): &(String, Vec<String>)| {
            format!("{routine}: {}", workloads.join(" "))
        };
        let routines: Vec<String> = self.0.iter().map(of).collect();
        (!routines.is_empty())
            .then(|| format!("auto, hugekit's own choice, was mostly {}", routines.join("; ")))
    }
}

/// The share of an experiment's time that one size of several gets: large ones need more of it for as
/// many rounds.
pub(super) fn share(size: usize, sizes: impl IntoIterator<Item = usize>) -> f64 {
    weight(size) / sizes.into_iter().map(weight).sum::<f64>()
}

/// Rounds for that share.
pub(super) fn rounds<'a>(bench: &Bench<'a>, share: f64, size: usize) -> Rounds<'a> {
    bench.rounds_of(share, 200, (size >= GIB).then_some(LONG_ROUNDS))
}

fn weight(size: usize) -> f64 {
    match size {
        0..=0x100_0000 => 1.0,
        0x100_0001..=0x800_0000 => 2.0,
        _ => 4.0,
    }
}

/// Places in memory, one after the other, from the start again at the end.
#[derive(Debug)]
pub(super) struct Walk {
    len: usize,
    next: usize,
}

impl Walk {
    pub(super) fn new(len: usize) -> Self {
        Self { len, next: 0 }
    }

    /// Returns the start of the next `size` bytes.
    pub(super) fn advance(&mut self, size: usize) -> usize {
        let at = if self.next + size > self.len { 0 } else { self.next };
        self.next = at + size;
        at
    }
}

/// Measures a sample in GiB/s: `pass` moves `size` bytes and is called as often as a sample needs.
pub(super) fn sample(size: usize, mut pass: impl FnMut()) -> f64 {
    let passes = SAMPLE_BYTES.div_ceil(size);
    let start = Instant::now();
    for _ in 0..passes {
        pass();
    }
    (passes * size) as f64 / GIB as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Case;

    fn ratio(baseline: &str) -> Ratio {
        let case =
            |name: &str| Case::new(format!("stores/{name}/2MiB"), Unit::GibPerSecond, vec![1.0]);
        Ratio::between("stores/best-vs-auto/2MiB".into(), &case(baseline), &case("auto"))
    }

    #[test]
    fn cached_beside_streaming_is_not_like_for_like_whichever_auto_is() {
        let table = hugekit_bulk::arch::clear_routines();
        let of = |kind| table.iter().find(|routine| routine.kind() == kind).map(Routine::name);
        // As the engine reports what its caller asked for.
        let used = |name| {
            let mut options = hugekit::ClearOptions::new();
            options = options.routine(hugekit_bulk::arch::clear_routine(name).unwrap());
            options.run(&mut [1; 4096]).unwrap().used
        };
        let (Some(cached), Some(streaming)) = (of(Kind::Cached), of(Kind::Streaming)) else {
            return;
        };
        let moved = |baseline, auto| marked(ratio(baseline), table, used(auto)).moved;
        assert_eq!(moved(cached, cached), None);
        assert_eq!(moved(streaming, streaming), None);
        assert_eq!(moved(cached, streaming).as_deref(), Some(AUTO_LEAVES_NOTHING));
        assert_eq!(moved(streaming, cached).as_deref(), Some(AUTO_LEAVES_MORE));
        assert_eq!(marked(ratio(cached), table, None).moved, None);
        let both = [used(cached), used(streaming), used(cached)].map(Option::unwrap);
        assert_eq!(mostly(&both), used(cached));
        assert_eq!(mostly(&[]), None);
        let mut by_auto = ByAuto::default();
        by_auto.add("1MiB", used(cached));
        by_auto.add("2MiB", used(cached));
        by_auto.add("1GiB", used(streaming));
        let said = format!(
            "auto, hugekit's own choice, was mostly {cached}, as asked: 1MiB 2MiB; {streaming}, as asked: 1GiB"
        );
        assert_eq!(by_auto.notice(), Some(said));
    }

    #[test]
    fn bytes_may_be_cached_up_to_the_last_level_or_where_none_is_described() {
        let caches = CacheSizes { l1d: 1, l2: 2, llc: 4, llc_shared_by: 1 };
        assert!(may_be_cached(4, Some(caches)) && !may_be_cached(5, Some(caches)));
        assert!(may_be_cached(usize::MAX, None));
    }

    #[test]
    fn a_walk_stays_within_its_memory_and_starts_again() {
        let mut walk = Walk::new(10);
        assert_eq!([walk.advance(4), walk.advance(4), walk.advance(4)], [0, 4, 0]);
        assert_eq!(walk.advance(6), 4);
    }
}
