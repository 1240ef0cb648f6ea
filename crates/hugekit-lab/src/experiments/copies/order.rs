//! Idea 2, the order of copying: a huge page is copied by one of four methods, and then used from the byte
//! on that asked for it.
//!
//! Writers go through memory of their own as the children of anon-cow-seq (2018) did, but no fault is
//! involved: each calls for the copy of a huge page where the kernel's fault would have made it, and then
//! stores to every word. All methods but the last use the same string instruction, so that the order is all
//! that differs.
//!
//! The published effect needs a cache that is short: 1.25 MiB of last level for each thread. Where it is
//! not, an antagonist makes it so (*scarce*): between the copy and the use, outside the clock, the writer
//! reads so much of other memory on its CPU that only as much of a cache level is left to what it copied.

use std::sync::RwLock;
use std::time::{Duration, Instant};

use hugekit::CopyOptions;
use hugekit_bulk::arch::{CopyRoutine, Kind, Unfenced, copy_routine, copy_routines};
use hugekit_bulk::sweep::{Order, Reach, SUBPAGE_BYTES};
use hugekit_machine::CacheSizes;

use crate::LabError;
use crate::experiments::Bench;
use crate::experiments::bench::left_out;
use crate::experiments::clear::{PUBLISHED_NEAR_BYTES, store_words, target_of};
use crate::machine::usage::thread_time;
use crate::measure::part::Part;
use crate::record::Unit;
use crate::record::published::{self, Conditions};
use crate::size::{GIB, MIB, Size};
use crate::workloads::threads::spawn;

const FOLIO: usize = 2 * MIB;

/// Folios that each writer copies for one sample.
const FOLIOS: usize = 8;

/// The last level that a thread of the published machine had: 45 MiB for 36 threads.
const SHARE: usize = 5 * MIB / 4;

/// Last levels up to this are filled for each page; larger ones take longer to read than all the rest.
const MOST_READ: usize = 64 * MIB;

/// Page by page, ascending: what the published work started from.
const SEQUENTIAL: &str = "sequential";
/// Page by page, the farthest from the target first: the published order.
const CONVERGING: &str = "converging";
/// Left of the target's neighbourhood, right of it, and that last.
const SECTIONED: &str = "sectioned";
/// The same, where all but the neighbourhood streams past the cache: what its reviewers asked for.
const STREAMED_FAR: &str = "streamed-far";

/// The routines of all methods: a string instruction, and what streams.
#[derive(Clone, Copy, Debug)]
struct Copier {
    string: &'static CopyRoutine,
    streaming: Option<&'static CopyRoutine>,
}

impl Copier {
    /// What streams is the engine's choice for cold memory where that streams, and else the first that does.
    fn new() -> Self {
        let chosen = CopyOptions::new().reuse(hugekit::Reuse::None).chosen_for(FOLIO).routine;
        let streams =
            |routine: &&CopyRoutine| routine.kind() == Kind::Streaming && routine.is_available();
        let mut streaming = copy_routines().iter().filter(streams);
        let chosen = streaming.clone().find(|routine| routine.name() == chosen);
        let string = copy_routine("rep_movsb").unwrap_or(&copy_routines()[0]);
        Self { string, streaming: chosen.or_else(|| streaming.next()) }
    }

    /// The methods that this CPU has.
    fn methods(self) -> impl Iterator<Item = &'static str> {
        let streamed = self.streaming.map(|_| STREAMED_FAR);
        [SEQUENTIAL, CONVERGING, SECTIONED].into_iter().chain(streamed)
    }

    fn copy(self, method: &str, dst: &mut [u8], src: &[u8], target: usize) {
        let far = self.streaming.filter(|_| method == STREAMED_FAR).unwrap_or(self.string);
        let mut unfenced = Unfenced::nothing();
        if method == SEQUENTIAL {
            for (dst, src) in dst.chunks_mut(SUBPAGE_BYTES).zip(src.chunks(SUBPAGE_BYTES)) {
                unfenced = unfenced.and(run(self.string, dst, src));
            }
            return unfenced.publish();
        }
        let order = if method == CONVERGING { Order::Converging } else { Order::Sectioned };
        for extent in order.extents(dst.len(), Some(target), PUBLISHED_NEAR_BYTES) {
            let routine = if extent.reach == Reach::Near { self.string } else { far };
            let (dst, src) = (&mut dst[extent.bytes.clone()], &src[extent.bytes]);
            unfenced = unfenced.and(run(routine, dst, src));
        }
        unfenced.publish();
    }
}

