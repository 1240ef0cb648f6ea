//! The pause and the copy of one checkpoint or fork.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom as Sought, seek};
use rustix::io::Errno;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::frozen::{Frozen, Progress};
use crate::checkpoint::guard::{Guard, Step};
use crate::checkpoint::report::Way;
use crate::checkpoint::sink::Sink;
use crate::checkpoint::unnamed::Unnamed;
use crate::checkpoint::vm::Vm;
use crate::checkpoint::writes::Writes;
use crate::firecracker::requests::{Api, Pending};

/// As memory file, a folder has Firecracker save the state, and then answer with an error.
const FOLDER: &str = "/";

/// How often a moment is chosen that the VM's devices let pass.
const TRIES: u32 = 8;

/// Bytes of a stock snapshot that are copied together.
const STOCK_PIECE: usize = 256 << 10;

/// How long a VMM that answers no more may take to end.
const ENDING: Duration = Duration::from_millis(500);

/// All that a checkpoint has allocated before the pause.
pub(crate) struct Saving<'a> {
    pub(crate) vm: &'a Vm,
    pub(crate) api: &'a Api,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) guard: &'a Guard,
    /// True if the VM ran before. Otherwise it stays paused.
    pub(crate) is_running: bool,
}

pub(crate) struct Saved {
    pub(crate) way: Way,
    pub(crate) state: Vec<u8>,
    pub(crate) pause: Duration,
    pub(crate) protect: Duration,
    pub(crate) progress: Progress,
}

impl Saving<'_> {
    /// Pauses the VM, saves it, and has it run.
    pub(crate) fn save(&self, writes: &mut Writes) -> Result<Saved, CheckpointError> {
        let saved = self.save_moment(Frozen::new(self.vm, self.sink, writes))?;
        writes.saved();
        Ok(saved)
    }

    fn save_moment(&self, mut frozen: Frozen<'_>) -> Result<Saved, CheckpointError> {
        let state = self.unnamed()?;
        let since = Instant::now();
        if self.is_running {
            self.guard.tell(Step::Pausing);
            frozen.note_while(|| self.api.pause())?;
        }
        let Some((state, protect)) = self.freeze(&mut frozen, &state)? else {
            return self.save_by_stock(&state, &mut frozen, since);
        };
        let pause = self.resume(&mut frozen, since)?;
        self.sink.begin(&state).map_err(|source| self.sink.refused(source))?;
        frozen.copy_all()?;
        let (way, progress) = (Way::WriteProtected, frozen.progress);
        Ok(Saved { way, state, pause, protect, progress })
    }

    /// Protects the memory at the moment at which Firecracker saves the state; `None` if this
    /// Firecracker does not save the state alone. Also returns how long the protection took.
    ///
    /// Devices may write to memory before Firecracker saves their state. Such a write is released,
    /// and a later moment is chosen.
    fn freeze(
        &self,
        frozen: &mut Frozen<'_>,
        state: &Unnamed,
    ) -> Result<Option<(Vec<u8>, Duration)>, CheckpointError> {
        for _ in 0..TRIES {
            state.clear().map_err(|source| self.sink.refused(source))?;
            let since = Instant::now();
            frozen.protect()?;
            let protect = since.elapsed();
            let mut pending = self.api.send_snapshot(state.path(), Path::new(FOLDER))?;
            frozen.await_answer(&mut pending, &|| state.is_begun())?;
            let Ok(bytes) = state.whole_state() else { return Ok(None) };
            if !frozen.is_opened() {
                return Ok(Some((bytes, protect)));
            }
        }
        Err(CheckpointError::Restless)
    }

    /// Has the VM run; how long it was paused.
    fn resume(&self, frozen: &mut Frozen<'_>, since: Instant) -> Result<Duration, CheckpointError> {
        if !self.is_running {
            return Ok(Duration::ZERO);
        }
        let mut pending = self.api.send_resume()?;
        let answer = frozen.await_answer(&mut pending, &|| true)?;
        if !answer.is_success() {
            return Err(pending.refused(&answer));
        }
        let pause = since.elapsed();
        self.guard.tell(Step::Resumed);
        Ok(pause)
    }

    /// Has Firecracker save the memory, too, into memory.
    fn save_by_stock(
        &self,
        state: &Unnamed,
        frozen: &mut Frozen<'_>,
        since: Instant,
    ) -> Result<Saved, CheckpointError> {
        frozen.release_all()?;
        frozen.restart()?;
        let memory = self.unnamed()?;
        let mut pending = self.api.send_snapshot(state.path(), memory.path())?;
        let answer = frozen.await_answer(&mut pending, &|| false)?;
        if !answer.is_success() {
            return Err(pending.refused(&answer));
        }
        let pause = self.resume(frozen, since)?;
        let state = state.whole_state()?;
        let copy = || {
            self.sink.begin(&state)?;
            self.sink.turn(&(0..self.vm.bytes()))?;
            copy_data(memory.file(), self.sink)
        };
        let copied = copy().map_err(|source| self.sink.refused(source))?;
        frozen.end_all();
        let progress = Progress { read: copied, copied, ..Progress::default() };
        let (way, protect) = (Way::StockSnapshot, Duration::ZERO);
        Ok(Saved { way, state, pause, protect, progress })
    }

    fn unnamed(&self) -> Result<Unnamed, CheckpointError> {
        Unnamed::new().map_err(|source| self.sink.refused(source))
    }

    /// Leaves the VM as it was. Says that it has ended if that is why.
    pub(crate) fn give_up(&self, error: CheckpointError) -> CheckpointError {
        let _ = self.vm.release_all();
        if self.is_running {
            let _ = self.api.send_resume().and_then(Pending::wait);
        }
        if error.may_be_an_end() && self.vm.process.await_end(ENDING) {
            return CheckpointError::Ended { pid: self.vm.pid() };
        }
        error
    }
}

/// Copies a file without its holes. Returns the bytes.
fn copy_data(from: &File, sink: &dyn Sink) -> io::Result<u64> {
    let (mut at, mut copied, mut buffer) = (0, 0, vec![0; STOCK_PIECE]);
    loop {
        let data = match seek(from, Sought::Data(at)) {
            Err(Errno::NXIO) => return Ok(copied),
            found => found?,
        };
        let hole = seek(from, Sought::Hole(data))?;
        at = hole.min(data + STOCK_PIECE as u64);
        let bytes = &mut buffer[..(at - data) as usize];
        from.read_exact_at(bytes, data)?;
        sink.put(data, bytes)?;
        copied += at - data;
    }
}
