//! The same bytes twice, each side writing its own.

use std::time::{Duration, Instant};

use anyhow::ensure;
use hugekit::{Pool, Region, copy};
use hugekit_machine::size::Size;

use super::ways::Ways;
use hugekit_terminal::outcome::Remedied;

/// The second one writes a byte in each piece of this length afterwards.
const STRIDE: usize = 16 << 20;

pub(super) fn run(bytes: usize) -> anyhow::Result<Ways> {
    let pool = Pool::builder(3 * bytes).build()?;
    let mut first = pool.region(bytes)?;
    first.fill(1);
    let about = format!(
        "Time until {} exist twice, and {} places of the second are written. Both are on {}.",
        Size(bytes),
        bytes.div_ceil(STRIDE),
        pool.backing()
    );
    let ways = [
        ("copied into another region", ""),
        ("region.fork()", "only the first write to a granule copies it."),
    ];
    Ways::in_turn(about, &ways, |way| match way {
        0 => second_of(&first, copied),
        _ => second_of(&first, forked),
    })
}

fn second_of(
    first: &Region,
    make: fn(&Region) -> anyhow::Result<Region>,
) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let mut second = make(first)?;
    second.iter_mut().step_by(STRIDE).for_each(|byte| *byte = 2);
    let took = start.elapsed();
    ensure!(first.iter().all(|&byte| byte == 1), "the first one has changed");
    let differ = second.iter().filter(|&&byte| byte != 1).count();
    ensure!(differ == first.len().div_ceil(STRIDE), "{differ} bytes of the second one differ");
    Ok(took)
}

fn copied(first: &Region) -> anyhow::Result<Region> {
    let mut second = first.pool().region(first.len())?;
    copy(&mut second, first)?;
    Ok(second)
}

fn forked(first: &Region) -> anyhow::Result<Region> {
    first.fork().map_err(|error| {
        let remedy = error.remedy();
        Remedied::error(error, remedy)
    })
}
