//! Pools on every backing: what is allocated is zero, whatever happened before, and what cannot be
//! allocated is an error in figures.
//!
//! A harness of its own, because which backings there are is known only at run time: one that this
//! machine lacks is listed as ignored, with what the pool says about it.
#![allow(unsafe_code)]

mod backings;
mod child;

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;

use backings::{Check, FOLIOS, builder, is_zero, trials, unscrubbed};
use child::{in_a_child, killed};
use hugekit::machine::Root;
use hugekit::parallel::JobError;
use hugekit::pool::{Backing, NodePolicy, PoolError, Stats};
use hugekit::{ClearError, Pool, Region, Threads};
use libtest_mimic::{Arguments, Trial};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The states of all folios: holes, clean, in use, dirty.
fn states(pool: &Pool) -> [usize; 4] {
    let Stats { holes, clean, in_use, dirty, .. } = pool.stats().unwrap();
    [holes, clean, in_use, dirty]
}

fn wait_until(pool: &Pool, condition: impl Fn(Stats) -> bool) {
    while !condition(pool.stats().unwrap()) {
        std::thread::yield_now();
    }
}

fn any_length_is_zeroed_and_writable(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    for len in [1, 8, page - 1, page, page + 1, FOLIOS * page - 5, FOLIOS * page] {
        let mut region = pool.region(len).unwrap();
        assert_eq!((region.len(), region.mapped_len()), (len, len.next_multiple_of(page)));
        assert_eq!(region.as_ptr().addr() % page, 0);
        assert!(is_zero(&region), "{len}");
        region.fill(0xa5);
        assert!(region.iter().all(|&byte| byte == 0xa5));
    }
}

fn folios_go_from_hole_to_clean_to_use_to_dirty_to_clean(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    assert_eq!(states(&pool), [FOLIOS, 0, 0, 0]);
    let mut region = pool.region(3 * page).unwrap();
    region.fill(1);
    assert_eq!(states(&pool), [FOLIOS - 3, 0, 3, 0]);
    drop(region);
    assert_eq!(states(&pool), [FOLIOS - 3, 0, 0, 3]);
    assert_eq!(pool.scrub().unwrap(), 3 * page as u64);
    assert_eq!(states(&pool), [FOLIOS - 3, 3, 0, 0]);
    assert!(is_zero(&pool.region(3 * page).unwrap()));
    let stats = pool.stats().unwrap();
    assert_eq!(stats.populated, 3 * page as u64);
    assert_eq!((stats.scrubbed_on_request, stats.scrubbed_at_allocation), (3 * page as u64, 0));
    assert_eq!((stats.allocations, stats.waits, stats.page_size), (2, 0, page));
}

fn what_is_dirty_is_cleared_at_allocation(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    pool.region(FOLIOS * page).unwrap().fill(1);
    assert_eq!(states(&pool), [0, 0, 0, FOLIOS]);
    assert!(is_zero(&pool.region(3 * page).unwrap()));
    assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, 3 * page as u64);
}

fn clean_folios_are_handed_out_first(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let regions: Vec<_> = (0..FOLIOS).map(|_| pool.region(page).unwrap()).collect();
    let mut dirtied = regions.into_iter();
    drop(dirtied.by_ref().take(3).collect::<Vec<_>>());
    pool.scrub().unwrap();
    drop(dirtied);
    assert_eq!(states(&pool), [0, 3, 0, FOLIOS - 3]);
    for _ in 0..3 {
        std::mem::forget(pool.region(page).unwrap());
    }
    assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, 0);
}

fn the_scrubber_cleans_in_the_background(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    pool.region(FOLIOS * page).unwrap().fill(1);
    wait_until(&pool, |stats| stats.clean == FOLIOS);
    assert_eq!(pool.stats().unwrap().scrubbed_in_background, (FOLIOS * page) as u64);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
    assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, 0);
}

/// It naps while regions come and go, but it does not starve.
fn the_scrubber_goes_on_while_regions_come_and_go(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    drop(pool.region(FOLIOS * page).unwrap());
    while pool.stats().unwrap().scrubbed_in_background == 0 {
        pool.region(page).unwrap()[0] = 1;
    }
    wait_until(&pool, |stats| stats.clean == FOLIOS);
}