#[allow(unsafe_code)]
fn run(routine: &CopyRoutine, dst: &mut [u8], src: &[u8]) -> Unfenced {
    assert_eq!(dst.len(), src.len());
    // SAFETY: two slices of one length, one of them borrowed mutably; `Copier` has available routines only.
    unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
}

/// Bytes that a writer's antagonist reads, and of which level that leaves 1.25 MiB: the last level where it can
/// be filled again and again, and else a CPU's second one. `None` where neither is known or has more than is to
/// be left.
fn antagonist(caches: CacheSizes, writers: usize) -> Option<(usize, &'static str)> {
    let spare = |bytes: usize| bytes.checked_sub(SHARE).filter(|&reads| reads > 0);
    let of_llc = spare(caches.llc / writers).filter(|_| caches.llc <= MOST_READ);
    let of_l2 = || spare(caches.l2).map(|reads| (reads, "its L2"));
    of_llc.map(|reads| (reads, "the last level")).or_else(of_l2)
}

/// Loads a word of each cache line.
#[allow(unsafe_code)]
fn read_lines(bytes: &[u8]) {
    for line in bytes.chunks_exact(64) {
        // SAFETY: a readable byte; the volatile load keeps the loop from being left out.
        unsafe { line.as_ptr().read_volatile() };
    }
}

/// Stores to every word of this many bytes, from `start` on and round the end.
fn store_from(folio: &mut [u8], start: usize, bytes: usize) {
    let before_the_end = bytes.min(folio.len() - start);
    store_words(&mut folio[start..][..before_the_end]);
    store_words(&mut folio[..bytes - before_the_end]);
}

/// What is done with writers of which number, and where it is recorded.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Look {
    pub(in super::super) experiment: &'static str,
    pub(in super::super) writers: usize,
    /// Bytes of each huge page that are stored to afterwards, from the target on and round its end.
    pub(in super::super) used: usize,
    /// Of the experiment's time.
    pub(in super::super) share: f64,
}

/// What one sample does: the byte that is asked for is the page's first, or anywhere.
#[derive(Clone, Copy, Debug)]
struct Turn {
    method: &'static str,
    is_anywhere: bool,
    is_scarce: bool,
}

impl Turn {
    /// Every case there is, the methods of one workload beside each other.
    fn all(copier: Copier, scarce: bool) -> Vec<Self> {
        let caches = if scarce { &[false, true][..] } else { &[false] };
        let targets = [false, true].into_iter();
        let workloads = targets
            .flat_map(|is_anywhere| caches.iter().map(move |&is_scarce| (is_anywhere, is_scarce)));
        let of = |(is_anywhere, is_scarce)| {
            copier.methods().map(move |method| Self { method, is_anywhere, is_scarce })
        };
        workloads.flat_map(of).collect()
    }

    fn label(self, look: Look) -> String {
        let target = if self.is_anywhere { "anywhere" } else { "first" };
        let scarce = if self.is_scarce { "-scarce" } else { "" };
        match look.used {
            FOLIO => format!("{}-{target}{scarce}", look.writers),
            used => format!("{}-touch-{}-{target}{scarce}", Size(FOLIO), Size(used)),
        }
    }

