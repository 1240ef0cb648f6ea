//! The pause and the copy of one checkpoint or fork.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime};

use hugekit_sys::{HUGE_PAGE_BYTES, data_runs};

use crate::checkpoint::copying::{PIECE, Progress, TIME_TO_WRITE};
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granule_state::GranuleEvent;
use crate::checkpoint::guard::{Guard, Step};
use crate::checkpoint::handover::{HandedFile, Handover, MEMORY, STATE};
use crate::checkpoint::report::Way;
use crate::checkpoint::sink::Sink;
use crate::checkpoint::tracked_vm::TrackedVm;
use crate::checkpoint::vm::Vm;
use crate::devices::DisksInPause;
use crate::vmm::{Control, Request};

/// The highest number of moments that are tried. A write of the VM's devices spoils a moment.
const TRIES: u32 = 8;

/// The longest wait for the end of a VMM that does not answer any more.
const ENDING: Duration = Duration::from_millis(500);

/// The save of one moment of a VM. Everything that it needs is allocated before the pause.
/// `copying.rs` contains the copy.
#[derive(Debug)]
pub(crate) struct Saving<'a> {
    pub(crate) tracked: &'a mut TrackedVm,
    control: &'a dyn Control,
    pub(crate) sink: &'a dyn Sink,
    guard: &'a Guard,
    handover: &'a Handover,
    /// True if the VM ran before. Otherwise the VM stays paused.
    is_running: bool,
    /// Disks that are copied in the pause.
    disks: Option<&'a DisksInPause<'a>>,
    pub(crate) buffer: Vec<u8>,
    /// True if memory was released before the saved moment, so another moment must be chosen.
    pub(crate) is_opened: bool,
    /// True if memory was released for a device when the moment may already have passed.
    pub(crate) is_unsure: bool,
    /// The time that the next device gets for a write.
    pub(crate) time_to_write: Duration,
    pub(crate) progress: Progress,
}

pub(crate) struct Saved {
    pub(crate) way: Way,
    pub(crate) state: Vec<u8>,
    /// The time of the moment. Files with a later time are of another moment.
    pub(crate) moment: SystemTime,
    pub(crate) pause: Duration,
    pub(crate) protect: Duration,
    pub(crate) progress: Progress,
}

impl<'a> Saving<'a> {
    pub(crate) fn new(
        tracked: &'a mut TrackedVm,
        control: &'a dyn Control,
        sink: &'a dyn Sink,
        guard: &'a Guard,
        handover: &'a Handover,
        is_running: bool,
    ) -> Self {
        let (buffer, progress) = (vec![0; HUGE_PAGE_BYTES], Progress::default());
        let (is_opened, is_unsure, time_to_write) = (false, false, TIME_TO_WRITE);
        Self {
            tracked,
            control,
            sink,
            guard,
            handover,
            is_running,
            disks: None,
            buffer,
            is_opened,
            is_unsure,
            time_to_write,
            progress,
        }
    }

    /// Also copies disks in the pause.
    pub(crate) fn with_disks(self, disks: &'a DisksInPause<'a>) -> Self {
        Self { disks: Some(disks), ..self }
    }

    pub(crate) fn vm(&self) -> &Vm {
        &self.tracked.vm
    }

    /// Pauses the VM, saves it, and resumes it. After an error the VM is as it was before.
    pub(crate) fn save(mut self) -> Result<Saved, CheckpointError> {
        match self.save_moment() {
            Ok(saved) => {
                self.tracked.note_all(GranuleEvent::Save);
                Ok(saved)
            }
            Err(error) => Err(self.give_up(error)),
        }
    }

    fn save_moment(&mut self) -> Result<Saved, CheckpointError> {
        let state = self.handed_file(STATE)?;
        let since = Instant::now();
        if self.is_running {
            self.guard.tell(Step::Pausing);
            self.tracked.note_writes_while(|| Ok(self.control.pause()?))?;
        }
        let Some((state, protect)) = self.freeze(&state)? else {
            return self.save_by_stock(&state, since);
        };
        let moment = SystemTime::now();
        let pause = self.end_pause(since)?;
        self.sink.begin(&state).map_err(|source| self.sink.refused(source))?;
        self.copy_all()?;
        self.check_held()?;
        let (way, progress) = (Way::WriteProtected, self.progress);
        Ok(Saved { way, state, moment, pause, protect, progress })
    }

