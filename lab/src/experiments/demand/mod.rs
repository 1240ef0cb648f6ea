//! Idea 1's own workload: map memory, touch each of its pages once, and ask how fast that was.
//!
//! The kernel clears a page when it is touched. A pool clears what comes back to it: in the
//! background (*clean*), or, where the scrubber has not got round to it, when it is allocated (*dirty*, on
//! one thread or two). Everything from the request to the last touch is timed; giving back is not,
//! except in *sustained*, which counts the CPU time of a loop that maps, touches and gives back, on
//! every thread of the process, until nothing dirty is left behind.

mod whole_process;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::machine::memory::remedy;
use crate::measure::machine::usage::process_time;
use crate::measure::machine::{clearing_kernel, here};
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::record::published::{self, Conditions};
use crate::record::{Experiment, Unit};
use hugekit::pool::Backing;
use hugekit::{Pool, Threads};
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};

use super::memory_sources::{
    CLEARED_EARLIER, Given, Held, Turns, largest, soil, touch, unscrubbed,
};
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "demand",
    repeats: "demand faults of huge pages, 2023: the kernel, a pool clean and dirty",
    why: "Repeats the demand-fault workload of clearing in extents (2023): map memory, touch each page once. It is \
          what starting a guest or filling a heap costs, and what a pool that cleared its memory earlier saves.",
    headlines: &["kernel-hugetlb-vs-dirty", "kernel-thp-vs-dirty"],
    is_core: true,
    run,
};

/// The bytes that are asked for at a time, where not everything is asked for at once.
const UNIT: usize = 2 * MIB;

/// The bytes that one sample of such units touches, if that is four last-level caches.
const WALK_BYTES: usize = 256 * MIB;

/// The bytes that a sustained loop holds at a time, if that is two last-level caches.
const RING_BYTES: usize = 128 * MIB;

/// The way in which memory is supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupplyMethod {
    /// Mapped, and cleared by the kernel at each touch.
    Kernel(Pages),
    /// Mapped and populated by one call.
    Populate(Pages),
    /// A pool whose folios are clean.
    Clean,
    /// A pool whose folios so many threads clear as it hands them out.
    Dirty(usize),
}

impl SupplyMethod {
    /// In ids; a pool on base pages goes by another name, because that is another comparison.
    const fn name(self, on_base_pages: bool) -> &'static str {
        match self {
            Self::Kernel(Pages::Unsaid | Pages::Base) => "kernel-4k",
            Self::Kernel(Pages::Thp) => "kernel-thp",
            Self::Kernel(Pages::Hugetlb2M) => "kernel-hugetlb",
            Self::Kernel(Pages::Hugetlb1G) => "kernel-hugetlb-1g",
            Self::Populate(Pages::Hugetlb2M) => "map-populate-hugetlb",
            Self::Populate(_) => "map-populate",
            Self::Clean => "clean",
            Self::Dirty(_) if on_base_pages => "region-base",
            Self::Dirty(1) => "dirty",
            Self::Dirty(_) => "dirty-two-threads",
        }
    }

    /// Begins the turn of the kernel, or of the pool in the state that the method begins with.
    fn prepare(self, turns: &mut Turns) -> Result<(), LabError> {
        match self {
            Self::Kernel(pages) | Self::Populate(pages) => turns.give_way(pages),
            Self::Clean => drop(turns.pool()?.scrub()?),
            Self::Dirty(_) => soil(turns.pool()?)?,
        }
        Ok(())
    }

    /// This many bytes, each page of them touched once.
    fn take(self, turns: &mut Turns, bytes: usize) -> Result<Held, LabError> {
        let (mut held, page) = match self {
            Self::Kernel(pages) => (Held::Kernel(Anonymous::new(pages, bytes)?), pages.size()),
            Self::Populate(pages) => {
                (Held::Kernel(Anonymous::populated(pages, bytes)?), pages.size())
            }
            Self::Clean => {
                let pool = turns.pool()?;
                (Held::Region(pool.region(bytes)?), pool.page_size())
            }
            Self::Dirty(threads) => {
                let pool = turns.pool()?;
                let builder = pool.region_builder(bytes).threads(Threads::Exactly(threads));
                (Held::Region(builder.build()?), pool.page_size())
            }
        };
        touch(held.bytes(), page);
        Ok(held)
    }
}

