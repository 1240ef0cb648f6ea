//! Idea 4 with the first touch: a process maps memory, writes it and writes it once more, as `perf bench mem memset` does,
//! and ends. All of that is timed, faults and the kernel's clearing included.

use std::time::Instant;

use crate::measure::LabError;
use crate::measure::machine::{clearing_kernel, here};
use crate::measure::part::Part;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::forking::process;
use crate::record::Unit;
use crate::record::published::{self, Conditions};
use hugekit_bulk::arch::{ClearRoutine, clear_routine};
use hugekit_machine::size::{GIB, MIB, Size};

use crate::experiments::Bench;

/// The published size, and those for less memory or time.
const SIZES: [usize; 3] = [4 * GIB, GIB, 128 * MIB];

/// A string instruction, and the one that streams.
const ROUTINES: [&str; 2] = ["rep_stosb", "movnti"];

pub(super) fn measure(bench: &mut Bench<'_>, share: f64) -> Result<Part, LabError> {
    let routines: Vec<_> = ROUTINES.into_iter().filter_map(clear_routine).collect();
    let [string, streaming] = routines[..] else {
        return Ok(Part::notice("process-… left out: this CPU has no such stores"));
    };
    let most = if bench.options().quick { 128 * MIB } else { bench.arena()?.len() };
    let available = bench.available_memory()?;
    let fitting = SIZES.into_iter().find(|&size| size <= most && 2 * size <= available);
    let Some(size) = fitting else {
        return Ok(Part::notice(
            "process-… left out: the run has less memory than 128MiB, or too little is free",
        ));
    };
    let rounds = bench.long_rounds(share, 10);
    rounds.observer.begin("stores process");
    let names = ROUTINES.map(|routine| format!("process-{routine}/{}", Size(size)));
    let mut part = rounds.measure("stores", Unit::Microseconds, &names, |index| {
        sample([string, streaming][index], size)
    })?;
    let id = format!("process-rep_stosb-vs-movnti/{}", Size(size));
    part.ratio(&id, (&names[0], &names[1]), None);
    put_beside(&mut part, size);
    Ok(part)
}

/// Microseconds of a process from its start to its end.
fn sample(routine: &'static ClearRoutine, size: usize) -> Result<f64, LabError> {
    let start = Instant::now();
    process(Size(size), || {
        let memory = Anonymous::new(Pages::Unsaid, size);
        memory.is_ok_and(|mut memory| {
            (0..2).for_each(|_| write(routine, memory.bytes()));
            true
        })
    })?
    .wait()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

#[allow(unsafe_code)]
fn write(routine: &ClearRoutine, bytes: &mut [u8]) {
    assert!(routine.is_available());
    let bytes = std::hint::black_box(bytes);
    // SAFETY: the slice is borrowed mutably, and the routine is available.
    unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
}

fn put_beside(part: &mut Part, size: usize) {
    let ours = here(Conditions {
        ran: "a buffer touched and then written in one pass, the whole process".to_owned(),
        kernel: clearing_kernel(),
        memory: Some(Size(size).to_string()),
        threads: Some(1),
        ..Conditions::default()
    });
    for routine in ROUTINES {
        let id = format!("stores/process-{routine}/{}", Size(size));
        part.put_beside(&id, &ours, published::store_microseconds(routine));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Difference;

    #[test]
    fn process_that_writes_is_timed_and_one_without_memory_is_an_error() {
        let routine = hugekit_bulk::arch::clear_routines().first().unwrap();
        assert!(sample(routine, 4 * MIB).unwrap() > 0.0);
        assert!(matches!(sample(routine, 1 << 46), Err(LabError::Fork { .. })));
        let mut bytes = vec![1; 10_000];
        write(routine, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn published_times_are_of_4_gib_and_of_a_kernel_that_clears_pages() {
        let mut part = Part::new("stores");
        for routine in ROUTINES {
            part.add_case(&format!("process-{routine}/1GiB"), Unit::Microseconds, vec![1.0]);
        }
        put_beside(&mut part, GIB);
        let beside = |id: &str| part.elsewhere.iter().filter(|one| one.beside == id).count();
        assert_eq!(beside("stores/process-rep_stosb/1GiB"), 2);
        assert_eq!(beside("stores/process-movnti/1GiB"), 3);
        for one in &part.elsewhere {
            assert!(one.differs.iter().any(|d| d.aspect == "memory"), "{one:?}");
            let same = |d: &Difference| {
                d.aspect != "ran" && (d.aspect != "kernel" || d.here.contains("clearing"))
            };
            assert!(one.differs.iter().all(same), "{one:?}");
        }
    }
}