fn the_scrubber_keeps_between_its_watermarks(backing: Backing) {
    let page = backing.page_size();
    let pool = builder(backing, FOLIOS).watermarks(2 * page, 4 * page).build().unwrap();
    pool.region(FOLIOS * page).unwrap().fill(1);
    wait_until(&pool, |stats| stats.clean == 4);
    assert_eq!(states(&pool), [0, 4, 0, 4]);
    let two = pool.region(2 * page).unwrap();
    assert_eq!(states(&pool), [0, 2, 2, 4]);
    let third = pool.region(page).unwrap();
    wait_until(&pool, |stats| stats.clean == 4);
    assert_eq!(states(&pool), [0, 4, 3, 1]);
    drop((two, third));
    assert_eq!(states(&pool), [0, 4, 0, 4]);
}

fn a_paused_scrubber_cleans_nothing(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    pool.pause_scrubbing().unwrap();
    for _ in 0..3 {
        pool.region(FOLIOS * page).unwrap().fill(1);
        assert_eq!(states(&pool), [0, 0, 0, FOLIOS]);
    }
    pool.resume_scrubbing().unwrap();
    wait_until(&pool, |stats| stats.clean == FOLIOS);
    for _ in 0..20 {
        pool.region(FOLIOS * page).unwrap().fill(1);
        pool.pause_scrubbing().unwrap();
        let paused = pool.stats().unwrap();
        assert_eq!(paused.dirty + paused.clean, FOLIOS);
        assert_eq!(pool.stats().unwrap(), paused);
        pool.resume_scrubbing().unwrap();
    }
}

fn a_full_pool_says_what_is_left(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let regions: Vec<_> = (0..FOLIOS).map(|_| pool.region(page).unwrap()).collect();
    assert!(matches!(pool.region(1), Err(PoolError::NoRoom { free: 0, .. })));
    let apart: Vec<_> = regions.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
    match pool.region(2 * page) {
        Err(PoolError::NoRoom { wanted, free, longest }) => {
            assert_eq!((wanted, free, longest), (2 * page, FOLIOS / 2 * page, page));
        }
        other => panic!("{other:?}"),
    }
    drop(apart);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

fn nonsense_is_refused_and_takes_nothing(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    assert!(matches!(pool.region(0), Err(PoolError::NoBytes)));
    assert!(matches!(pool.region(usize::MAX), Err(PoolError::TooLarge { .. })));
    let by_nobody = pool.region_with(page, Some(Threads::Exactly(0)), None);
    assert!(matches!(by_nobody, Err(PoolError::Populate(JobError::NoThreads))));
    drop(pool.region(page).unwrap());
    let by_nobody = pool.region_with(FOLIOS * page, Some(Threads::Exactly(0)), None);
    let no_threads = ClearError::Job(JobError::NoThreads);
    assert!(matches!(by_nobody, Err(PoolError::Clear(error)) if error == no_threads));
    assert_eq!(states(&pool), [FOLIOS - 1, 0, 0, 1]);
    let none = builder(backing, 0).build();
    assert!(matches!(none, Err(PoolError::NoBytes)));
    let nowhere = builder(backing, 1).ladder([]).build();
    assert!(matches!(nowhere, Err(PoolError::NoTiers)));
    let upside_down = builder(backing, 1).watermarks(2, 1).build();
    assert!(matches!(upside_down, Err(PoolError::Watermarks { low: 2, high: 1 })));
    assert!(matches!(
        Pool::builder(usize::MAX).backing(backing).strict(true).build(),
        Err(PoolError::TooLarge { .. })
    ));
}

fn more_than_the_machine_has_is_an_error_in_figures(backing: Backing) {
    let pool = Pool::builder(1 << 50).backing(backing).strict(true).build();
    match (pool.unwrap_err(), backing.is_reserved()) {
        (PoolError::NotEnoughHugePages { wanted, total, .. }, true) => assert!(total < wanted),
        (PoolError::NotEnoughMemory { wanted, available }, false) => {
            assert!(available < wanted as u64);
        }
        other => panic!("{other:?}"),
    }
}

fn a_capacity_is_rounded_up_and_reported(backing: Backing) {
    let page = backing.page_size();
    let pool = Pool::builder(2 * page + 1).backing(backing).strict(true).build().unwrap();
    let report = pool.backing_report();
    assert_eq!((report.asked_capacity, report.capacity), (2 * page + 1, 3 * page));
    assert_eq!((report.backing, report.asked), (backing, backing));
    assert!(report.fallbacks.is_empty());
    assert_eq!(pool.region(3 * page).unwrap().len(), 3 * page);
}

fn populating_now_leaves_no_hole_and_is_watched(backing: Backing) {
    let bytes = FOLIOS * backing.page_size();
    for threads in [Threads::One, Threads::Auto, Threads::Exactly(2)] {
        let told = Mutex::new(Vec::new());
        let progress = |done, total| told.lock().unwrap().push((done, total));
        let pool = Pool::builder(bytes).backing(backing).strict(true).populate_now(true);
        let pool = pool.threads(threads).progress(&progress).build().unwrap();
        assert_eq!(states(&pool), [0, FOLIOS, 0, 0]);
        assert_eq!(pool.stats().unwrap().populated, bytes as u64);
        assert_eq!(told.lock().unwrap().last(), Some(&(bytes, bytes)));
    }
}

fn a_callback_that_panics_loses_no_folio(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    for dirty in [0, 2] {
        let before = states(&pool);
        let progress = |_, _| std::panic::resume_unwind(Box::new("as it was asked to"));
        let region = || pool.region_with(FOLIOS * page, None, Some(&progress));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(region)).is_err());
        assert_eq!(states(&pool), before);
        assert_eq!(before[3], dirty);
        drop(pool.region(2 * page).unwrap());
    }
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