/// Comparisons with a pool, whichever of them can be made: baseline and subject.
const PAIRS: [(SupplyMethod, SupplyMethod); 8] = [
    (SupplyMethod::Kernel(Pages::Hugetlb2M), SupplyMethod::Dirty(1)),
    (SupplyMethod::Kernel(Pages::Hugetlb1G), SupplyMethod::Dirty(1)),
    (SupplyMethod::Kernel(Pages::Thp), SupplyMethod::Dirty(1)),
    (SupplyMethod::Populate(Pages::Unsaid), SupplyMethod::Dirty(2)),
    (SupplyMethod::Populate(Pages::Hugetlb2M), SupplyMethod::Dirty(2)),
    (SupplyMethod::Kernel(Pages::Base), SupplyMethod::Dirty(1)),
    (SupplyMethod::Kernel(Pages::Hugetlb2M), SupplyMethod::Clean),
    (SupplyMethod::Kernel(Pages::Thp), SupplyMethod::Clean),
];

/// Methods that alternate: `units` times `unit` bytes are asked for, touched and held.
struct MethodGroup {
    turns: Turns,
    methods: Vec<SupplyMethod>,
    unit: usize,
    units: usize,
}

impl MethodGroup {
    fn on_base_pages(&self) -> bool {
        self.methods.contains(&SupplyMethod::Kernel(Pages::Base))
    }

    /// Measures a sample in GiB/s.
    fn sample(&mut self, method: SupplyMethod) -> Result<f64, LabError> {
        method.prepare(&mut self.turns)?;
        let start = Instant::now();
        let held: Result<Vec<Held>, LabError> =
            (0..self.units).map(|_| method.take(&mut self.turns, self.unit)).collect();
        let elapsed = start.elapsed();
        let held = held?;
        Ok((held.len() * self.unit) as f64 / GIB as f64 / elapsed.as_secs_f64())
    }

    fn measure(mut self, rounds: Rounds<'_>) -> Result<Part, LabError> {
        let (label, methods) = (Size(self.unit).to_string(), self.methods.clone());
        rounds.observer.begin(&format!("demand {label}"));
        let on_base_pages = self.on_base_pages();
        let name = |method: SupplyMethod| format!("{}/{label}", method.name(on_base_pages));
        let names: Vec<_> = methods.iter().map(|&method| name(method)).collect();
        let sample = |index: usize| self.sample(methods[index]);
        let mut part = rounds.measure("demand", Unit::GibPerSecond, &names, sample)?;
        for (baseline, subject) in PAIRS {
            let against = match subject {
                // Two threads because the kernel's one call leaves the other CPU idle.
                SupplyMethod::Dirty(2) => "dirty",
                subject => subject.name(on_base_pages),
            };
            let id = format!("{}-vs-{against}/{label}", baseline.name(on_base_pages));
            let moved = (subject == SupplyMethod::Clean).then_some(CLEARED_EARLIER);
            if methods.contains(&baseline) && methods.contains(&subject) {
                part.ratio(&id, (&name(baseline), &name(subject)), moved);
            }
        }
        for (&method, name) in methods.iter().zip(&names) {
            self.put_beside(&mut part, method, &format!("demand/{name}"));
        }
        Ok(part)
    }

