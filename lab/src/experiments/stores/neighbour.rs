//! What clearing costs others: this process reads its own memory, a quarter of the last-level cache, again and again
//! while another process clears much more than that, through the cache or past it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::forking::process;
use crate::record::Unit;
use hugekit_bulk::arch::{ClearRoutine, clear_routine};
use hugekit_bulk::parallel::Placement;
use hugekit_machine::size::{GIB, Size};

use crate::experiments::Bench;
use crate::experiments::routine_matrix::read_all;

const ROUTINES: [&str; 2] = ["rep_stosb", "movnti"];

/// Passes over the memory that is cleared: several, because a pass of the neighbour is not divided.
const PASSES: usize = 4;

pub(super) fn measure(bench: &mut Bench<'_>, share: f64) -> Result<Part, LabError> {
    let routines: Vec<_> = ROUTINES.into_iter().filter_map(clear_routine).collect();
    let (read, has, free) = (bench.llc() / 4, bench.arena()?.len(), bench.available_memory()?);
    let cleared = 8 * bench.llc();
    let fits = read > 0 && read <= has && 2 * cleared <= free;
    if routines.len() < 2 || Placement::here().threads() < 2 || !fits {
        let needs = "two CPUs, a known cache, x86-64, and 16 times that cache of free memory";
        return Ok(Part::notice(format!("neighbour-… left out: it needs {needs}")));
    }
    let rounds = bench.rounds(share, 60);
    rounds.observer.begin("stores neighbour");
    let theirs = &bench.arena()?.bytes()[..read];
    let label = Size(read).to_string();
    let names = ROUTINES.map(|routine| format!("neighbour-of-{routine}/{label}"));
    let mut part = rounds.measure("stores", Unit::GibPerSecond, &names, |index| {
        sample(routines[index], theirs, cleared)
    })?;
    let id = format!("neighbour-of-rep_stosb-vs-movnti/{label}");
    part.ratio(&id, (&names[0], &names[1]), None);
    Ok(part)
}

/// GiB/s that this process reads while the other one clears.
fn sample(routine: &'static ClearRoutine, theirs: &[u8], cleared: usize) -> Result<f64, LabError> {
    let (mut other, its) = UnixStream::pair().map_err(failed)?;
    let child = process(Size(cleared), || clear_when_told(routine, cleared, &its).is_ok())?;
    // An answer that never comes is the end of the stream.
    drop(its);
    other.read_exact(&mut [0]).map_err(failed)?;
    // This memory is in the cache, as far as it fits.
    (0..2).for_each(|_| read_all(theirs));
    other.set_nonblocking(true).and_then(|()| other.write_all(&[0])).map_err(failed)?;
    let (mut passes, start) = (0, Instant::now());
    while passes == 0 || !has_answered(&mut other).map_err(failed)? {
        read_all(theirs);
        passes += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    child.wait()?;
    Ok((passes * theirs.len()) as f64 / GIB as f64 / seconds)
}

/// The other process: it has its memory before it waits for the word, and answers when all is cleared.
fn clear_when_told(
    routine: &ClearRoutine,
    bytes: usize,
    mut told: &UnixStream,
) -> Result<(), LabError> {
    let mut memory = Anonymous::new(Pages::Thp, bytes)?;
    memory.bytes().fill(1);
    told.write_all(&[0]).and_then(|()| told.read_exact(&mut [0])).map_err(failed)?;
    (0..PASSES).for_each(|_| clear(routine, memory.bytes()));
    told.write_all(&[0]).map_err(failed)
}

/// True if the one byte is there. An error if it will never be.
fn has_answered(other: &mut UnixStream) -> io::Result<bool> {
    match other.read(&mut [0]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn failed(source: io::Error) -> LabError {
    LabError::Program { name: "a process that clears", source }
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
    use std::net::Shutdown;

    use super::*;
    use hugekit_machine::size::MIB;

    #[test]
    fn neighbour_reads_until_the_other_process_has_cleared() {
        let theirs = vec![7; 64 << 10];
        let routine = hugekit_bulk::arch::clear_routines().first().unwrap();
        let rate = sample(routine, &theirs, 8 * MIB).unwrap();
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        assert!(matches!(sample(routine, &theirs, 1 << 46), Err(LabError::Program { .. })));
    }

    #[test]
    fn other_process_answers_when_it_has_its_memory_and_when_all_is_cleared() {
        let routine = hugekit_bulk::arch::clear_routines().first().unwrap();
        let (mut other, its) = UnixStream::pair().unwrap();
        let child = process(Size(MIB), || clear_when_told(routine, MIB, &its).is_ok()).unwrap();
        drop(its);
        other.read_exact(&mut [0]).unwrap();
        other.set_nonblocking(true).unwrap();
        assert!(!has_answered(&mut other).unwrap(), "it was not told to clear");
        other.write_all(&[0]).unwrap();
        child.wait().unwrap();
        assert!(has_answered(&mut other).unwrap());
        // As when it ends. A child of another test may still have its end of the stream.
        other.shutdown(Shutdown::Read).unwrap();
        assert!(has_answered(&mut other).is_err(), "no answer is left");
    }
}
