//! One checkpoint from the beginning to the end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hugekit_delta::Chain;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::api::{Api, Pending};
use crate::delta::Delta;
use crate::error::CheckpointError;
use crate::frozen::{Frozen, PIECE, Progress};
use crate::granules::{Granule, granules};
use crate::guard::{Guard, Step};
use crate::output::{Kind, Output, Plan};
use crate::previous;
use crate::report::{Report, Way, ms};
use crate::settings::Settings;
use crate::sink::{MemoryFile, Saved as Written, Sink};
use crate::unnamed::Unnamed;
use crate::vm::Vm;

/// As memory file, a folder has Firecracker save the state, and then answer with an error.
const FOLDER: &str = "/";

/// How often a moment is chosen that the VM's devices let pass.
const TRIES: u32 = 8;

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
    let (collapsed_bytes, collapse) = collapse(&vm, settings)?;
    let guard = Guard::start(&vm, &api, &plan)?;
    let used = if chain.is_none() { used(&vm)? } else { Vec::new() };
    let output = plan.create(vm.bytes(), &used)?;
    let saving = Saving { vm: &vm, api: &api, output: &output, guard: &guard, is_running };
    let saved = sink(chain.as_mut(), &output).and_then(|sink| saving.save(sink));
    let saved = saved.map_err(|error| saving.give_up(error))?;
    output.finish(&saved.state)?;
    Ok(Report {
        way: saved.way,
        paused_ms: ms(saved.pause),
        protect_ms: ms(saved.protect),
        collapse_ms: ms(collapse),
        collapsed_bytes,
        complete_ms: ms(started.elapsed()),
        memory_bytes: vm.bytes(),
        copied_bytes: saved.written.copied,
        delta_bytes: saved.written.delta,
        faults: saved.progress.faults,
        longest_fault_ms: ms(saved.progress.longest_fault),
    })
}

fn is_running(api: &Api) -> Result<bool, CheckpointError> {
    let state = api.get("/", "state")?;
    match state.as_str() {
        Some("Running") => Ok(true),
        Some("Paused") => Ok(false),
        other => Err(CheckpointError::State { state: other.unwrap_or_default().to_owned() }),
    }
}

fn memory_bytes(api: &Api) -> Result<u64, CheckpointError> {
    let mebibytes = api.get("/machine-config", "mem_size_mib")?;
    Ok(mebibytes.as_u64().unwrap_or(0) << 20)
}

fn collapse(vm: &Vm, settings: &Settings) -> Result<(u64, Duration), CheckpointError> {
    let since = Instant::now();
    let bytes = if settings.collapse { vm.collapse()? } else { 0 };
    Ok((bytes, if bytes > 0 { since.elapsed() } else { Duration::ZERO }))
}

fn sink<'a>(
    chain: Option<&'a mut Chain>,
    output: &'a Output,
) -> Result<Box<dyn Sink + 'a>, CheckpointError> {
    let Some(chain) = chain else { return Ok(Box::new(MemoryFile::new(output.memory()))) };
    let delta = Delta::new(chain, output).map_err(|source| output.refused(source))?;
    Ok(Box::new(delta))
}

/// Ranges of the memory file whose memory is there.
fn used(vm: &Vm) -> Result<Vec<Range<u64>>, CheckpointError> {
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
struct Saving<'a> {
    vm: &'a Vm,
    api: &'a Api,
    output: &'a Output,
    guard: &'a Guard,
    /// Whether the VM ran before. Otherwise it stays paused.
    is_running: bool,
}

struct Saved {
    way: Way,
    state: Vec<u8>,
    pause: Duration,
    protect: Duration,
    progress: Progress,
    written: Written,
}

impl Saving<'_> {
    /// Pauses the VM, saves it, and has it run.
    fn save<'b>(&'b self, sink: Box<dyn Sink + 'b>) -> Result<Saved, CheckpointError> {
        let state = self.unnamed()?;
        let mut frozen = Frozen::new(self.vm, self.output, sink);
        let since = Instant::now();
        if self.is_running {
            self.guard.tell(Step::Pausing);
            self.api.pause()?;
        }
        let Some((state, protect)) = self.freeze(&mut frozen, &state)? else {
            return self.save_by_stock(&state, frozen, since);
        };
        let pause = self.resume(&mut frozen, since)?;
        frozen.copy_all()?;
        let (way, progress, written) = (Way::WriteProtected, frozen.progress, frozen.finish()?);
        Ok(Saved { way, state, pause, protect, progress, written })
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
            state.clear().map_err(|source| self.output.refused(source))?;
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
        mut frozen: Frozen<'_>,
        since: Instant,
    ) -> Result<Saved, CheckpointError> {
        self.vm.release_all()?;
        frozen.sink.restart().map_err(|source| self.output.refused(source))?;
        let memory = self.unnamed()?;
        let mut pending = self.api.send_snapshot(state.path(), memory.path())?;
        let answer = frozen.await_answer(&mut pending, &|| false)?;
        if !answer.is_success() {
            return Err(pending.refused(&answer));
        }
        let pause = self.resume(&mut frozen, since)?;
        let state = state.whole_state()?;
        let copied = copy_data(memory.file(), self.vm.bytes(), &mut *frozen.sink);
        copied.map_err(|source| self.output.refused(source))?;
        let (way, protect, progress) = (Way::StockSnapshot, Duration::ZERO, Progress::default());
        Ok(Saved { way, state, pause, protect, progress, written: frozen.finish()? })
    }

    fn unnamed(&self) -> Result<Unnamed, CheckpointError> {
        Unnamed::new().map_err(|source| self.output.refused(source))
    }

    /// Leaves the VM as it was. Says that it has ended if that is why.
    fn give_up(&self, error: CheckpointError) -> CheckpointError {
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

/// Gives the bytes of a file to a sink, without the file's holes.
fn copy_data(from: &File, length: u64, to: &mut dyn Sink) -> io::Result<()> {
    to.turn(&(0..length))?;
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    loop {
        let data = match seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        let hole = seek(from, SeekFrom::Hole(data))?;
        at = data;
        while at < hole {
            let bytes = &mut buffer[..PIECE.min((hole - at) as usize)];
            from.read_exact_at(bytes, at)?;
            to.put(at, bytes)?;
            at += bytes.len() as u64;
        }
    }
}