    /// The kernel's huge pages at one go are the nearest to what was published.
    fn put_beside(&self, part: &mut Part, method: SupplyMethod, id: &str) {
        let SupplyMethod::Kernel(pages @ (Pages::Hugetlb2M | Pages::Hugetlb1G)) = method else {
            return;
        };
        if self.unit == UNIT {
            return;
        }
        let page = Size(pages.size()).to_string();
        let figures = published::demand(&page);
        let ours = here(Conditions {
            ran: "demand faults of huge pages, from the request to the last touch".to_owned(),
            kernel: clearing_kernel(),
            memory: Some(Size(self.unit * self.units).to_string()),
            pages: Some(page),
            threads: Some(1),
            ..Conditions::default()
        });
        part.put_beside(id, &ours, figures);
    }
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let given = Given::new(bench, 1)?;
    let mut experiment = given.experiment("demand", bench.options().setup);
    experiment.notices.extend(notices(&given));
    let sizes = Sizes::of(&given, bench.llc());
    let walk = walk_group(given, sizes.walk);
    let report = walk.as_ref().ok().map(|walk| walk.turns.backing_report().to_owned());
    let brief = bench.rounds(0.15, 40);
    experiment.add("walk", walk.and_then(|walk| walk.measure(brief)))?;
    if largest(given.memory) == GIB {
        let (long, base) = (bench.long_rounds(0.4, 12), bench.long_rounds(0.25, 8));
        experiment.add("region", region_group(given).and_then(|group| group.measure(long)))?;
        experiment.add("region-base", base_group(given).and_then(|group| group.measure(base)))?;
    }
    let whole = whole_process::measure(bench, given.memory, 0.2);
    experiment.add("process", whole)?;
    experiment.add("sustained", sustained(given, sizes.ring, bench.rounds(0.15, 20)))?;
    experiment.notices.extend(report);
    Ok(experiment)
}

/// The number of units that are touched one after the other, and the number that a sustained loop holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    walk: usize,
    ring: usize,
}

impl Sizes {
    /// The pool's pages and the kernel's take turns; a pool for the ring is twice as large as the ring.
    fn of(given: &Given, llc: usize) -> Self {
        let most = largest(given.memory);
        let walk = WALK_BYTES.max(4 * llc).min(most);
        let ring = RING_BYTES.max(2 * llc).min(most / 2);
        Self {
            walk: given.within_reserved(walk, WALK_BYTES, 1) / UNIT,
            ring: given.within_reserved(ring, RING_BYTES, 2) / UNIT,
        }
    }
}

fn notices(given: &Given) -> Vec<String> {
    let gigantic = (given.gigantic == 0).then(|| {
        let remedy = remedy(&Root::default(), Pages::Hugetlb1G.size(), 1);
        format!("the kernel's pages of 1GiB left out: none is free{remedy}")
    });
    let others = [
        "map-populate is anonymous memory mapped with MAP_POPULATE and no further word; dirty has two \
         threads there, and one elsewhere",
        "what dirty cleared it streamed: it is not in a cache for its next user, where the \
         kernel's last pages are; `lab clear` counts that",
    ];
    gigantic.into_iter().chain(others.map(str::to_owned)).collect()
}

/// Units of 2 MiB, one after the other.
fn walk_group(given: Given, units: usize) -> Result<MethodGroup, LabError> {
    let methods = [
        SupplyMethod::Kernel(Pages::Thp),
        SupplyMethod::Kernel(Pages::Hugetlb2M),
        SupplyMethod::Dirty(1),
        SupplyMethod::Clean,
    ];
    group(given, &methods, UNIT, units)
}

/// A region of 1 GiB at one go. Without transparent huge pages: so many of them at a time measure how
/// fragmented the machine is.
fn region_group(given: Given) -> Result<MethodGroup, LabError> {
    let methods = [
        SupplyMethod::Kernel(Pages::Hugetlb2M),
        SupplyMethod::Kernel(Pages::Hugetlb1G),
        SupplyMethod::Populate(Pages::Unsaid),
        SupplyMethod::Populate(Pages::Hugetlb2M),
        SupplyMethod::Dirty(2),
        SupplyMethod::Dirty(1),
        SupplyMethod::Clean,
    ];
    group(given, &methods, GIB, 1)
}

/// A pool on huge pages, and whatever of the kernel's there is to compare it with.
fn group(
    given: Given,
    methods: &[SupplyMethod],
    unit: usize,
    units: usize,
) -> Result<MethodGroup, LabError> {
    let bytes = unit * units;
    let allowed = |method: &&SupplyMethod| match **method {
        SupplyMethod::Kernel(pages) | SupplyMethod::Populate(pages) => given.allows(pages, bytes),
        _ => true,
    };
    let methods = methods.iter().filter(allowed).copied().collect();
    Ok(MethodGroup { turns: Turns::new(&given, unscrubbed(bytes))?, methods, unit, units })
}

