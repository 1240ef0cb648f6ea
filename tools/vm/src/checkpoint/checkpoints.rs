//! Successive checkpoints of one VM.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Instant, SystemTime};

use hugekit_delta::{Chain, Saved as SavedDelta};
use hugekit_sys::poll::readable;

use crate::checkpoint::delta::Delta;
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granule_state::GranuleEvent;
use crate::checkpoint::guard::{Guard, LeftOvers};
use crate::checkpoint::handover::PlannedHandover;
use crate::checkpoint::once::{collapse, used};
use crate::checkpoint::options::{CheckpointOptions, RunningVm};
use crate::checkpoint::output::{Output, OutputKind, PlannedOutput};
use crate::checkpoint::previous;
use crate::checkpoint::report::{CheckpointReport, ms};
use crate::checkpoint::saving::Saving;
use crate::checkpoint::sink::Sink;
use crate::checkpoint::tracked_vm::{Afterwards, TrackedVm};
use crate::checkpoint::vm::Vm;
use crate::vmm::Control;

/// A VM that is saved, perhaps repeatedly. A drop ends the protection of its memory.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    control: Box<dyn Control>,
    tracked: TrackedVm,
    /// The chain of states, with which a delta is compared.
    chain: Option<Chain>,
    collapse: bool,
    /// Devices with files that the VM writes and that are not saved.
    unsaved: Vec<String>,
    /// The guard of the last checkpoint, because memory may still be protected.
    guard: Option<Guard>,
}

/// The end of an output.
struct CompletedOutput {
    delta: Option<SavedDelta>,
    /// The chain after a full checkpoint, if deltas may follow on it.
    chain: Option<Chain>,
}

impl Checkpoints {
    /// Finds a VM, and makes sure that no other process saves it meanwhile.
    pub(crate) fn find(
        options: &CheckpointOptions,
        afterwards: Afterwards,
    ) -> Result<Self, CheckpointError> {
        let RunningVm { collapse, .. } = options.vm;
        let control = options.vm.control();
        let pid = options.vm.pid(&*control)?;
        let vm = Vm::find(pid, &*control)?;
        let devices = control.devices()?;
        let unsaved = devices.iter().filter(|device| device.has_written_file());
        let unsaved = unsaved.map(ToString::to_string).collect();
        let chain = previous::chain(&options.previous, vm.bytes())?;
        let tracked = TrackedVm::new(vm, afterwards);
        Ok(Self { control, tracked, chain, collapse, unsaved, guard: None })
    }

    /// Saves the VM into a folder.
    pub(crate) fn save(
        &mut self,
        place: &Path,
        started: Instant,
    ) -> Result<CheckpointReport, CheckpointError> {
        let Self { control, tracked, chain, collapse: should_collapse, unsaved, guard } = self;
        let is_running = tracked.note_writes_while(|| Ok(control.is_running()?))?;
        let vm = &tracked.vm;
        let bytes = vm.bytes();
        let plan = PlannedOutput::new(
            place,
            chain.as_ref().map_or(OutputKind::Full, |_| OutputKind::Delta),
        )?;
        let (collapsed_bytes, collapse) = collapse(vm, std::mem::take(should_collapse))?;
        // The guard before this one ends when this one watches.
        let handover = PlannedHandover::of(&vm.process)?;
        let next =
            Guard::start(Some((vm, &**control)), LeftOvers::new(&handover, plan.left_over()))?;
        if guard.take().is_some_and(Guard::end) {
            // This process was stopped after the last moment: all memory may have changed.
            tracked.note_all(GranuleEvent::Release);
        }
        let guard = guard.insert(next);
        let vm = &tracked.vm;
        let handover = handover.make()?;
        let used = if chain.is_none() { used(vm)? } else { Vec::new() };
        let output = plan.create(bytes, &used)?;
        let delta = chain.as_mut().map(|chain| Delta::new(chain, &output)).transpose();
        let delta = delta.map_err(|source| output.refused(source))?;
        let sink: &dyn Sink = delta.as_ref().map_or(&output, |delta| delta);
        let saved = Saving::new(tracked, &**control, sink, guard, &handover, is_running).save()?;
        let moment = (&*saved.state, saved.moment);
        let completed = match tracked.afterwards {
            Afterwards::Released => complete(&output, delta, moment)?,
            Afterwards::Protected => tracked.note_writes_while(|| {
                let completed = complete(&output, delta, moment)?;
                let is_full = completed.delta.is_none();
                let chain = is_full.then(|| previous::chain(&[place.to_owned()], bytes));
                Ok(CompletedOutput { chain: chain.transpose()?.flatten(), ..completed })
            })?,
        };
        if completed.chain.is_some() {
            *chain = completed.chain;
        }
        Ok(CheckpointReport {
            way: saved.way,
            paused_ms: ms(saved.pause),
            protect_ms: ms(saved.protect),
            collapse_ms: ms(collapse),
            collapsed_bytes,
            complete_ms: ms(started.elapsed()),
            memory_bytes: bytes,
            read_bytes: saved.progress.read,
            copied_bytes: completed.delta.map_or(saved.progress.copied, |delta| delta.changed),
            delta_bytes: completed.delta.map(|delta| delta.written),
            faults: saved.progress.faults,
            longest_fault_ms: ms(saved.progress.longest_fault),
            unsaved: unsaved.clone(),
        })
    }

    /// Makes the next checkpoint contain all memory.
    pub(crate) fn begin_anew(&mut self) {
        self.chain = None;
        self.tracked.note_all(GranuleEvent::Forget);
    }

    /// Records the VM's writes until a moment. Returns true if `stop` became readable before.
    pub(crate) fn note_until(
        &mut self,
        until: Instant,
        stop: BorrowedFd<'_>,
    ) -> Result<bool, CheckpointError> {
        loop {
            self.tracked.note_writes()?;
            let vm = &self.tracked.vm;
            let left = until.saturating_duration_since(Instant::now());
            let waited = [stop, vm.process.as_fd(), vm.faults.as_fd()];
            match readable(waited, Some(left)).unwrap_or_default() {
                [true, ..] => return Ok(true),
                [_, true, _] => return Err(CheckpointError::Ended { pid: vm.pid() }),
                _ if left.is_zero() => return Ok(false),
                _ => {}
            }
        }
    }
}

impl Drop for Checkpoints {
    /// The guard ends after this.
    fn drop(&mut self) {
        let _ = self.tracked.release_all();
    }
}

/// Writes the rest of the output, and moves it to its place.
fn complete(
    output: &Output,
    delta: Option<Delta<'_>>,
    (state, moment): (&[u8], SystemTime),
) -> Result<CompletedOutput, CheckpointError> {
    let delta = delta.map(Delta::finish).transpose();
    let delta = delta.map_err(|source| output.refused(source))?;
    output.finish(state, moment)?;
    Ok(CompletedOutput { delta, chain: None })
}