fn every_node_policy_is_in_force(backing: Backing) {
    let policies = [
        (NodePolicy::Process, "default"),
        (NodePolicy::Local, "local"),
        (NodePolicy::Bind(vec![0]), "bind:0"),
        (NodePolicy::Interleave(vec![0]), "interleave:0"),
        (NodePolicy::Preferred(0), "prefer:0"),
    ];
    for (policy, expected) in policies {
        let name = format!("{backing:?}-{expected}").replace(':', "-");
        let pool =
            builder(backing, 1).name(&name).nodes(policy).populate_now(true).build().unwrap();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let line = maps.lines().find(|line| line.contains(&name)).unwrap();
        assert_eq!(line.split(' ').nth(1), Some(expected), "{line}");
        drop(pool);
    }
    for nowhere in [NodePolicy::Bind(vec![1000]), NodePolicy::Preferred(1 << 20)] {
        let pool = builder(backing, 1).nodes(nowhere).build();
        assert!(matches!(pool, Err(PoolError::NodePolicy(_))));
    }
}

/// The lines of `/proc/self/smaps` about the mapping at an address: its first and its flags.
fn mapping_at(address: *const u8) -> (String, String) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let first = format!("{:x}-", address.addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&first));
    let first = lines.next().unwrap().to_owned();
    (first, lines.find(|line| line.starts_with("VmFlags:")).unwrap().to_owned())
}

fn the_kernel_knows_its_name_and_whom_to_keep_it_from(backing: Backing) {
    for dumped in [true, false] {
        let pool = builder(backing, 1).name("test\0cut").in_core_dumps(dumped).build().unwrap();
        let region = pool.region(1).unwrap();
        let (first, flags) = mapping_at(region.as_ptr());
        assert!(first.contains("/memfd:hugekit:test (deleted)"), "{first}");
        assert!(flags.contains(" dc"), "{flags}");
        assert_eq!(flags.contains(" dd"), !dumped, "{flags}");
    }
}

