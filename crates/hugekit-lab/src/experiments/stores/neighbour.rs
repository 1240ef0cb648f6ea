//! What clearing costs others: a thread reads its own memory, a quarter of the last-level cache, again and again while
//! another one clears much more than that, through the cache or past it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use hugekit_bulk::arch::{ClearRoutine, clear_routine};
use hugekit_bulk::parallel::Placement;

use crate::LabError;
use crate::experiments::Bench;
use crate::experiments::routine_matrix::read_all;
use crate::measure::part::Part;
use crate::record::Unit;
use crate::size::{GIB, Size};
use crate::workloads::threads::spawn;

const ROUTINES: [&str; 2] = ["rep_stosb", "movnti"];

/// Passes over the memory that is cleared: several, because a pass of the neighbour is not divided.
const PASSES: usize = 4;

pub(super) fn measure(bench: &mut Bench<'_>, share: f64) -> Result<Part, LabError> {
    let routines: Vec<_> = ROUTINES.into_iter().filter_map(clear_routine).collect();
    let (read, has) = (bench.llc() / 4, bench.arena()?.len());
    let cleared = 8 * bench.llc();
    if routines.len() < 2 || Placement::here().threads() < 2 || read == 0 || read + cleared > has {
        let needs = "two CPUs, a known cache, x86-64, and nine times that cache of memory";
        return Ok(Part::notice(format!("neighbour-… left out: it needs {needs}")));
    }
    let rounds = bench.rounds(share, 60);
    rounds.observer.begin("stores neighbour");
    let (theirs, rest) = bench.arena()?.bytes().split_at_mut(read);
    let ours = &mut rest[..cleared];
    let label = Size(read).to_string();
    let names = ROUTINES.map(|routine| format!("neighbour-of-{routine}/{label}"));
    let mut part = rounds.measure("stores", Unit::GibPerSecond, &names, |index| {
        sample(routines[index], theirs, ours)
    })?;
    let id = format!("neighbour-of-rep_stosb-vs-movnti/{label}");
    part.ratio(&id, (&names[0], &names[1]), None);
    Ok(part)
}

/// GiB/s that the neighbour reads while this thread clears.
fn sample(routine: &ClearRoutine, theirs: &[u8], ours: &mut [u8]) -> Result<f64, LabError> {
    let (stop, passes) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = spawn(scope, move || {
            while !stop.load(Ordering::Relaxed) {
                read_all(theirs);
                passes.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        // Its memory is in the cache, as far as it fits.
        while passes.load(Ordering::Relaxed) < 2 {
            std::hint::spin_loop();
        }
        let (before, start) = (passes.load(Ordering::Relaxed), Instant::now());
        (0..PASSES).for_each(|_| clear(routine, ours));
        // To the end of a pass.
        let cleared = passes.load(Ordering::Relaxed);
        while passes.load(Ordering::Relaxed) == cleared {
            std::hint::spin_loop();
        }
        let (read, seconds) = (cleared + 1 - before, start.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("it only reads");
        Ok((read * theirs.len() as u64) as f64 / GIB as f64 / seconds)
    })
}

#[allow(unsafe_code)]
fn clear(routine: &ClearRoutine, bytes: &mut [u8]) {
    assert!(routine.is_available());
    let bytes = std::hint::black_box(bytes);
    // SAFETY: the slice is borrowed mutably, and the routine is available.
    unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::MIB;

    #[test]
    fn neighbour_reads_until_all_is_cleared() {
        let (theirs, mut ours) = (vec![7; 64 << 10], vec![1; 8 * MIB]);
        let routine = hugekit_bulk::arch::clear_routines().first().unwrap();
        let rate = sample(routine, &theirs, &mut ours).unwrap();
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        assert!(ours.iter().all(|&byte| byte == 0));
    }
}