    /// The start of the target's subpage.
    fn target(self, turn: usize) -> usize {
        if self.is_anywhere { target_of(turn, FOLIO) / SUBPAGE_BYTES * SUBPAGE_BYTES } else { 0 }
    }
}

/// One writer's memory, and how far it has come.
struct Writer<'a> {
    origin: &'a [u8],
    copy: &'a mut [u8],
    /// Memory of its antagonist.
    other: &'a [u8],
    next: usize,
}

/// Time that passed, and CPU time.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    elapsed: Duration,
    cpu: Duration,
}

impl Took {
    fn add<T>(&mut self, work: impl FnOnce() -> T) {
        let (cpu, start) = (thread_time(), Instant::now());
        work();
        self.elapsed += start.elapsed();
        self.cpu += thread_time() - cpu;
    }
}

impl<'a> Writer<'a> {
    /// Equal parts of this memory for all of them, each half origin and half copy, beside what antagonists read.
    fn several(memory: &'a mut [u8], writers: usize, reads: usize) -> Vec<Self> {
        let (other, memory) = memory.split_at_mut(reads);
        let each = memory.len() / writers / 2 / FOLIO * FOLIO;
        let other: &[u8] = other;
        let parts = memory.chunks_exact_mut(2 * each).take(writers);
        let writer = |part: &'a mut [u8]| {
            let (origin, copy) = part.split_at_mut(each);
            Self { origin, copy, other, next: 0 }
        };
        parts.map(writer).collect()
    }

    /// Copies and uses the next pages.
    fn work(&mut self, copier: Copier, turn: Turn, used: usize) -> Took {
        let mut took = Took::default();
        for count in 0..FOLIOS {
            let at = self.next * FOLIO;
            self.next = (self.next + 1) % (self.copy.len() / FOLIO);
            let (dst, src) = (&mut self.copy[at..][..FOLIO], &self.origin[at..][..FOLIO]);
            let target = turn.target(count);
            took.add(|| copier.copy(turn.method, dst, src, target));
            if turn.is_scarce {
                read_lines(self.other);
            }
            took.add(|| store_from(dst, target, used));
        }
        took
    }
}