fn the_file_is_sealed_and_closed_on_exec(backing: Backing) {
    let pool = unscrubbed(backing);
    let region = pool.region(1).unwrap().share();
    // SAFETY: the descriptor is only asked about and refused.
    let (file, offset) = unsafe { region.file() }.unwrap();
    assert_eq!(offset, 0);
    assert!(rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    for len in [0, 1 << 40] {
        assert_eq!(rustix::fs::ftruncate(file, len), Err(rustix::io::Errno::PERM));
    }
}

fn a_child_has_nothing_and_breaks_nothing(backing: Backing) {
    // A name of its own: other tests may be mapping theirs, which a child sees without any access.
    let name = format!("parent's of {backing:?}");
    let pool = builder(backing, FOLIOS).name(&name).build().unwrap();
    let page = backing.page_size();
    let mut region = Some(pool.region(2 * page).unwrap());
    region.as_mut().unwrap().fill(7);
    let shared = pool.region(page).unwrap().share();
    shared.write_at(0, &[9]).unwrap();
    let handles = Mutex::new(Some((pool.clone(), region.take(), shared.clone())));
    let code = in_a_child(|| {
        let (pool, mut region, shared) = handles.lock().unwrap().take().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let refused = [
            matches!(pool.region(page), Err(PoolError::Forked)),
            matches!(pool.stats(), Err(PoolError::Forked)),
            matches!(pool.scrub(), Err(PoolError::Forked)),
            matches!(pool.pause_scrubbing(), Err(PoolError::Forked)),
            matches!(pool.resume_scrubbing(), Err(PoolError::Forked)),
            region.as_mut().unwrap().release(0..page).is_err(),
            region.as_mut().unwrap().truncate(page).is_err(),
            region.as_ref().unwrap().populate(0..page).is_err(),
            region.take().unwrap().retire().is_err(),
            shared.release(0..page).is_err(),
            !maps.contains(&name),
        ];
        drop((pool, region, shared));
        refused.iter().position(|&refused| !refused).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(code, 0);
    let (_, region, _) = handles.into_inner().unwrap().unwrap();
    assert!(region.unwrap().iter().all(|&byte| byte == 7));
    let mut byte = [0];
    shared.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [9]);
}

fn a_child_makes_a_pool_of_its_own(backing: Backing) {
    let pool = builder(backing, FOLIOS).build().unwrap();
    let code = in_a_child(|| {
        let own = builder(backing, FOLIOS).build().unwrap();
        own.region(own.capacity()).unwrap().fill(1);
        i32::from(!is_zero(&own.region(own.capacity()).unwrap()))
    });
    assert_eq!(code, 0);
    drop(pool);
}

/// Forks while other threads hold the pool's lock as often as they can.
fn a_child_born_in_the_middle_of_it_all_is_refused(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    let done = hugekit::Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.is_cancelled() {
                pool.region(page).unwrap()[0] = 1;
            }
        });
        for _ in 0..20 {
            let inherited = Mutex::new(Some(pool.clone()));
            let code = in_a_child(|| {
                let pool = inherited.lock().unwrap().take().unwrap();
                i32::from(!matches!(pool.region(page), Err(PoolError::Forked)))
            });
            assert_eq!(code, 0);
        }
        done.cancel();
    });
}

/// Sets a limit of this process, which is therefore a child.
fn limit(resource: Resource, soft: Option<u64>) {
    let limits = getrlimit(resource);
    setrlimit(resource, Rlimit { current: soft, ..limits }).unwrap();
}

fn a_limit_of_descriptors_is_an_error(backing: Backing) {
    let code = in_a_child(|| {
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let root = Root::at("/nonexistent"); // Reading the machine would take a descriptor, too.
        let builder = Pool::builder(1).ladder([Backing::Base]).machine(root);
        limit(Resource::Nofile, Some(next));
        let refused = matches!(builder.build(), Err(PoolError::NoDescriptor(_)));
        limit(Resource::Nofile, Some(next + 20));
        i32::from(!refused || self::builder(backing, 1).build().is_err())
    });
    assert_eq!(code, 0);
}

fn a_limit_of_addresses_is_an_error_that_loses_nothing(backing: Backing) {
    let code = in_a_child(|| {
        let pool = unscrubbed(backing);
        drop(pool.region(1));
        let before = states(&pool);
        limit(Resource::As, Some(1 << 20));
        let refused = matches!(pool.region(1), Err(PoolError::NotMapped { .. }));
        limit(Resource::As, getrlimit(Resource::As).maximum);
        assert_eq!(before[3], 1);
        let mut after = states(&pool);
        after.swap(1, 3); // It was cleaned before it could not be mapped.
        i32::from(!refused || after != before || pool.region(1).is_err())
    });
    assert_eq!(code, 0);
}