/// The lowest tier against what it competes with there.
fn base_group(given: Given) -> Result<MethodGroup, LabError> {
    let turns = Turns::new(&given, unscrubbed(GIB).backing(Backing::Base))?;
    let methods = vec![SupplyMethod::Kernel(Pages::Base), SupplyMethod::Dirty(1)];
    Ok(MethodGroup { turns, methods, unit: GIB, units: 1 })
}

/// The CPU time of handing memory round, in microseconds for each unit.
fn sustained(given: Given, ring: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("demand sustained");
    let mut turns = Turns::new(&given, unscrubbed(2 * ring * UNIT).scrub_threads(1))?;
    let kernel = [Pages::Hugetlb2M, Pages::Thp].into_iter();
    let kernel = kernel.filter(|&pages| given.allows(pages, ring * UNIT)).map(SupplyMethod::Kernel);
    let methods: Vec<SupplyMethod> = kernel.chain([SupplyMethod::Clean]).collect();
    let name = |&method: &SupplyMethod| match method {
        SupplyMethod::Clean => "region",
        method => method.name(false),
    };
    let label = Size(UNIT).to_string();
    let names: Vec<_> =
        methods.iter().map(|method| format!("sustained-{}/{label}", name(method))).collect();
    let sample = |index: usize| sample_sustained(methods[index], &mut turns, ring);
    let mut part = rounds.measure("demand", Unit::Microseconds, &names, sample)?;
    let (region, kernel) = names.split_last().expect("the region is always a case");
    for (method, case) in methods.iter().zip(kernel) {
        let id = format!("sustained-{}-vs-region/{label}", name(method));
        part.ratio(&id, (case, region), None);
    }
    Ok(part)
}

/// Measures a sample: four times round the ring, with the oldest unit given back for each new one.
fn sample_sustained(method: SupplyMethod, turns: &mut Turns, ring: usize) -> Result<f64, LabError> {
    method.prepare(turns)?;
    let mut held: VecDeque<Held> =
        (0..ring).map(|_| method.take(turns, UNIT)).collect::<Result<_, _>>()?;
    let (steps, start) = (4 * ring, process_time());
    for _ in 0..steps {
        held.pop_front();
        held.push_back(method.take(turns, UNIT)?);
    }
    let mut clean =
        || if method == SupplyMethod::Clean { leave_nothing_dirty(turns.pool()?) } else { Ok(()) };
    clean()?;
    let spent = process_time() - start;
    drop(held);
    clean()?;
    Ok(spent.as_secs_f64() * 1e6 / steps as f64)
}

