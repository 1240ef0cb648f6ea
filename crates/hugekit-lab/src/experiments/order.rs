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
use rustix::time::{ClockId, clock_gettime};

use super::clear::{PUBLISHED_NEAR_BYTES, store_words, target_of};
use super::part::{Part, found};
use crate::LabError;
use crate::bench::{Bench, left_out};
use crate::conditions::{Conditions, NO_KERNEL};
use crate::published::{self, Beside, Elsewhere};
use crate::record::{Case, Ratio, Unit, parts};
use crate::sampler::try_alternate;
use crate::size::{GIB, MIB, Size};
use crate::threads::spawn;

const FOLIO: usize = 2 * MIB;

/// Folios that each writer copies for one sample.
const FOLIOS: usize = 8;

/// The last level that a thread of the published machine had: 45 MiB for 36 threads.
const SHARE: usize = 5 * MIB / 4;

/// Last levels up to this are filled for each page; larger ones take longer to read than all the rest.
const MOST_READ: usize = 64 * MIB;

/// The way in which a huge page is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Page by page, ascending: what the published work started from.
    Sequential,
    /// Page by page, the farthest from the target first: the published order.
    Converging,
    /// Left of the target's neighbourhood, right of it, and that last.
    Sectioned,
    /// The same, where all but the neighbourhood streams past the cache: what its reviewers asked for.
    StreamedFar,
}

const METHODS: [Method; 4] =
    [Method::Sequential, Method::Converging, Method::Sectioned, Method::StreamedFar];

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Converging => "converging",
            Self::Sectioned => "sectioned",
            Self::StreamedFar => "streamed-far",
        }
    }
}

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
        Self {
            string: copy_routine("rep_movsb").unwrap_or(&copy_routines()[0]),
            streaming: chosen.or_else(|| streaming.next()),
        }
    }

    /// The methods that this CPU has.
    fn methods(self) -> Vec<Method> {
        let can = |method: &Method| *method != Method::StreamedFar || self.streaming.is_some();
        METHODS.into_iter().filter(can).collect()
    }

    fn copy(self, method: Method, dst: &mut [u8], src: &[u8], target: usize) {
        let order = match method {
            Method::Sequential => return self.copy_pages(dst, src),
            Method::Converging => Order::Converging,
            Method::Sectioned | Method::StreamedFar => Order::Sectioned,
        };
        let far = match method {
            Method::StreamedFar => self.streaming.unwrap_or(self.string),
            _ => self.string,
        };
        let mut unfenced = Unfenced::nothing();
        for extent in order.extents(dst.len(), Some(target), PUBLISHED_NEAR_BYTES) {
            let routine = if extent.reach == Reach::Near { self.string } else { far };
            let (dst, src) = (&mut dst[extent.bytes.clone()], &src[extent.bytes]);
            unfenced = unfenced.and(run(routine, dst, src));
        }
        unfenced.publish();
    }

    fn copy_pages(self, dst: &mut [u8], src: &[u8]) {
        let mut unfenced = Unfenced::nothing();
        for (dst, src) in dst.chunks_mut(SUBPAGE_BYTES).zip(src.chunks(SUBPAGE_BYTES)) {
            unfenced = unfenced.and(run(self.string, dst, src));
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

/// The byte of the huge page that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    First,
    Anywhere,
}

impl Target {
    const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Anywhere => "anywhere",
        }
    }

    /// The start of its subpage.
    fn offset(self, turn: usize) -> usize {
        match self {
            Self::First => 0,
            Self::Anywhere => target_of(turn, FOLIO) / SUBPAGE_BYTES * SUBPAGE_BYTES,
        }
    }
}

/// Bytes that a writer's antagonist reads, and of which level that leaves 1.25 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Antagonist {
    reads: usize,
    level: &'static str,
}

impl Antagonist {
    /// The last level where it can be filled again and again, and else a CPU's second one. `None` where
    /// neither is known or has more than is to be left.
    fn of(caches: CacheSizes, writers: usize) -> Option<Self> {
        let of_llc = (caches.llc / writers).checked_sub(SHARE).filter(|&reads| reads > 0);
        let of_l2 = caches.l2.checked_sub(SHARE).filter(|&reads| reads > 0);
        match (of_llc, of_l2) {
            (Some(reads), _) if caches.llc <= MOST_READ => {
                Some(Self { reads, level: "the last level" })
            }
            (_, Some(reads)) => Some(Self { reads, level: "its L2" }),
            _ => None,
        }
    }

