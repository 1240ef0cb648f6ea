//! Ideas 1 and 2: clear one folio by four methods, then use none, a little, or all of it.
//!
//! A sample walks several folios of memory that is far larger than a cache, and each folio has a
//! target of its own, the same for every method. What is used afterwards is stored to in ascending
//! words of eight bytes, from the target's page on.

use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::record::{Experiment, Unit};
use hugekit::{ClearOptions, Reuse};
use hugekit_bulk::arch::{ClearRoutine, Unfenced, clear_routine, clear_routines};
use hugekit_bulk::sweep::{GIGANTIC_OVER_BYTES, Order, SUBPAGE_BYTES};
use hugekit_machine::size::{GIB, KIB, MIB, Size};

use super::bench::left_out;
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "clear",
    repeats: "clearing in extents, 2023, and target subpage last, 2018: one folio",
    why: "Repeats clearing a huge page in extents (2023) and target subpage last (2018) on one folio, and then \
          uses none, a little or all of it. What is fastest by itself may have thrown out of the cache what \
          the program wants next, and only the use afterwards shows that.",
    headlines: &["page-at-a-time-vs-engine"],
    is_core: true,
    run: run_experiment,
};

const FOLIOS: [usize; 2] = [2 * MIB, GIB];

/// A sample clears about this much: enough that what the case before left in the cache is gone.
const SAMPLE_BYTES: usize = 32 * MIB;

/// The published radius: two pages on either side of the target's.
pub(super) const PUBLISHED_NEAR_BYTES: usize = 5 * SUBPAGE_BYTES;

const COLD_AFTERWARDS: &str = "what the engine streamed is not in the cache for its next user; +touch and +write-all \
     count that";

/// A method of clearing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClearMethod {
    /// A string instruction for each base page, ascending: the method before the published work.
    PageAtATime,
    /// The published method of 2023 with the same string instruction.
    Extents,
    /// The published order of 2018 with the same string instruction.
    Converging,
    /// [`ClearOptions`], told which bytes are used afterwards.
    Engine,
}

const METHODS: [ClearMethod; 4] =
    [ClearMethod::PageAtATime, ClearMethod::Extents, ClearMethod::Converging, ClearMethod::Engine];

/// The published order is not of gigantic pages.
fn methods(folio: usize) -> Vec<ClearMethod> {
    let is_gigantic = folio > GIGANTIC_OVER_BYTES;
    let methods = METHODS.into_iter();
    methods.filter(|&method| method != ClearMethod::Converging || !is_gigantic).collect()
}

impl ClearMethod {
    const fn name(self) -> &'static str {
        match self {
            Self::PageAtATime => "page-at-a-time",
            Self::Extents => "extents",
            Self::Converging => "converging",
            Self::Engine => "engine",
        }
    }
}

/// The bytes that are used once the folio is clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    Touch(usize),
    WriteAll,
}

const AFTER: [After; 4] =
    [After::Nothing, After::Touch(4 * KIB), After::Touch(64 * KIB), After::WriteAll];

impl After {
    fn suffix(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Touch(bytes) => format!("+touch-{}", Size(bytes)),
            Self::WriteAll => "+write-all".into(),
        }
    }

    const fn reuse(self) -> Reuse {
        match self {
            Self::WriteAll => Reuse::All,
            _ => Reuse::Target,
        }
    }

    fn apply(self, folio: &mut [u8], target: usize) {
        match self {
            Self::Nothing => {}
            Self::Touch(bytes) => {
                let page = target - target % SUBPAGE_BYTES;
                let start = page.min(folio.len() - bytes);
                store_words(&mut folio[start..][..bytes]);
            }
            Self::WriteAll => store_words(folio),
        }
    }
}

/// Stores to every word of eight bytes, ascending, each by an instruction of its own.
#[allow(unsafe_code)]
pub(super) fn store_words(bytes: &mut [u8]) {
    for (value, word) in (0_u64..).zip(bytes.chunks_exact_mut(8)) {
        // SAFETY: eight writable bytes; the volatile store keeps the loop from being widened.
        unsafe { word.as_mut_ptr().cast::<u64>().write_volatile(value) };
    }
}

/// A method with its needs.
#[derive(Clone, Copy, Debug)]
struct Clearer {
    method: ClearMethod,
    /// The published methods' instruction.
    string: &'static ClearRoutine,
    /// The engine's only routine, where the user named one.
    only: Option<&'static ClearRoutine>,
}

impl Clearer {
    fn clear(self, folio: &mut [u8], target: usize, reuse: Reuse) {
        let published = ClearOptions::new().routine(self.string).near_bytes(PUBLISHED_NEAR_BYTES);
        match self.method {
            ClearMethod::PageAtATime => clear_pages(self.string, folio),
            // Gigantic pages have no neighbourhood in the published work.
            ClearMethod::Extents if folio.len() > GIGANTIC_OVER_BYTES => run(&published, folio),
            ClearMethod::Extents => run(&published.target(target), folio),
            ClearMethod::Converging => clear_converging(self.string, folio, target),
            ClearMethod::Engine => {
                let engine = ClearOptions::new().target(target).reuse(reuse);
                run(&self.only.iter().fold(engine, |engine, only| engine.routine(only)), folio);
            }
        }
    }
}

/// Nothing between the pages but the call itself: the baseline is not to pay for our builder.
#[allow(unsafe_code)]
fn clear_pages(routine: &ClearRoutine, folio: &mut [u8]) {
    let mut unfenced = Unfenced::nothing();
    for page in folio.chunks_mut(SUBPAGE_BYTES) {
        // SAFETY: the page is ours alone; `string_routine` is available everywhere.
        unfenced = unfenced.and(unsafe { routine.run(page.as_mut_ptr(), page.len()) });
    }
    unfenced.publish();
}