/// Clears what the scrubber has not got round to, and waits, asleep, for what it is at.
fn leave_nothing_dirty(pool: &Pool) -> Result<(), LabError> {
    pool.scrub()?;
    while pool.stats()?.dirty > 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit::pool::PoolBuilder;

    use crate::Quiet;
    use crate::measure::sampler::Plan;

    const NOTHING: Given = Given { memory: 0, thp: false, huge: 0, gigantic: 0 };

    fn turns(pool: PoolBuilder<'static>) -> Turns {
        Turns::new(&NOTHING, pool.backing(Backing::Base)).unwrap()
    }

    #[test]
    fn every_method_touches_what_it_takes() {
        let mut turns = turns(unscrubbed(4 * MIB));
        let methods = [
            SupplyMethod::Kernel(Pages::Base),
            SupplyMethod::Populate(Pages::Unsaid),
            SupplyMethod::Clean,
            SupplyMethod::Dirty(1),
            SupplyMethod::Dirty(2),
        ];
        for method in methods {
            method.prepare(&mut turns).unwrap();
            let mut held = method.take(&mut turns, 4 * MIB).unwrap();
            let page = rustix::param::page_size();
            let touched = held.bytes().iter().step_by(page).all(|&byte| byte == 1);
            let sum: u64 = held.bytes().iter().map(|&byte| u64::from(byte)).sum();
            assert!(touched && sum == (4 * MIB / page) as u64, "{method:?}");
        }
    }

    #[test]
    fn a_dirty_hand_out_clears_everything_and_a_clean_one_nothing() {
        let mut turns = turns(unscrubbed(4 * MIB));
        let pool = turns.pool().unwrap().clone();
        let mut on_allocation = |method: SupplyMethod| {
            method.prepare(&mut turns).unwrap();
            let before = pool.stats().unwrap().scrubbed_at_allocation;
            drop(method.take(&mut turns, 4 * MIB).unwrap());
            pool.stats().unwrap().scrubbed_at_allocation - before
        };
        for _ in 0..2 {
            assert_eq!(on_allocation(SupplyMethod::Clean), 0);
            assert_eq!(on_allocation(SupplyMethod::Dirty(1)), 4 * MIB as u64);
        }
    }

    #[test]
    fn sizes_fit_the_memory_and_what_is_reserved_on_every_machine() {
        for machine in hugekit_invented_machines::MACHINES {
            for huge in [0, 10, 60, 100, 512, machine.reserved.unwrap_or(0) as usize] {
                let memory = (machine.available() / 2).min(4 << 30) as usize;
                let given = Given { memory, thp: machine.thp, huge, gigantic: 0 };
                let Sizes { walk, ring } = Sizes::of(&given, machine.llc as usize);
                assert!(walk > 0 && ring > 0, "{}", machine.name);
                assert!(2 * walk * UNIT <= memory && 4 * ring * UNIT <= memory, "{}", machine.name);
                // Half of what is reserved is enough for the least that says anything.
                if huge * UNIT >= 2 * WALK_BYTES.min(largest(memory)) {
                    assert!(given.allows(Pages::Hugetlb2M, walk * UNIT), "{} {huge}", machine.name);
                    assert!(
                        given.allows(Pages::Hugetlb2M, 2 * ring * UNIT),
                        "{} {huge}",
                        machine.name
                    );
                }
            }
        }
    }

    #[test]
    fn sustained_clears_as_much_as_it_took() {
        let mut turns = turns(unscrubbed(8 * UNIT).scrub_threads(1));
        assert!(sample_sustained(SupplyMethod::Clean, &mut turns, 4).unwrap() > 0.0);
        let stats = turns.pool().unwrap().stats().unwrap();
        let cleared =
            stats.scrubbed_in_background + stats.scrubbed_on_request + stats.scrubbed_at_allocation;
        assert_eq!(stats.dirty, 0);
        assert_eq!(cleared, (4 + 16) * UNIT as u64);
    }

    /// Less memory, no process that starts and ends in the time, and of the two kernels one is another.
    #[test]
    fn what_was_published_of_64_gib_does_not_stand_beside_1_gib() {
        let turns = turns(unscrubbed(2 * UNIT));
        let group = MethodGroup { turns, methods: Vec::new(), unit: GIB, units: 1 };
        for pages in [Pages::Hugetlb2M, Pages::Hugetlb1G] {
            let mut part = Part::new("demand");
            part.add_case("x/1GiB", Unit::GibPerSecond, vec![1.0]);
            group.put_beside(&mut part, SupplyMethod::Kernel(pages), "demand/x/1GiB");
            assert_eq!((part.cases[0].published.len(), part.elsewhere.len()), (0, 4), "{pages:?}");
            let mut other_kernels = 0;
            for one in part.elsewhere {
                let differs = |aspect: &str| one.differs.iter().any(|d| d.aspect == aspect);
                assert!(differs("ran") && differs("memory"), "{one:?}");
                other_kernels += usize::from(differs("kernel"));
            }
            assert_eq!(other_kernels, 2);
        }
    }

    #[test]
    fn ratios_exist_where_both_sides_do_and_say_what_moved() {
        let methods =
            vec![SupplyMethod::Kernel(Pages::Thp), SupplyMethod::Dirty(1), SupplyMethod::Clean];
        let group =
            MethodGroup { turns: turns(unscrubbed(2 * UNIT)), methods, unit: UNIT, units: 2 };
        let rounds = Rounds { plan: Plan::exactly(2), observer: &Quiet };
        let Part { cases, ratios, .. } = group.measure(rounds).unwrap();
        assert_eq!(cases.len(), 3);
        let ids: Vec<_> =
            ratios.iter().map(|ratio| (ratio.id.as_str(), ratio.like_for_like)).collect();
        let expected =
            [("demand/kernel-thp-vs-dirty/2MiB", true), ("demand/kernel-thp-vs-clean/2MiB", false)];
        assert_eq!(ids, expected);
    }
}
