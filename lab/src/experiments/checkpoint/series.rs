//! A delta of a series: the second of two checkpoints, which reads only memory that was written
//! since the first one.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvError, channel};
use std::thread;
use std::time::Duration;

use crate::measure::LabError;
use hugekit_vm::checkpoint::{
    CheckpointError, CheckpointOptions, RunningVm, SeriesOptions, checkpoint_series,
};

use super::guest::{Guest, GuestWrites};
use super::save::{Files, SaveCost, bytes_in, of_report};
use super::share::Share;

/// The second checkpoint is made when the series is stopped.
const NEVER: Duration = Duration::from_secs(1 << 32);

type Told = Mutex<Receiver<Result<SaveCost, LabError>>>;

/// The guest changes its share between the two checkpoints, and writes to it in the second one.
pub(super) fn save(
    files: &Files,
    share: Share,
    guest: &mut Guest<'_>,
) -> Result<(SaveCost, GuestWrites), LabError> {
    let vm = guest.vm.watched(|vmm| Ok(RunningVm::new(vmm.api().to_owned())))?;
    let options = CheckpointOptions::new(vm, files.path().join("series"));
    let series = SeriesOptions { save_at_end: true, ..SeriesOptions::new(NEVER) };
    let (tell, told) = channel();
    let told = &Mutex::new(told);
    thread::scope(|scope| {
        let (stop, stopper) = UnixStream::pair().map_err(LabError::Saved)?;
        let series = scope.spawn(move || {
            checkpoint_series(&options, &series, stop.as_fd(), &mut |folder, report| {
                let _ = tell.send(bytes_in(folder).map(|bytes| of_report(report, bytes)));
            })
        });
        let mut saved = next(guest, told)?;
        if saved.is_some() {
            guest.write_once(share)?;
            guest.write(share)?;
            drop(stopper);
            saved = next(guest, told)?;
        }
        let ended: Result<(), CheckpointError> = series.join().expect("no panic");
        ended?;
        Ok((saved.expect("each checkpoint has a message"), guest.end()?))
    })
}

/// The next checkpoint; `None` if the series has ended.
fn next(guest: &Guest<'_>, told: &Told) -> Result<Option<SaveCost>, LabError> {
    guest.vm.watched(|_| match told.lock().expect("one at a time").recv() {
        Ok(saved) => saved.map(Some),
        Err(RecvError) => Ok(None),
    })
}
