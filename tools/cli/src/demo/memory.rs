//! Zeroed memory, every page of it touched.

use std::time::{Duration, Instant};

use hugekit::{Pool, Region};
use hugekit_machine::size::Size;

use super::ways::Ways;

const PAGE: usize = 4096;

pub(super) fn run(bytes: usize) -> anyhow::Result<Ways> {
    let pool = Pool::builder(bytes).build()?;
    let about = format!(
        "Time to get {} of zeroed memory and to write to every page. The pool is on {}.",
        Size(bytes),
        pool.backing()
    );
    let ways = [
        ("vec![0; n], from the kernel", ON_BASE_PAGES),
        ("pool.region(n), from hugekit", CLEARED_BEFORE),
        ("the same, cleared only then", "all of it was dirty: several threads clear it first."),
    ];
    Ways::in_turn(about, &ways, |way| match way {
        0 => Ok(from_the_kernel(bytes)),
        1 => from_a_clean_pool(&pool, bytes),
        _ => from_a_dirty_pool(&pool, bytes),
    })
}

const ON_BASE_PAGES: &str =
    "on base pages: this machine gives huge pages only to programs that request them.";

const CLEARED_BEFORE: &str =
    "cleared in the background after its last owner dropped it; not in this time.";

fn from_the_kernel(bytes: usize) -> Duration {
    let start = Instant::now();
    let mut memory = vec![0_u8; bytes];
    write_every_page(&mut memory);
    start.elapsed()
}

fn from_a_clean_pool(pool: &Pool, bytes: usize) -> anyhow::Result<Duration> {
    pool.scrub()?;
    let start = Instant::now();
    let mut region = pool.region(bytes)?;
    write_every_page(&mut region);
    let took = start.elapsed();
    drop(region);
    Ok(took)
}

/// The pool may not clear in the background what the last owner left.
fn from_a_dirty_pool(pool: &Pool, bytes: usize) -> anyhow::Result<Duration> {
    pool.pause_scrubbing()?;
    drop(dirtied(pool, bytes)?);
    let start = Instant::now();
    let mut region = pool.region(bytes)?;
    write_every_page(&mut region);
    let took = start.elapsed();
    drop(region);
    pool.resume_scrubbing()?;
    Ok(took)
}

fn dirtied(pool: &Pool, bytes: usize) -> anyhow::Result<Region> {
    let mut region = pool.region(bytes)?;
    region.fill(0xff);
    Ok(region)
}

/// Each page is zeroed when it is given, which is looked at here too.
fn write_every_page(memory: &mut [u8]) {
    for page in memory.chunks_mut(PAGE) {
        assert_eq!(std::mem::replace(&mut page[0], 1), 0, "memory that is not zeroed");
    }
}
