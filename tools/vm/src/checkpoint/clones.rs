//! Clones of a saved VM: VMMs are started, and restored from one state and one memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Child as Program;
use std::sync::mpsc::channel;
use std::time::Instant;

use hugekit_sys::input;
use hugekit_sys::thread::spawn_scoped;
use serde::Serialize;

use crate::checkpoint::children::{Child, Children};
use crate::checkpoint::fork::{check_all, children_of};
use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::fork_report::ChildReport;
use crate::checkpoint::growing::{ChildNews, Grown, await_restored};
use crate::checkpoint::guard::{Guard, LeftOvers, MOST_STARTED};
use crate::checkpoint::handover::LONGEST_STATE;
use crate::checkpoint::nursery::{Nursery, Parent};
use crate::checkpoint::options::{ChildOptions, CloneOptions};
use crate::checkpoint::report::ms;
use crate::checkpoint::room::PlannedRoom;
use crate::checkpoint::shortage;
use crate::checkpoint::starting_line::StartingLine;
use crate::devices::{self, Host, NewDisks, OwnDevices, Savepoint};
use crate::pager::Source;
use crate::pager::handler::Handler;
use crate::vmm::{Control, LoadMemory};

/// The memory from which clones are restored.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloneMemory {
    /// The memory is copied into each clone, on huge pages.
    Copied(Box<Source>),
    /// Each clone maps the memory privately, and copies the pages that it writes. The bytes must
    /// not change while clones run; those of an image never change.
    Mapped(File),
}

/// The way in which clones get their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CloneWay {
    /// Each clone has a copy.
    Copied,
    /// All clones map one file.
    Mapped,
}

/// Complete clones, which need no other process.
#[derive(Debug)]
#[non_exhaustive]
pub struct Cloned {
    /// The started programs, in the order of the options. They continue to run when this value is
    /// dropped.
    pub programs: Vec<Program>,
    /// Times and bytes.
    pub report: CloneReport,
}

/// The costs of a start of clones. Times are in milliseconds from the start.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CloneReport {
    /// The way in which the clones get their memory.
    pub way: CloneWay,
    /// The time until all clones are restored.
    pub restored_ms: f64,
    /// The time until all clones have all of their memory.
    pub complete_ms: f64,
    /// The clones, in the order of their numbers.
    pub clones: Vec<ChildReport>,
}

impl fmt::Display for CloneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ChildReport { number, pid, api, restored_ms, .. } in &self.clones {
            let api = api.display();
            writeln!(
                f,
                "clone {number}: process {pid}, {api}: restored after {restored_ms:.0} ms"
            )?;
        }
        let Self { restored_ms, complete_ms, .. } = self;
        write!(f, "restored after {restored_ms:.0} ms, complete after {complete_ms:.0} ms")?;
        match self.way {
            CloneWay::Copied => Ok(()),
            CloneWay::Mapped => f.write_str("; all map one file"),
        }
    }
}