/// All writers at once: what each of them took.
fn together(
    writers: &mut [Writer<'_>],
    copier: Copier,
    turn: Turn,
    used: usize,
) -> Result<Vec<Took>, LabError> {
    let gate = &RwLock::new(());
    std::thread::scope(|scope| {
        let closed = gate.write();
        let started = writers.iter_mut().map(|writer| {
            spawn(scope, move || {
                drop(gate.read());
                writer.work(copier, turn, used)
            })
        });
        let started: Result<Vec<_>, LabError> = started.collect();
        // Those that were started are not kept waiting, whether all were or not.
        drop(closed);
        Ok(started?.into_iter().map(|thread| thread.join().expect("a writer")).collect())
    })
}

/// Measures every method on targets of both kinds, with the cache as it is and scarce.
pub(in super::super) fn measure(bench: &mut Bench<'_>, look: Look) -> Result<Part, LabError> {
    let (copier, writers) = (Copier::new(), look.writers);
    let antagonist = bench.caches().and_then(|caches| antagonist(caches, writers));
    let reads = antagonist.map_or(0, |(reads, _)| reads);
    let (rounds, arena) = (bench.rounds(look.share, 60), bench.arena()?);
    let (has, needed) = (arena.len(), reads + 2 * FOLIO * writers);
    if has < needed {
        let name = format!("order of copying, {writers} writers");
        return Ok(Part::notice(left_out(&name, needed, has)));
    }
    rounds.observer.begin(&format!("{} order, {writers} writers", look.experiment));
    let turns = Turn::all(copier, antagonist.is_some());
    let names: Vec<_> =
        turns.iter().map(|turn| format!("{}/{}", turn.method, turn.label(look))).collect();
    let mut writers = Writer::several(arena.bytes(), writers, reads);
    let measured = rounds.measure_with(look.experiment, Unit::GibPerSecond, &names, |index| {
        let took = together(&mut writers, copier, turns[index], look.used)?;
        let cpu: Duration = took.iter().map(|one| one.cpu).sum();
        let rate = |one: &Took| (FOLIOS * FOLIO) as f64 / GIB as f64 / one.elapsed.as_secs_f64();
        let of_page = cpu.as_secs_f64() * 1e6 / (FOLIOS * took.len()) as f64;
        Ok((took.iter().map(rate).sum(), of_page))
    });
    let (mut part, cpu) = measured?;
    for (turn, cpu) in turns.iter().zip(cpu) {
        let name = format!("{}-user/{}", turn.method, turn.label(look));
        part.add_case(&name, Unit::Microseconds, cpu);
    }
    part.notices.extend(notices(look, copier, antagonist));
    compare(&mut part, &turns, look);
    Ok(part)
}

fn notices(
    look: Look,
    copier: Copier,
    antagonist: Option<(usize, &str)>,
) -> impl Iterator<Item = String> {
    let (string, writers) = (copier.string.name(), look.writers);
    let streaming = copier
        .streaming
        .map_or("nothing here streams, so streamed-far is left out".into(), |routine| {
            format!("streamed-far by {}", routine.name())
        });
    let routines = format!(
        "order of copying: {string} for every method, {streaming}; the copy is called for, no fault is involved"
    );
    let scarce = match antagonist {
        Some((reads, level)) => format!(
            ": between copy and use, outside the clock, each reads {} of other memory on its CPU, which leaves \
             1.25MiB of {level} to it, as threads had of the last level in 2018",
            Size(reads)
        ),
        None => ", left out: this machine does not say what its caches are, or leaves a thread no more than \
                 1.25MiB"
            .to_owned(),
    };
    let scarce = format!("scarce, writers: {writers}{scarce}");
    (writers == 1).then_some(routines).into_iter().chain([scarce])
}

/// Each method against the sequential one on the same workload, and beside the published order what it gained in
/// the kernel.
fn compare(part: &mut Part, turns: &[Turn], look: Look) {
    for kind in ["", "-user"] {
        for turn in turns.iter().filter(|turn| turn.method != SEQUENTIAL) {
            let (label, method) = (turn.label(look), turn.method);
            let sides = [SEQUENTIAL, method].map(|method| format!("{method}{kind}/{label}"));
            let name = format!("{SEQUENTIAL}-vs-{method}{kind}/{label}");
            part.ratio(&name, (&sides[0], &sides[1]), None);
        }
    }
    if look.used != FOLIO {
        return;
    }
    let ran = "copies of huge pages called for, and stores to every word";
    let (pages, threads) = (Some(Size(FOLIO).to_string()), Some(look.writers));
    let ours = Conditions { pages, threads, ..Conditions::without_kernel(ran) };
    let label = Turn { method: CONVERGING, is_anywhere: false, is_scarce: true }.label(look);
    for (kind, metric) in [("", "throughput"), ("-user", "user time")] {
        let id = format!("{}/{SEQUENTIAL}-vs-{CONVERGING}{kind}/{label}", look.experiment);
        part.put_beside(&id, &ours, published::cow(metric));
    }
    // Of cycles the record has counts by case, no ratio: this one can stand beside nothing.
    let cycles = published::cow("instructions per cycle");
    let id = format!("cow/instructions-per-cycle/{label}");
    part.elsewhere.extend(cycles.iter().filter_map(|figure| figure.elsewhere(&id, &ours)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_copies_all_of_the_page_wherever_the_target_is() {
        let copier = Copier::new();
        let source: Vec<u8> = (0..FOLIO).map(|at| (at % 251) as u8 + 1).collect();
        for method in copier.methods() {
            for target in [0, 5 * SUBPAGE_BYTES, FOLIO - 1] {
                let mut copy = vec![0; FOLIO];
                copier.copy(method, &mut copy, &source, target);
                assert!(copy == source, "{method} {target}");
            }
        }
    }

    #[test]
    fn what_is_used_goes_round_the_end_and_no_further() {
        let mut folio = vec![0xff; 4096];
        store_from(&mut folio, 4000, 192);
        assert_eq!(folio.iter().filter(|&&byte| byte == 0xff).count(), 4096 - 192);
        assert_eq!([95, 96, 3999, 4000].map(|at| folio[at] == 0xff), [false, true, true, false]);
    }

    #[test]
    fn writers_copy_and_use_memory_of_their_own() {
        let mut memory = vec![7; 2 * FOLIO + 4096 + 4 * FOLIO];
        let mut writers = Writer::several(&mut memory, 3, 4096);
        assert_eq!(writers.len(), 3);
        let turn = Turn { method: CONVERGING, is_anywhere: false, is_scarce: true };
        let took = together(&mut writers, Copier::new(), turn, 64).unwrap();
        assert!(took.iter().all(|one| !one.elapsed.is_zero() && !one.cpu.is_zero()));
        for writer in &writers {
            assert_eq!((writer.copy.len(), writer.other.len()), (FOLIO, 4096));
            assert!(writer.copy[64..].iter().all(|&byte| byte == 7));
            assert!(writer.copy[..64] != [7; 64] && writer.origin.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn an_antagonist_leaves_each_thread_what_it_had_then() {
        let of = |l2, llc, writers| {
            antagonist(CacheSizes { l1d: 32 << 10, l2, llc, llc_shared_by: 4 }, writers)
        };
        assert_eq!(of(MIB / 2, 32 * MIB, 2), Some((16 * MIB - SHARE, "the last level")));
        assert_eq!(of(MIB / 2, 32 * MIB, 1), Some((32 * MIB - SHARE, "the last level")));
        assert_eq!(of(2 * MIB, 300 * MIB, 2), Some((2 * MIB - SHARE, "its L2")));
        assert_eq!(of(MIB, 300 * MIB, 2), None);
        assert_eq!(of(2 * MIB, 4 * MIB, 4), Some((2 * MIB - SHARE, "its L2")));
        assert_eq!(of(MIB, 4 * MIB, 4), None);
    }

    #[test]
    fn methods_stand_against_the_sequential_one_and_published_gains_apart() {
        let look = Look { experiment: "cow", writers: 2, used: FOLIO, share: 1.0 };
        let (turns, mut part) = (Turn::all(Copier::new(), true), Part::new("cow"));
        for (kind, unit) in [("", Unit::GibPerSecond), ("-user", Unit::Microseconds)] {
            for (turn, sample) in turns.iter().zip(1..) {
                let name = format!("{}{kind}/{}", turn.method, turn.label(look));
                part.add_case(&name, unit, vec![f64::from(sample)]);
            }
        }
        compare(&mut part, &turns, look);
        assert_eq!(part.ratios.len(), 2 * 4 * (Copier::new().methods().count() - 1));
        for ratio in &part.ratios {
            let workload = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
            assert_eq!(workload(&ratio.baseline), workload(&ratio.subject), "{}", ratio.id);
            assert!(ratio.baseline.starts_with("cow/sequential") && ratio.published.is_empty());
        }
        let first =
            part.ratios.iter().find(|one| one.id == "cow/sequential-vs-converging-user/2-first");
        assert_eq!(first.unwrap().median, 0.5);
        let beside: Vec<_> = part.elsewhere.iter().map(|one| one.beside.as_str()).collect();
        let ids =
            ["sequential-vs-converging", "sequential-vs-converging-user", "instructions-per-cycle"];
        assert_eq!(beside, ids.map(|id| format!("cow/{id}/2-first-scarce")));
        for one in &part.elsewhere {
            let aspects: Vec<_> = one.differs.iter().map(|one| one.aspect.as_str()).collect();
            assert_eq!(aspects, ["ran", "kernel", "threads"]);
        }
    }
}