    fn notice(self, writers: usize) -> String {
        format!(
            "scarce, writers: {writers}: between copy and use, outside the clock, each reads {} of other memory \
             on its CPU, which leaves 1.25MiB of {} to it, as threads had of the last level in 2018",
            Size(self.reads),
            self.level
        )
    }
}

/// Loads a word of each cache line.
#[allow(unsafe_code)]
fn read_lines(bytes: &[u8]) {
    for line in bytes.chunks_exact(64) {
        // SAFETY: a readable byte; the volatile load keeps the loop from being left out.
        unsafe { line.as_ptr().read_volatile() };
    }
}

/// What is done with writers of which number, and where it is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) experiment: &'static str,
    pub(super) writers: usize,
    /// Bytes of each huge page that are stored to afterwards, from the target on and round its end.
    pub(super) used: usize,
    /// Of the experiment's time.
    pub(super) share: f64,
}

impl Look {
    fn label(self, target: Target, scarce: bool) -> String {
        let scarce = if scarce { "-scarce" } else { "" };
        match self.used {
            FOLIO => format!("{}-{}{scarce}", self.writers, target.name()),
            used => {
                let (folio, used) = (Size(FOLIO), Size(used));
                format!("{folio}-touch-{used}-{}{scarce}", target.name())
            }
        }
    }
}

/// A case: what one sample does.
#[derive(Clone, Copy, Debug)]
struct Turn {
    method: Method,
    target: Target,
    scarce: bool,
}

/// One writer's memory, and how far it has come.
struct Writer<'a> {
    origin: &'a [u8],
    copy: &'a mut [u8],
    /// Memory of its antagonist.
    other: &'a [u8],
    next: usize,
}

/// What a writer took for a sample.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    elapsed: Duration,
    cpu: Duration,
}

impl Took {
    fn add<T>(&mut self, work: impl FnOnce() -> T) {
        let (cpu, start) = (cpu_time(), Instant::now());
        work();
        self.elapsed += start.elapsed();
        self.cpu += cpu_time() - cpu;
    }
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("time spent is not negative")
}

impl<'a> Writer<'a> {
    /// Equal parts of this memory for so many, each half origin and half copy, beside what antagonists read.
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
            let target = turn.target.offset(count);
            took.add(|| copier.copy(turn.method, dst, src, target));
            if turn.scarce {
                read_lines(self.other);
            }
            took.add(|| store_from(dst, target, used));
        }
        took
    }
}