    /// Protects the memory at the moment at which the VMM saves the state. `None` if this VMM does
    /// not save the state separately. Also returns the time that the protection took.
    ///
    /// Devices may write to memory before the VMM saves their state. Such a write belongs to the
    /// moment, which is later. If writes continue, or if memory is released, a later moment is
    /// chosen.
    fn freeze(
        &mut self,
        state: &HandedFile<'_>,
    ) -> Result<Option<(Vec<u8>, Duration)>, CheckpointError> {
        for _ in 0..TRIES {
            state.clear().map_err(|source| self.sink.refused(source))?;
            let since = Instant::now();
            self.protect()?;
            let protect = since.elapsed();
            let mut request = self.control.send_save_state(state.path())?;
            self.await_answer(&mut request, &|| state.is_begun())?;
            let Ok(bytes) = self.whole_state(state) else { return Ok(None) };
            if !self.is_opened && (!self.is_unsure || self.is_quiet()?) {
                return Ok(Some((bytes, protect)));
            }
        }
        Err(CheckpointError::Restless)
    }

    /// Copies disks, and resumes the VM. Returns the length of the pause.
    fn end_pause(&mut self, since: Instant) -> Result<Duration, CheckpointError> {
        if let Some(disks) = self.disks {
            disks.copy()?;
            // The VM may have written to a disk in the middle of its copy.
            self.check_held()?;
        }
        if !self.is_running {
            return Ok(Duration::ZERO);
        }
        let mut request = self.control.send_resume()?;
        let answer = self.await_answer(&mut request, &|| true)?;
        if !answer.is_success() {
            return Err(request.refused(&answer).into());
        }
        let pause = since.elapsed();
        self.guard.tell(Step::Resumed);
        Ok(pause)
    }

    /// Makes the VMM save the memory, too, into a file in memory.
    fn save_by_stock(
        &mut self,
        state: &HandedFile<'_>,
        since: Instant,
    ) -> Result<Saved, CheckpointError> {
        self.tracked.release_all()?;
        self.drop_copies()?;
        let memory = self.handed_file(MEMORY)?;
        let mut request = self.control.send_save_all(state.path(), memory.path())?;
        let answer = self.await_answer(&mut request, &|| false)?;
        if !answer.is_success() {
            return Err(request.refused(&answer).into());
        }
        let moment = SystemTime::now();
        let pause = self.end_pause(since)?;
        let state = self.whole_state(state)?;
        let copy = || {
            self.sink.begin(&state)?;
            self.sink.turn(&(0..self.vm().bytes()))?;
            copy_data(&memory.open()?, self.sink)
        };
        let copied = copy().map_err(|source| self.sink.refused(source))?;
        (0..self.tracked.granules.len()).for_each(|granule| self.sink.end(granule));
        let progress = Progress { read: copied, copied, ..Progress::default() };
        let (way, protect) = (Way::StockSnapshot, Duration::ZERO);
        Ok(Saved { way, state, moment, pause, protect, progress })
    }

    /// Checks that no guard has released the memory meanwhile, so that no bytes of a later moment
    /// were copied.
    fn check_held(&self) -> Result<(), CheckpointError> {
        if self.guard.has_released() { Err(CheckpointError::Stopped) } else { Ok(()) }
    }

    fn whole_state(&self, state: &HandedFile<'_>) -> Result<Vec<u8>, CheckpointError> {
        state.whole_state(|bytes| self.control.is_whole_state(bytes))
    }

    fn handed_file(&self, name: &'static str) -> Result<HandedFile<'a>, CheckpointError> {
        self.handover.file(name).map_err(|source| self.sink.refused(source))
    }

    /// Restores the former state of the VM. If the VMM has ended, returns an error with this
    /// reason.
    fn give_up(&mut self, error: CheckpointError) -> CheckpointError {
        let _ = self.tracked.release_all();
        if self.is_running {
            let _ = self.control.send_resume().and_then(Request::wait);
        }
        // The VM was not as this process had left it.
        if self.guard.has_released() {
            return CheckpointError::Stopped;
        }
        if error.may_be_an_end() && self.vm().process.await_end(ENDING) {
            return CheckpointError::Ended { pid: self.vm().pid() };
        }
        error
    }
}

/// Copies a file without its holes. Returns the number of copied bytes.
fn copy_data(from: &File, sink: &dyn Sink) -> io::Result<u64> {
    let piece = if sink.wants_whole_granules() { HUGE_PAGE_BYTES } else { PIECE };
    let (mut left, mut copied, mut buffer) = (0..from.metadata()?.len(), 0, vec![0; piece]);
    while let Some(run) = data_runs::next(from, &left)? {
        left.start = run.end;
        let mut start = run.start;
        while start < run.end {
            // Later pieces begin where granules do.
            let len = (piece - start as usize % piece).min((run.end - start) as usize);
            let bytes = &mut buffer[..len];
            from.read_exact_at(bytes, start)?;
            sink.put(start, bytes)?;
            start += len as u64;
        }
        copied += run.end - run.start;
    }
    Ok(copied)
}
