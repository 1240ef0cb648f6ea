//! The operations, each with a point within which calls are refused.

mod anonymous;
mod forks;
mod images;
mod leases;
mod machine;
mod pools;
mod regions;
mod warm;
mod work;

use std::sync::LazyLock;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{HUGE_PAGE_BYTES, Pool, PoolError};
use hugekit_sys::injection::Call;

use crate::backings::usual;
use crate::case::{Point, ShortOf, TriedOperation, have};
use crate::heap;

/// Folios of an operation's region.
pub(crate) const FOLIOS: usize = 3;

type Run = fn(&Point, Backing, FaultMode);

const FAULT_MODES: [(&str, FaultMode); 3] =
    [("auto", FaultMode::Auto), ("in_place", FaultMode::InPlace), ("threaded", THREADED)];
const THREADED: FaultMode = FaultMode::Threaded { threads: 2 };

/// Every operation with its name; without the time for all, those of which others say little new.
pub(crate) fn all(thorough: bool) -> Vec<(String, TriedOperation)> {
    LazyLock::force(&PAINT);
    let (auto, base) = (FaultMode::Auto, Backing::Base);
    let mut all = Vec::new();
    let mut add = |prefix: String, operations: &[(&str, Run)], backing, fault_mode| {
        all.extend(operations.iter().map(|&(name, run)| {
            (format!("{prefix}{name}"), operation(name, run, backing, fault_mode, None))
        }));
    };
    for backing in usual() {
        let prefix = format!("{backing:?}::").to_lowercase();
        add(prefix.clone(), pools::EACH, backing, auto);
        add(prefix.clone(), leases::EACH, backing, auto);
        if !thorough && backing != base {
            // The others make the same calls, on memory that takes longer to fill.
            if backing.is_transparent() {
                for (name, fault_mode) in [("in_place", FaultMode::InPlace), ("threaded", THREADED)]
                {
                    add(format!("{prefix}{name}::"), forks::ON_HUGE_PAGES, backing, fault_mode);
                }
            }
            continue;
        }
        for (name, fault_mode) in FAULT_MODES {
            add(format!("{prefix}{name}::"), regions::EACH, backing, fault_mode);
            add(format!("{prefix}{name}::"), forks::EACH, backing, fault_mode);
        }
    }
    add(String::new(), images::EACH, base, auto);
    add(String::new(), warm::EACH, base, auto);
    // In the long form only: these take five minutes.
    for (name, fault_mode) in FAULT_MODES.into_iter().filter(|_| thorough) {
        add(format!("anonymous::{name}::"), anonymous::EACH, base, fault_mode);
    }
    add("work::".to_owned(), work::EACH, base, auto);
    add("machine::".to_owned(), machine::EACH, base, auto);
    all
}

/// Operations of a process that may have few mappings more; some of them, and of these numbers, where there is no
/// time for all.
pub(crate) fn short_of_mappings(thorough: bool) -> Vec<(String, TriedOperation)> {
    let (backing, fault_mode) = (Backing::Base, FaultMode::Auto);
    let few = [pools::EACH, work::EACH].concat();
    let all = [&few[..], regions::EACH, forks::EACH].concat();
    let operations = if thorough { all } else { few };
    let each = |(name, run): (&'static str, Run)| {
        let step = if thorough { 1 } else { 2 };
        (0..=MOST_LEFT).step_by(step).map(move |left| {
            let short = Some(ShortOf::Mappings(left));
            let operation = operation(name, run, backing, fault_mode, short);
            (format!("mappings::{name}::{left}_left"), operation)
        })
    };
    operations.into_iter().flat_map(each).collect()
}

/// Operations of a process that may allocate only so many bytes on the heap.
pub(crate) fn short_of_heap() -> Vec<(String, TriedOperation)> {
    let of_memory = [machine::SHORT, pools::EACH, work::EACH, leases::EACH].concat();
    let served = [regions::EACH, forks::EACH, anonymous::EACH].concat();
    let mut all = Vec::new();
    let mut add = |operations: &[(&str, Run)], (mode, fault_mode): (&str, FaultMode)| {
        for &(name, run) in operations {
            for left in HEAP_LEFT {
                let short = Some(ShortOf::HeapBytes(left));
                let operation = operation(name, run, Backing::Base, fault_mode, short);
                all.push((format!("heap::{mode}::{name}::{left}_left"), operation));
            }
        }
    };
    add(&of_memory, FAULT_MODES[0]);
    FAULT_MODES.into_iter().for_each(|fault_mode| add(&served, fault_mode));
    all
}

/// Nothing; less than an operation looks for; just as much, and twice that: what the first operation of a process takes.
const HEAP_LEFT: [usize; 5] = [0, 1 << 10, 1 << 14, heap::ROOM, 2 * heap::ROOM];

fn operation(
    name: &str,
    run: Run,
    backing: Backing,
    fault_mode: FaultMode,
    shortage: Option<ShortOf>,
) -> TriedOperation {
    let writes_what_is_shared = name.ends_with("written");
    TriedOperation { run, backing, fault_mode, writes_what_is_shared, shortage }
}

const MOST_LEFT: usize = 8;

/// A pool of so many regions, of which every folio is dirty and nothing clears them.
fn soiled(backing: Backing, regions: usize) -> Pool {
    let len = regions * FOLIOS * backing.page_size();
    let built = Pool::builder(len).backing(backing).strict(true).scrub_threads(0).build();
    let pool = have(built, PoolError::kind);
    pool.region(len).unwrap().fill(DIRT);
    pool
}

const DIRT: u8 = 0xd1;

/// Bytes that tell where they are, of the longest region. Made once, in the process that all cases are forked from, and
/// compared by `memcmp`: byte by byte, the checks took three quarters of all time.
static PAINT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let longest = FOLIOS * HUGE_PAGE_BYTES;
    (0..longest).map(|at| (at / 4096 + at / 97) as u8 | 1).collect()
});

fn paint(bytes: &mut [u8]) {
    bytes.copy_from_slice(&PAINT[..bytes.len()]);
}

fn is_painted(bytes: &[u8]) -> bool {
    *bytes == PAINT[..bytes.len()]
}

/// Whether each base page is zero or painted.
fn is_zero_or_painted(bytes: &[u8]) -> bool {
    let mut pages = bytes.chunks(4096).zip(PAINT.chunks(4096));
    pages.all(|(page, painted)| is_zero(page) || *page == painted[..page.len()])
}

fn is_zero(bytes: &[u8]) -> bool {
    is_filled(bytes, 0)
}

/// Each byte is as the one before it, and the first one as it should be.
fn is_filled(bytes: &[u8], byte: u8) -> bool {
    bytes.first().is_none_or(|&first| first == byte && bytes[1..] == bytes[..bytes.len() - 1])
}

/// That all of a pool is there, and clean when it is allocated.
fn is_whole(point: &Point, pool: &Pool) {
    match pool.region(pool.capacity()) {
        Ok(region) => point.check(is_zero(&region), "not clean"),
        // What is mapped may still be accessed.
        Err(_) if point.is_refused_for_good(Call::Munmap) => return,
        // What failed is allocated no more.
        Err(_) if point.had_all_memory_fail() => return,
        Err(error) => {
            let stats = pool.stats().unwrap();
            return point.problem(format!("folios are lost: {error}, {stats:?}"));
        }
    }
    point.check(pool.stats().unwrap().in_use == 0, "folios are still in use");
}
