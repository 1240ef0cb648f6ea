//! A series of checkpoints of a VM at an interval. Each checkpoint reads only memory that was
//! written since the previous one.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use crate::checkpoint::checkpoints::Checkpoints;
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::options::{CheckpointOptions, SeriesOptions};
use crate::checkpoint::output::series_folder;
use crate::checkpoint::report::CheckpointReport;
use crate::checkpoint::tracked_vm::Afterwards;

/// Saves a running VM repeatedly, into the folders `000001`, `000002` and so on of the output's
/// folder. The first checkpoint contains all memory, and later checkpoints contain the changes. If
/// `previous` names checkpoints, the first checkpoint of the series follows on them.
///
/// Between two checkpoints, memory that the VM does not write stays protected, and the next
/// checkpoint does not read it. The first write to each 2 MiB waits until the protection is lifted.
/// `hugekit lab checkpoint` measures this time.
///
/// Calls `each` for every complete folder. The VM's writes wait while `each` runs. Returns when
/// `stop` becomes readable, or after [`count`](SeriesOptions::count) checkpoints. No memory is
/// protected after the return.
///
/// # Errors
/// [`CheckpointError`], for example [`Ended`](CheckpointError::Ended) if the VM ends. The VM
/// continues to run if it ran before. Complete folders stay.
pub fn checkpoint_series(
    options: &CheckpointOptions,
    series: &SeriesOptions,
    stop: BorrowedFd<'_>,
    each: &mut dyn FnMut(&Path, &CheckpointReport),
) -> Result<(), CheckpointError> {
    let SeriesOptions { interval, deltas, count, save_at_end } = series;
    make_folder(&options.output)?;
    let mut checkpoints = Checkpoints::find(options, Afterwards::Protected)?;
    let (mut since_full, mut is_last) = (options.previous.len() as u64, false);
    for number in 1.. {
        if since_full > *deltas {
            checkpoints.begin_anew();
            since_full = 0;
        }
        let (place, started) = (options.output.join(series_folder(number)), Instant::now());
        let report = checkpoints.save(&place, started)?;
        since_full += 1;
        each(&place, &report);
        if is_last || count.is_some_and(|count| number >= count) {
            break;
        }
        is_last = checkpoints.note_until(started + *interval, stop)?;
        if is_last && !save_at_end {
            break;
        }
    }
    Ok(())
}

/// Makes a folder for the checkpoints, or checks that it is empty.
fn make_folder(path: &Path) -> Result<(), CheckpointError> {
    let refused = |source| CheckpointError::Output { path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(refused)?;
    match fs::read_dir(path).map_err(refused)?.next() {
        None => Ok(()),
        Some(_) => Err(CheckpointError::Exists { path: path.to_owned() }),
    }
}