/// Killed while it makes pools, allocates, scrubs and drops, a process leaves nothing behind: together
/// these have more huge pages than a machine reserves for tests.
fn a_killed_process_leaves_nothing_behind(backing: Backing) {
    let page = backing.page_size();
    for round in 0..100 {
        killed(Duration::from_micros(200 * round), || {
            loop {
                let pool = builder(backing, FOLIOS).populate_now(true).build().unwrap();
                let mut regions: Vec<Region> = (0..4).map(|_| pool.region(page).unwrap()).collect();
                regions.iter_mut().for_each(|region| region[0] = 1);
                regions.truncate(2);
                pool.region((FOLIOS - 2) * page).unwrap()[0] = 1;
            }
        });
    }
    assert!(is_zero(&builder(backing, FOLIOS).build().unwrap().region(FOLIOS * page).unwrap()));
}

/// One step in the life of a pool and its regions.
#[derive(Clone, Copy, Debug)]
enum Step {
    HandOut(usize),
    Write(usize, u8),
    Release(usize),
    Truncate(usize),
    Drop(usize),
    Retire(usize),
    Scrub,
    Pause,
    Resume,
    Fork,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..FOLIOS).prop_map(Step::HandOut),
        6 => (0..FOLIOS, 1..=255_u8).prop_map(|(region, byte)| Step::Write(region, byte)),
        2 => (0..FOLIOS).prop_map(Step::Release),
        2 => (0..FOLIOS).prop_map(Step::Truncate),
        4 => (0..FOLIOS).prop_map(Step::Drop),
        1 => (0..FOLIOS).prop_map(Step::Retire),
        1 => Just(Step::Scrub),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::Fork),
    ]
}

/// Regions, and what each of their folios should hold in every byte.
struct Model {
    pool: Pool,
    page: usize,
    regions: Vec<(Region, Vec<u8>)>,
    /// All of the pool's file by a mapping of the test's own.
    whole: *const u8,
}

impl Model {
    fn new(backing: Backing) -> Self {
        let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
        let first = pool.region(1).unwrap().share();
        let (bytes, prot) = (FOLIOS * page, ProtFlags::READ);
        // SAFETY: a new mapping; it is only read, between the steps, and outlives what is read.
        let whole = unsafe {
            let (file, _) = first.file().unwrap();
            mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0).unwrap()
        };
        Self { pool, page, regions: Vec::new(), whole: whole.cast::<u8>() }
    }

    /// Sees to it that a region is zero by the file as well.
    fn look_at_the_file(&self, region: Region) -> Region {
        let region = region.share();
        // SAFETY: within the mapping of the whole file; no thread writes the region now, and nothing of
        // what `file` returns is kept.
        unsafe {
            let at = self.whole.add(region.file().unwrap().1 as usize);
            assert!(is_zero(std::slice::from_raw_parts(at, region.len())), "seen in the file");
            region.into_exclusive().unwrap()
        }
    }

    fn pick(&self, at: usize) -> Option<usize> {
        at.checked_rem(self.regions.len())
    }

    fn take(&mut self, step: Step) {
        let page = self.page;
        match step {
            Step::HandOut(folios) => match self.pool.region(folios * page) {
                Ok(region) => {
                    assert!(is_zero(&region), "an earlier owner's bytes in a new region");
                    let region = self.look_at_the_file(region);
                    self.regions.push((region, vec![0; folios]));
                }
                Err(error) => assert!(matches!(error, PoolError::NoRoom { .. }), "{error}"),
            },
            Step::Write(at, byte) => {
                if let Some(at) = self.pick(at) {
                    let (region, model) = &mut self.regions[at];
                    let folio = usize::from(byte) % model.len();
                    region[folio * page..][..page].fill(byte);
                    model[folio] = byte;
                }
            }
            Step::Release(at) => {
                if let Some(at) = self.pick(at) {
                    let (region, model) = &mut self.regions[at];
                    let from = at % model.len();
                    region.release(from * page..model.len() * page).unwrap();
                    model[from..].fill(0);
                }
            }
            Step::Truncate(at) => {
                if let Some(at) = self.pick(at) {
                    let (region, model) = &mut self.regions[at];
                    model.truncate(model.len().div_ceil(2));
                    region.truncate(model.len() * page).unwrap();
                }
            }
            Step::Drop(at) => drop(self.pick(at).map(|at| self.regions.swap_remove(at))),
            Step::Retire(at) => {
                if let Some(at) = self.pick(at) {
                    self.regions.swap_remove(at).0.retire().unwrap();
                }
            }
            Step::Scrub => drop(self.pool.scrub().unwrap()),
            Step::Pause => self.pool.pause_scrubbing().unwrap(),
            Step::Resume => self.pool.resume_scrubbing().unwrap(),
            Step::Fork => assert_eq!(in_a_child(|| 0), 0),
        }
    }

    fn check(&self) {
        for (region, model) in &self.regions {
            assert_eq!(region.len(), model.len() * self.page);
            for (folio, &expected) in region.chunks(self.page).zip(model) {
                assert!(folio.iter().all(|&byte| byte == expected), "expected {expected}");
            }
        }
        let in_use: usize = self.regions.iter().map(|(_, model)| model.len()).sum();
        let [holes, clean, used, dirty] = states(&self.pool);
        assert_eq!((used, holes + clean + dirty), (in_use, FOLIOS - in_use));
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing is borrowed from it.
        unsafe { munmap(self.whole.cast_mut().cast(), FOLIOS * self.page) }.unwrap();
    }
}

