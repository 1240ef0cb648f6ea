//! Checkpoints of a VM at an interval. Each one reads only memory that was written since the one
//! before.

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

/// Saves a running VM again and again: into the folders `000001`, `000002` and so on of the output's
/// folder. The first one has all memory, and those after it the changes: unless `previous` names
/// checkpoints that the first one follows on.
///
/// Between two checkpoints, memory that the VM does not write stays protected. The next checkpoint
/// does not read it. The first write to each 2 MiB waits until the protection is taken away.
/// The time for that is measured by `hugekit lab checkpoint`.
///
/// Tells `each` folder when it is complete. The VM's writes wait while `each` runs. Returns when
/// `stop` becomes readable, or after [`count`](SeriesOptions::count) checkpoints. All memory is the
/// VM's own then.
///
/// # Errors
/// [`CheckpointError`], also [`Ended`](CheckpointError::Ended) if the VM ends first. The VM then
/// runs on if it ran before. Complete folders stay.
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

/// A folder for folders, which is empty.
fn make_folder(path: &Path) -> Result<(), CheckpointError> {
    let refused = |source| CheckpointError::Output { path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(refused)?;
    match fs::read_dir(path).map_err(refused)?.next() {
        None => Ok(()),
        Some(_) => Err(CheckpointError::Exists { path: path.to_owned() }),
    }
}
