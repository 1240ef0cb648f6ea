//! One checkpoint from the beginning to the end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom as Sought, seek};
use rustix::io::Errno;

use crate::api::{Api, Pending};
use crate::delta::Delta;
use crate::error::CheckpointError;
use crate::frozen::{Frozen, Progress};
use crate::granules::{Granule, granules};
use crate::guard::{Guard, Step};
use crate::output::{Kind, Plan};
use crate::previous;
use crate::report::{Report, Way, ms};
use crate::settings::Settings;
use crate::sink::Sink;
use crate::unnamed::Unnamed;
use crate::vm::Vm;

/// As memory file, a folder has Firecracker save the state, and then answer with an error.
const FOLDER: &str = "/";

/// How often a moment is chosen that the VM's devices let pass.
const TRIES: u32 = 8;

/// Bytes of a stock snapshot that are copied together.
const STOCK_PIECE: usize = 256 << 10;

/// How long a VMM that answers no more may take to end.
const ENDING: Duration = Duration::from_millis(500);

/// Saves a running VM. The output is complete when this returns without an error, and otherwise
/// absent.
///
/// # Errors
/// [`CheckpointError`]. The VM then runs on if it ran before.
pub fn checkpoint(settings: &Settings) -> Result<Report, CheckpointError> {
    let started = Instant::now();
    let api = Api::new(&settings.api);
    if settings.check_api {
        api.check_is_of(settings.pid)?;
    }
    let is_running = is_running(&api)?;
    let vm = Vm::find(settings.pid, memory_bytes(&api)?)?;
    let mut chain = previous::chain(&settings.previous, vm.bytes())?;
    let plan = Plan::new(&settings.output, chain.as_ref().map_or(Kind::Full, |_| Kind::Delta))?;
    let (collapsed_bytes, collapse) = collapse(&vm, settings.collapse)?;
    let guard = Guard::start(&vm, &api, plan.left_overs())?;
    let used = if chain.is_none() { used(&vm)? } else { Vec::new() };
    let output = plan.create(vm.bytes(), &used)?;
    let delta = chain.as_mut().map(|chain| Delta::new(chain, &output)).transpose();
    let delta = delta.map_err(|source| output.refused(source))?;
    let sink: &dyn Sink = delta.as_ref().map_or(&output, |delta| delta);
    let saving = Saving { vm: &vm, api: &api, sink, guard: &guard, is_running };
    let saved = saving.save().map_err(|error| saving.give_up(error))?;
    let written = delta.map(Delta::finish).transpose();
    let written = written.map_err(|source| output.refused(source))?;
    output.finish(&saved.state)?;
    Ok(Report {
        way: saved.way,
        paused_ms: ms(saved.pause),
        protect_ms: ms(saved.protect),
        collapse_ms: ms(collapse),
        collapsed_bytes,
        complete_ms: ms(started.elapsed()),
        memory_bytes: vm.bytes(),
        copied_bytes: written.map_or(saved.progress.copied, |written| written.changed),
        delta_bytes: written.map(|written| written.written),
        faults: saved.progress.faults,
        longest_fault_ms: ms(saved.progress.longest_fault),
    })
}

pub(crate) fn is_running(api: &Api) -> Result<bool, CheckpointError> {
    let state = api.get("/", "state")?;
    match state.as_str() {
        Some("Running") => Ok(true),
        Some("Paused") => Ok(false),
        other => Err(CheckpointError::State { state: other.unwrap_or_default().to_owned() }),
    }
}

pub(crate) fn memory_bytes(api: &Api) -> Result<u64, CheckpointError> {
    let mebibytes = api.get("/machine-config", "mem_size_mib")?;
    Ok(mebibytes.as_u64().unwrap_or(0) << 20)
}

pub(crate) fn collapse(vm: &Vm, is_wanted: bool) -> Result<(u64, Duration), CheckpointError> {
    let since = Instant::now();
    let bytes = if is_wanted { vm.collapse()? } else { 0 };
    Ok((bytes, if bytes > 0 { since.elapsed() } else { Duration::ZERO }))
}

/// Ranges of the memory file whose memory is there.
pub(crate) fn used(vm: &Vm) -> Result<Vec<Range<u64>>, CheckpointError> {
    let mut used: Vec<Range<u64>> = Vec::new();
    for granule in granules(&vm.regions) {
        let Granule { addresses, .. } = &granule;
        let runs = vm.pages.populated(addresses);
        let unreadable = |source| CheckpointError::Memory { address: addresses.start, source };
        if runs.map_err(unreadable)?.is_empty() {
            continue;
        }
        let offsets = granule.offsets();
        match used.last_mut() {
            Some(last) if last.end == offsets.start => last.end = offsets.end,
            _ => used.push(offsets),
        }
    }
    Ok(used)
}

/// All that a checkpoint has allocated before the pause.
pub(crate) struct Saving<'a> {
    pub(crate) vm: &'a Vm,
    pub(crate) api: &'a Api,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) guard: &'a Guard,
    /// Whether the VM ran before. Otherwise it stays paused.
    pub(crate) is_running: bool,
}

pub(crate) struct Saved {
    pub(crate) way: Way,
    state: Vec<u8>,
    pub(crate) pause: Duration,
    pub(crate) protect: Duration,
    pub(crate) progress: Progress,
}

impl Saving<'_> {
    /// Pauses the VM, saves it, and has it run.
    pub(crate) fn save(&self) -> Result<Saved, CheckpointError> {
        let state = self.unnamed()?;
        let mut frozen = Frozen::new(self.vm, self.sink);
        let since = Instant::now();
        if self.is_running {
            self.guard.tell(Step::Pausing);
            self.api.pause()?;
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
        self.vm.release_all()?;
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
        (0..granules(&self.vm.regions).count()).for_each(|index| self.sink.end(index));
        let progress = Progress { copied, ..Progress::default() };
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