fn no_byte_is_ever_seen_by_another_region(backing: Backing) {
    let cases = if cfg!(debug_assertions) { 24 } else { 96 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&vec(steps(), 1..60), |steps| {
            let mut model = Model::new(backing);
            for step in steps {
                model.take(step);
                model.check();
            }
            Ok(())
        })
        .unwrap();
}

fn threads_that_race_see_only_their_own_bytes(backing: Backing) {
    let page = backing.page_size();
    let pool = builder(backing, FOLIOS).scrub_threads(2).build().unwrap();
    let rounds = 4_000_000_usize / page.max(8192);
    std::thread::scope(|scope| {
        for tag in 1..=4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds.max(60) {
                    let len = (1 + (round + usize::from(tag)) % 3) * page;
                    let Ok(mut region) = pool.region(len) else { continue };
                    assert!(is_zero(&region), "an earlier owner's bytes in a new region");
                    region.fill(tag);
                    if round % 5 == 0 {
                        region.release(0..page).unwrap();
                        assert!(is_zero(&region[..page]));
                        region[..page].fill(tag);
                    }
                    assert!(region.iter().all(|&byte| byte == tag), "another owner writes here");
                }
            });
        }
        for _ in 0..20 {
            pool.pause_scrubbing().unwrap();
            pool.scrub().unwrap();
            pool.resume_scrubbing().unwrap();
        }
    });
    let [holes, clean, in_use, dirty] = states(&pool);
    assert_eq!((in_use, holes + clean + dirty), (0, FOLIOS));
}

const CHECKS: &[Check] = &[
    ("any_length_is_zeroed_and_writable", any_length_is_zeroed_and_writable),
    (
        "folios_go_from_hole_to_clean_to_use_to_dirty_to_clean",
        folios_go_from_hole_to_clean_to_use_to_dirty_to_clean,
    ),
    ("what_is_dirty_is_cleared_at_allocation", what_is_dirty_is_cleared_at_allocation),
    ("clean_folios_are_handed_out_first", clean_folios_are_handed_out_first),
    ("the_scrubber_cleans_in_the_background", the_scrubber_cleans_in_the_background),
    (
        "the_scrubber_goes_on_while_regions_come_and_go",
        the_scrubber_goes_on_while_regions_come_and_go,
    ),
    ("the_scrubber_keeps_between_its_watermarks", the_scrubber_keeps_between_its_watermarks),
    ("a_paused_scrubber_cleans_nothing", a_paused_scrubber_cleans_nothing),
    ("a_full_pool_says_what_is_left", a_full_pool_says_what_is_left),
    ("nonsense_is_refused_and_takes_nothing", nonsense_is_refused_and_takes_nothing),
    (
        "more_than_the_machine_has_is_an_error_in_figures",
        more_than_the_machine_has_is_an_error_in_figures,
    ),
    ("a_capacity_is_rounded_up_and_reported", a_capacity_is_rounded_up_and_reported),
    ("populating_now_leaves_no_hole_and_is_watched", populating_now_leaves_no_hole_and_is_watched),
    ("a_callback_that_panics_loses_no_folio", a_callback_that_panics_loses_no_folio),
    ("every_node_policy_is_in_force", every_node_policy_is_in_force),
    (
        "the_kernel_knows_its_name_and_whom_to_keep_it_from",
        the_kernel_knows_its_name_and_whom_to_keep_it_from,
    ),
    ("the_file_is_sealed_and_closed_on_exec", the_file_is_sealed_and_closed_on_exec),
    ("a_child_has_nothing_and_breaks_nothing", a_child_has_nothing_and_breaks_nothing),
    ("a_child_makes_a_pool_of_its_own", a_child_makes_a_pool_of_its_own),
    (
        "a_child_born_in_the_middle_of_it_all_is_refused",
        a_child_born_in_the_middle_of_it_all_is_refused,
    ),
    ("a_limit_of_descriptors_is_an_error", a_limit_of_descriptors_is_an_error),
    (
        "a_limit_of_addresses_is_an_error_that_loses_nothing",
        a_limit_of_addresses_is_an_error_that_loses_nothing,
    ),
    ("a_killed_process_leaves_nothing_behind", a_killed_process_leaves_nothing_behind),
    ("no_byte_is_ever_seen_by_another_region", no_byte_is_ever_seen_by_another_region),
    ("threads_that_race_see_only_their_own_bytes", threads_that_race_see_only_their_own_bytes),
];