/// Starts VMMs, and restores a clone of a saved VM in each VMM. Returns when all clones have all of
/// their memory.
///
/// # Errors
/// [`ForkError`] if a clone cannot be started or restored. All clones have ended then.
pub fn start_clones(options: &CloneOptions, memory: CloneMemory) -> Result<Cloned, ForkError> {
    let started = Instant::now();
    let count = options.children.len();
    if !(1..=MOST_STARTED).contains(&count) {
        return Err(ForkError::Count(count));
    }
    if let CloneMemory::Copied(source) = &memory {
        shortage::check_copies(count, count as u64 * source.data_bytes())?;
    }
    let state = std::path::absolute(&options.state)?;
    let savepoint = check_state(&state, &*options.children[0].control())?;
    check_all(&options.children)?;
    let disks = NewDisks::make(options.children.iter().map(|child| &child.own))?;
    let room = PlannedRoom::new()?;
    let files = options.children.iter().flat_map(ChildOptions::sockets).chain(disks.paths());
    let left_overs = room.left_over().map(LeftOvers::of_folder);
    let guard = Guard::start(None, left_overs.and_then(|left_overs| left_overs.and_files(files)))?;
    let mut children = Children::start(&options.children, None, &guard)?;
    children.await_apis()?;
    let hosts = children.hosts()?;
    let line = StartingLine::new(&hosts, &disks, options.resume);
    let own = options.children.iter().map(|child| &child.own).collect();
    let parent = SavedVm { state: &state, savepoint, hosts: &hosts, own, line: &line };
    let (way, grown) = match memory {
        CloneMemory::Copied(source) => {
            let room = room.make()?;
            let nursery = Nursery::new(Handler::of_file(*source)?, &room);
            (CloneWay::Copied, nursery.raise(&children, &parent, || Ok(()))?.1)
        }
        CloneMemory::Mapped(file) => {
            // The VMM opens it by this process, which outlives the request.
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            let memory = LoadMemory::Mapped(path.as_ref());
            (CloneWay::Mapped, restore_all(&children, &parent, memory)?)
        }
    };
    let clones = children_of(&children, &grown, started);
    let restored_ms = clones.iter().map(|clone| clone.restored_ms).fold(0.0, f64::max);
    let report = CloneReport { way, restored_ms, complete_ms: ms(started.elapsed()), clones };
    disks.keep();
    Ok(Cloned { programs: children.keep(), report })
}

/// Checks that a file is the state of a VM, before a process is started.
fn check_state(path: &Path, control: &dyn Control) -> Result<Savepoint, ForkError> {
    let refused = |source| ForkError::State { path: path.to_owned(), source };
    let read = || {
        let file = input::open(path)?;
        Ok((input::read(&file, LONGEST_STATE)?, file.metadata()?.modified()?))
    };
    let (state, saved) = read().map_err(refused)?;
    if control.is_whole_state(&state) {
        return Ok(Savepoint { saved });
    }
    Err(refused(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong")))
}

/// The state of a saved VM.
struct SavedVm<'a> {
    state: &'a Path,
    savepoint: Savepoint,
    hosts: &'a [Host],
    own: Vec<&'a OwnDevices>,
    line: &'a StartingLine<'a>,
}

impl SavedVm<'_> {
    /// Checks the devices of all clones. Only a VMM can read the state, so the first clone is
    /// restored, stays paused, and names the devices.
    fn check_devices(&self, first: &Child<'_>) -> Result<(), ForkError> {
        let devices = first.control.devices()?;
        first.note_saved_vsock(&devices);
        let own = self.own.iter().copied().zip(self.hosts);
        devices::check(&devices, None, own)?;
        let host = &self.hosts[first.number - 1];
        let written = devices.iter().filter(|device| device.has_written_file());
        written.into_iter().try_for_each(|device| host.check_saved(device, &self.savepoint))?;
        let disks = self.line.disks();
        disks.of_vm(&devices, |disk| host.file_named(disk))?.copy()?;
        Ok(disks.fill_others()?)
    }
}

impl Parent for SavedVm<'_> {
    fn restore(&self, child: &Child<'_>, memory: LoadMemory<'_>) -> Option<ChildNews> {
        self.line.start(child, self.state, memory, |first| self.check_devices(first))
    }

    /// Gives up the restores. The VMMs are ended, and so are their answers.
    fn give_up(&self) {
        self.line.fail();
    }
}

/// Restores clones that need no memory from this process.
fn restore_all(
    children: &Children<'_>,
    parent: &SavedVm<'_>,
    memory: LoadMemory<'_>,
) -> Result<Vec<Grown>, ForkError> {
    let (sender, news) = channel();
    std::thread::scope(|scope| {
        let start = || {
            for child in children.all() {
                let sender = sender.clone();
                let restore =
                    move || drop(parent.restore(child, memory).map(|news| sender.send(news)));
                spawn_scoped(scope, "hugekit-restore", restore)?;
            }
            // The news end when all threads have ended.
            drop(sender);
            await_restored(children, &news)
        };
        start().inspect_err(|_| {
            parent.give_up();
            children.kill();
        })
    })
}