/// Stores to every word of so many bytes, from `start` on and round the end.
fn store_from(folio: &mut [u8], start: usize, bytes: usize) {
    let before_the_end = bytes.min(folio.len() - start);
    store_words(&mut folio[start..][..before_the_end]);
    store_words(&mut folio[..bytes - before_the_end]);
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
pub(super) fn measure(bench: &mut Bench<'_>, look: Look) -> Result<Part, LabError> {
    let copier = Copier::new();
    let antagonist = bench.caches().and_then(|caches| Antagonist::of(caches, look.writers));
    let reads = antagonist.map_or(0, |antagonist| antagonist.reads);
    let plan = bench.plan(look.share, 60);
    let (arena, observer) = bench.arena_and_observer()?;
    let (has, needed) = (arena.len(), reads + 2 * FOLIO * look.writers);
    let mut part = Part::default();
    if has < needed {
        part.notices.push(left_out(
            &format!("order of copying, {} writers", look.writers),
            needed,
            has,
        ));
        return Ok(part);
    }
    part.notices.extend(notices(look, copier, antagonist));
    observer.begin(&format!("{} order, {} writers", look.experiment, look.writers));
    let turns = turns(copier, antagonist.is_some());
    let mut writers = Writer::several(arena.bytes(), look.writers, reads);
    let mut cpu: Vec<Vec<f64>> = turns.iter().map(|_| Vec::new()).collect();
    let rounds = try_alternate(plan, turns.len(), observer, |index| {
        let took = together(&mut writers, copier, turns[index], look.used)?;
        let pages = (FOLIOS * took.len()) as f64;
        cpu[index].push(took.iter().map(|one| one.cpu.as_secs_f64()).sum::<f64>() * 1e6 / pages);
        let rate = |one: &Took| (FOLIOS * FOLIO) as f64 / GIB as f64 / one.elapsed.as_secs_f64();
        Ok(took.iter().map(rate).sum())
    })?;
    let cases = part.cases_of(rounds, |index, samples| {
        case(look, turns[index], ("", Unit::GibPerSecond), samples)
    });
    let user = cases.iter().zip(cpu).zip(&turns).map(|((rate, cpu), &turn)| {
        // The first of them was thrown away with its bandwidth.
        let samples = cpu[cpu.len() - rate.as_ref()?.samples.len()..].to_vec();
        Some(case(look, turn, ("-user", Unit::Microseconds), samples))
    });
    let user: Vec<Option<Case>> = user.collect();
    part.ratios = against_sequential(&turns, &cases, look, "");
    part.ratios.extend(against_sequential(&turns, &user, look, "-user"));
    if look.used == FOLIO {
        part.elsewhere = published_beside(&mut part.ratios, look);
    }
    part.cases = found(cases);
    part.cases.extend(found(user));
    Ok(part)
}

fn notices(look: Look, copier: Copier, antagonist: Option<Antagonist>) -> Vec<String> {
    let streaming = copier
        .streaming
        .map_or("nothing here streams, so streamed-far is left out".into(), |routine| {
            format!("streamed-far by {}", routine.name())
        });
    let routines = format!(
        "order of copying: {} for every method, {streaming}; the copy is called for, no fault is involved",
        copier.string.name()
    );
    let scarce = antagonist.map_or_else(
        || {
            format!(
                "scarce, writers: {}, left out: this machine does not say what its caches are, or leaves a \
                 thread no more than 1.25MiB",
                look.writers
            )
        },
        |antagonist| antagonist.notice(look.writers),
    );
    (look.writers == 1).then_some(routines).into_iter().chain([scarce]).collect()
}

/// Every case there is, the methods of one workload beside each other.
fn turns(copier: Copier, scarce: bool) -> Vec<Turn> {
    let caches = if scarce { &[false, true][..] } else { &[false] };
    let workloads = [Target::First, Target::Anywhere]
        .into_iter()
        .flat_map(|target| caches.iter().map(move |&scarce| (target, scarce)));
    let of = |(target, scarce)| {
        copier.methods().into_iter().map(move |method| Turn { method, target, scarce })
    };
    workloads.flat_map(of).collect()
}

fn case(look: Look, turn: Turn, (kind, unit): (&str, Unit), samples: Vec<f64>) -> Case {
    let label = look.label(turn.target, turn.scarce);
    let id = format!("{}/{}{kind}/{label}", look.experiment, turn.method.name());
    Case { id, unit, samples, published: Vec::new() }
}

/// Each method against the sequential one on the same workload.
fn against_sequential(
    turns: &[Turn],
    cases: &[Option<Case>],
    look: Look,
    kind: &str,
) -> Vec<Ratio> {
    let mut baseline = None;
    let mut ratios = Vec::new();
    for (turn, case) in turns.iter().zip(cases) {
        if turn.method == Method::Sequential {
            baseline = case.as_ref();
            continue;
        }
        let (Some(baseline), Some(case)) = (baseline, case) else { continue };
        let label = look.label(turn.target, turn.scarce);
        let name = turn.method.name();
        let id = format!("{}/sequential-vs-{name}{kind}/{label}", look.experiment);
        ratios.push(Ratio::between(id, baseline, case));
    }
    ratios
}

/// Puts what the target last gained in the kernel beside what it gains here, where all else is the same;
/// returns the rest.
fn published_beside(ratios: &mut [Ratio], look: Look) -> Vec<Elsewhere> {
    let ours = Conditions {
        ran: "copies of huge pages called for, and stores to every word".to_owned(),
        kernel: NO_KERNEL.to_owned(),
        memory: None,
        pages: Some(Size(FOLIO).to_string()),
        threads: Some(look.writers),
    };
    let workload = look.label(Target::First, true);
    let mut elsewhere = Vec::new();
    for ratio in ratios.iter_mut().filter(|ratio| ratio.id.ends_with(&workload)) {
        let figures = match parts(&ratio.id) {
            Some(("sequential-vs-converging", _)) => published::cow_throughput(),
            Some(("sequential-vs-converging-user", _)) => published::cow_user_time(),
            _ => continue,
        };
        let beside = Beside::of(&ratio.id, &ours, figures);
        ratio.published = beside.same;
        elsewhere.extend(beside.elsewhere);
    }
    // Of cycles the record has counts by case, no ratio: this one can stand beside nothing.
    let cycles = published::cow_instructions_per_cycle();
    let id = format!("cow/instructions-per-cycle/{workload}");
    elsewhere.extend(Beside::of(&id, &ours, cycles).elsewhere);
    elsewhere
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
                assert!(copy == source, "{method:?} {target}");
            }
        }
    }

    #[test]
    fn targets_are_the_first_subpage_or_spread_over_all() {
        assert!((0..FOLIOS).all(|turn| Target::First.offset(turn) == 0));
        let anywhere: Vec<_> = (0..FOLIOS).map(|turn| Target::Anywhere.offset(turn)).collect();
        assert!(anywhere.iter().all(|at| at % SUBPAGE_BYTES == 0 && *at < FOLIO));
        assert!(
            anywhere.iter().any(|&at| at < FOLIO / 4)
                && anywhere.iter().any(|&at| at > FOLIO / 4 * 3)
        );
    }

    #[test]
    fn what_is_used_goes_round_the_end_and_no_further() {
        let mut folio = vec![0xff; 4096];
        store_from(&mut folio, 4000, 192);
        let untouched = folio.iter().filter(|&&byte| byte == 0xff).count();
        assert_eq!(untouched, 4096 - 192);
        assert!(
            folio[95] != 0xff && folio[96] == 0xff && folio[3999] == 0xff && folio[4000] != 0xff
        );
    }

    #[test]
    fn writers_copy_and_use_memory_of_their_own() {
        let mut memory = vec![7; 2 * FOLIO + 4096 + 4 * FOLIO];
        let mut writers = Writer::several(&mut memory, 3, 4096);
        assert_eq!(writers.len(), 3);
        let turn = Turn { method: Method::Converging, target: Target::First, scarce: true };
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
        let caches = |l2, llc| CacheSizes { l1d: 32 << 10, l2, llc, llc_shared_by: 4 };
        let of = |l2, llc, writers| {
            Antagonist::of(caches(l2, llc), writers).map(|one| (one.reads, one.level))
        };
        assert_eq!(of(MIB / 2, 32 * MIB, 2), Some((16 * MIB - SHARE, "the last level")));
        assert_eq!(of(MIB / 2, 32 * MIB, 1), Some((32 * MIB - SHARE, "the last level")));
        assert_eq!(of(2 * MIB, 300 * MIB, 2), Some((2 * MIB - SHARE, "its L2")));
        assert_eq!(of(MIB, 300 * MIB, 2), None);
        assert_eq!(of(2 * MIB, 4 * MIB, 4), Some((2 * MIB - SHARE, "its L2")));
        assert_eq!(of(MIB, 4 * MIB, 4), None);
    }

    #[test]
    fn every_method_stands_against_the_sequential_one_on_the_same_workload() {
        let look = Look { experiment: "cow", writers: 2, used: FOLIO, share: 1.0 };
        let turns = turns(Copier::new(), true);
        let case = |(index, &turn): (usize, &Turn)| {
            Some(case(look, turn, ("-user", Unit::Microseconds), vec![(index + 1) as f64]))
        };
        let cases: Vec<_> = turns.iter().enumerate().map(case).collect();
        let ratios = against_sequential(&turns, &cases, look, "-user");
        let others = Copier::new().methods().len() - 1;
        assert_eq!(ratios.len(), 4 * others);
        for ratio in &ratios {
            let workload = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
            assert_eq!(workload(&ratio.baseline), workload(&ratio.subject), "{}", ratio.id);
            assert!(ratio.baseline.starts_with("cow/sequential-user/"), "{}", ratio.baseline);
        }
        assert_eq!(ratios[0].id, "cow/sequential-vs-converging-user/2-first");
        assert_eq!(ratios[0].median, 0.5);
    }

    #[test]
    fn the_published_gain_is_of_the_kernel_and_of_more_writers() {
        let look = Look { experiment: "cow", writers: 2, used: FOLIO, share: 1.0 };
        let turns = turns(Copier::new(), true);
        let cases = |(kind, unit)| -> Vec<_> {
            turns.iter().map(|&turn| Some(case(look, turn, (kind, unit), vec![1.0]))).collect()
        };
        for (kind, unit, value) in
            [("", Unit::GibPerSecond, 1.166), ("-user", Unit::Microseconds, 1.0 / 0.928)]
        {
            let mut ratios = against_sequential(&turns, &cases((kind, unit)), look, kind);
            let elsewhere = published_beside(&mut ratios, look);
            assert!(ratios.iter().all(|ratio| ratio.published.is_empty()));
            let beside: Vec<_> = elsewhere.iter().map(|one| one.beside.as_str()).collect();
            let id = format!("cow/sequential-vs-converging{kind}/2-first-scarce");
            assert_eq!(beside, [&id, "cow/instructions-per-cycle/2-first-scarce"]);
            assert!((elsewhere[0].published.value - value).abs() < 1e-9);
            let aspects: Vec<_> = elsewhere[0].differs.iter().map(|d| d.aspect.as_str()).collect();
            assert_eq!(aspects, ["ran", "kernel", "threads"]);
        }
    }
}