/// A machine without huge pages of any kind.
fn a_fall_is_reported_and_a_strict_pool_refuses_it() {
    let machine = || Root::at("/nonexistent");
    let ladder = [Backing::Hugetlb1G, Backing::Hugetlb2M, Backing::Base];
    let pool = Pool::builder(1 << 20).ladder(ladder).machine(machine()).build().unwrap();
    let report = pool.backing_report();
    assert_eq!((report.backing, report.asked), (Backing::Base, Backing::Hugetlb1G));
    let fallen: Vec<_> = report.fallbacks.iter().map(|fallback| fallback.backing).collect();
    assert_eq!(fallen, ladder[..2]);
    let lacks = |size| format!("this kernel has no huge pages of {size}");
    let reasons: Vec<_> =
        report.fallbacks.iter().map(|fallback| fallback.reason.to_string()).collect();
    assert_eq!(reasons, [lacks("1 GiB"), lacks("2 MiB")]);
    let strict = Pool::builder(1 << 20).machine(machine()).strict(true).build();
    assert!(matches!(strict, Err(PoolError::NoHugePages { .. })));
    let none = Pool::builder(1 << 20).ladder(ladder[..2].to_vec()).machine(machine()).build();
    let message = none.unwrap_err().to_string();
    assert!(message.contains(&lacks("1 GiB")) && message.contains(&lacks("2 MiB")), "{message}");
}

/// A machine whose files say that there are more huge pages than there are, as if another process took them
/// between the check and the use.
fn huge_pages_taken_meanwhile_are_an_error() {
    let machine = tempfile::tempdir().unwrap();
    let pages = machine.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    std::fs::create_dir_all(&pages).unwrap();
    for (name, count) in [
        ("nr_hugepages", "1000000"),
        ("free_hugepages", "1000000"),
        ("resv_hugepages", "0"),
        ("surplus_hugepages", "0"),
        ("nr_overcommit_hugepages", "0"),
    ] {
        std::fs::write(pages.join(name), count).unwrap();
    }
    let builder = Pool::builder(1 << 40).machine(Root::at(machine.path()));
    let strict = builder.clone().strict(true).build();
    assert!(
        matches!(strict, Err(PoolError::NotMapped { .. } | PoolError::NoHugePages { .. })),
        "{strict:?}"
    );
    let fallen = builder.ladder([Backing::Hugetlb2M, Backing::Base]).build().unwrap();
    assert_eq!(fallen.backing_report().fallbacks.len(), 1);
    assert_eq!(fallen.region(1).unwrap()[0], 0);
}

fn main() {
    let mut trials = trials(CHECKS);
    let anywhere: [(&str, fn()); 2] = [
        (
            "a_fall_is_reported_and_a_strict_pool_refuses_it",
            a_fall_is_reported_and_a_strict_pool_refuses_it,
        ),
        ("huge_pages_taken_meanwhile_are_an_error", huge_pages_taken_meanwhile_are_an_error),
    ];
    trials.extend(anywhere.map(|(name, check)| {
        let run = move || {
            check();
            Ok(())
        };
        Trial::test(name, run)
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