/// The engine has no such order.
#[allow(unsafe_code)]
fn clear_converging(routine: &ClearRoutine, folio: &mut [u8], target: usize) {
    let mut unfenced = Unfenced::nothing();
    for extent in Order::Converging.extents(folio.len(), Some(target), PUBLISHED_NEAR_BYTES) {
        let page = &mut folio[extent.bytes];
        // SAFETY: as for `clear_pages`.
        unfenced = unfenced.and(unsafe { routine.run(page.as_mut_ptr(), page.len()) });
    }
    unfenced.publish();
}

fn run(clear: &ClearOptions<'_>, bytes: &mut [u8]) {
    clear.run(bytes).expect("targets lie within the folio and routines were checked");
}

/// Measures a sample in microseconds per folio: the next folios of the arena, over and over, each with a target of
/// its own.
fn walk(arena: &mut [u8], next: &mut usize, folio: usize, clearer: Clearer, after: After) -> f64 {
    let (folios, per_sample) = (arena.len() / folio, SAMPLE_BYTES.div_ceil(folio));
    let start = Instant::now();
    for turn in 0..per_sample {
        let bytes = &mut arena[*next * folio..][..folio];
        let target = target_of(turn, folio);
        clearer.clear(bytes, target, after.reuse());
        after.apply(bytes, target);
        *next = (*next + 1) % folios;
    }
    start.elapsed().as_secs_f64() * 1e6 / per_sample as f64
}

/// A target that looks random but is the same for every method: multiples of the golden ratio
/// spread evenly over the folio.
pub(super) fn target_of(turn: usize, folio: usize) -> usize {
    let golden = (turn as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (golden >> 32) as usize * (folio / KIB) / (1 << 32) * KIB
}

fn run_experiment(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let mut experiment = bench.experiment("clear")?;
    experiment.notices.extend(notices(bench)?);
    for folio in FOLIOS {
        let has = bench.arena()?.len();
        if folio > has {
            experiment.notices.push(left_out(&Size(folio).to_string(), folio, has));
            continue;
        }
        for after in AFTER {
            experiment.absorb(measure(bench, folio, after)?);
        }
    }
    Ok(experiment)
}

fn notices(bench: &mut Bench<'_>) -> Result<Vec<String>, LabError> {
    let mut notices = vec![
        "workload differs: the published figures are demand faults of 64 GiB, not clears of \
         memory that is mapped already"
            .to_owned(),
        "a 1GiB folio here is an aligned run of whatever pages the memory is on".to_owned(),
    ];
    let llc = bench.caches().map_or(0, |caches| caches.llc);
    if bench.arena()?.len() < 2 * llc {
        notices
            .push(format!("the memory is no larger than two last-level caches of {}", Size(llc)));
    }
    Ok(notices)
}

fn string_routine() -> &'static ClearRoutine {
    clear_routine("rep_stosb").unwrap_or(&clear_routines()[0])
}

/// Every method, and each against the page at a time. Only where the folio is not used at all does the engine
/// leave work behind: what it streamed is not in the cache for its next user.
fn measure(bench: &mut Bench<'_>, folio: usize, after: After) -> Result<Part, LabError> {
    let label = format!("{}{}", Size(folio), after.suffix());
    let only = bench.options().routine.as_deref().and_then(clear_routine);
    let rounds = bench.rounds(1.0 / (FOLIOS.len() * AFTER.len()) as f64, 100);
    rounds.observer.begin(&format!("clear {label}"));
    let (bytes, mut next) = (bench.arena()?.bytes(), 0);
    let methods = methods(folio);
    let name = |method: &ClearMethod| format!("{}/{label}", method.name());
    let names: Vec<String> = methods.iter().map(name).collect();
    let mut part = rounds.measure("clear", Unit::Microseconds, &names, |index| {
        let clearer = Clearer { method: methods[index], string: string_routine(), only };
        Ok(walk(bytes, &mut next, folio, clearer, after))
    })?;
    for method in &methods[1..] {
        let leaves_work = (*method, after) == (ClearMethod::Engine, After::Nothing);
        let moved = leaves_work.then_some(COLD_AFTERWARDS);
        part.compare((methods[0].name(), method.name()), &label, moved);
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_lie_within_the_folio_and_spread() {
        for folio in FOLIOS {
            let targets: Vec<_> = (0..16).map(|turn| target_of(turn, folio)).collect();
            assert!(targets.iter().all(|&target| target < folio));
            assert!(targets.iter().any(|&target| target < folio / 4));
            assert!(targets.iter().any(|&target| target > folio / 4 * 3));
        }
    }

    #[test]
    fn every_method_clears_the_whole_folio() {
        for (folio, converges) in [(2 * MIB, true), (8 * MIB, false)] {
            assert_eq!(methods(folio).contains(&ClearMethod::Converging), converges);
            for method in methods(folio) {
                let mut bytes = vec![1; folio];
                let clearer = Clearer { method, string: string_routine(), only: None };
                clearer.clear(&mut bytes, 12345, Reuse::Target);
                assert!(bytes.iter().all(|&byte| byte == 0), "{}", method.name());
            }
        }
    }

    #[test]
    fn a_touch_near_the_end_stays_within_the_folio() {
        let mut folio = vec![0; 128 * KIB];
        After::Touch(64 * KIB).apply(&mut folio, 128 * KIB - 1);
        assert_eq!(folio.iter().position(|&byte| byte != 0), Some(64 * KIB + 8));
    }
}
