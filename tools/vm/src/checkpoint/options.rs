//! Options of checkpoints and forks. With the feature `clap`, they are the arguments of the command.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[cfg(feature = "clap")]
use crate::arguments::seconds;
use crate::checkpoint::fork_error::ForkError;
use crate::devices::OwnDevices;
use crate::firecracker::Firecracker;
use crate::vmm::{Control, ControlError};

/// Fields of the request that restores a VM, which follow from other options.
const SET_FIELDS: [&str; 6] = [
    "snapshot_path",
    "mem_file_path",
    "mem_backend",
    "resume_vm",
    "network_overrides",
    "vsock_override",
];

/// A running Firecracker, and how it is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct RunningVm {
    /// The process of Firecracker. By default the process that listens at the socket; any other is
    /// refused, unless the socket belongs to a proxy.
    #[cfg_attr(feature = "clap", arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..)))]
    #[serde(default)]
    pub pid: Option<i32>,
    /// The socket of Firecracker's API.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SOCKET"))]
    pub api: PathBuf,
    /// True, the default, if memory on base pages is put on huge pages before the pause. This copies
    /// it once more.
    #[cfg_attr(feature = "clap", arg(
        long = "no-collapse",
        action = clap::ArgAction::SetFalse,
        help = "Do not put memory on huge pages before the pause; the pause is longer on base pages"
    ))]
    #[serde(default = "yes")]
    pub collapse: bool,
    /// The API's socket belongs to another process than PID, such as a proxy.
    #[cfg_attr(feature = "clap", arg(long, requires = "pid"))]
    #[serde(default)]
    pub proxy: bool,
}

impl RunningVm {
    /// Returns the VMM of the VM.
    pub(crate) fn control(&self) -> Box<dyn Control> {
        Box::new(Firecracker::at(&self.api))
    }

    /// Makes options with the defaults of the command.
    #[must_use]
    pub fn new(api: PathBuf) -> Self {
        Self { pid: None, api, collapse: yes(), proxy: false }
    }

    /// Makes options with the same defaults, for the API of a proxy.
    #[must_use]
    pub fn behind_proxy(pid: i32, api: PathBuf) -> Self {
        Self { pid: Some(pid), proxy: true, ..Self::new(api) }
    }

    /// Returns the number of the VMM's process.
    pub(crate) fn pid(&self, control: &dyn Control) -> Result<i32, ControlError> {
        match (self.pid, self.proxy) {
            (Some(pid), true) => Ok(pid),
            (given, _) => {
                let found = control.listener()?;
                let pid = given.unwrap_or(found);
                if pid == found { Ok(pid) } else { Err(ControlError::OtherVmm { pid, found }) }
            }
        }
    }
}

fn yes() -> bool {
    true
}

/// Options of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct CheckpointOptions {
    /// The VM to save.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub vm: RunningVm,
    /// The folder that is made. It must not exist, or be empty.
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "DIR"))]
    pub output: PathBuf,
    /// Save only changes since these checkpoints: the folder with `memory`, then each delta since.
    #[cfg_attr(feature = "clap", arg(long = "delta", value_name = "PREVIOUS", num_args = 1..))]
    #[serde(default)]
    pub previous: Vec<PathBuf>,
}

impl CheckpointOptions {
    /// Makes options with the defaults of the command.
    #[must_use]
    pub fn new(vm: RunningVm, output: PathBuf) -> Self {
        Self { vm, output, previous: Vec::new() }
    }
}

/// Options of a series of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct SeriesOptions {
    /// Save again at this interval: first all memory, then the changes since.
    ///
    /// It is the time from the start of a checkpoint to the start of the next one. A checkpoint that
    /// takes longer is followed at once.
    // A command without it makes one checkpoint: it flattens an `Option` of this.
    #[cfg_attr(feature = "clap", arg(
        long = "every",
        value_name = "SECONDS",
        required = false,
        value_parser = seconds(1)
    ))]
    pub interval: Duration,
    /// End after this number of checkpoints.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "N",
        requires = "interval",
        value_parser = clap::value_parser!(u64).range(1..)
    ))]
    #[serde(default)]
    pub count: Option<u64>,
    /// Save all memory again after this number of deltas.
    ///
    /// A restore reads the last checkpoint of all memory and all deltas since.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "N",
        requires = "interval",
        default_value_t = most_deltas()
    ))]
    #[serde(default = "most_deltas")]
    pub deltas: u64,
    /// Save once more when a signal ends the series.
    #[cfg_attr(feature = "clap", arg(long, requires = "interval"))]
    #[serde(default)]
    pub save_at_end: bool,
}

impl SeriesOptions {
    /// Makes options with the defaults of the command.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, count: None, deltas: most_deltas(), save_at_end: false }
    }
}

fn most_deltas() -> u64 {
    60
}

/// Options of a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct ForkOptions {
    /// The VM to fork.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub vm: RunningVm,
    /// From 1 to 64.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub children: Vec<ChildOptions>,
    /// True, the default, if children run as soon as they are restored.
    #[cfg_attr(feature = "clap", arg(
        long = "paused",
        action = clap::ArgAction::SetFalse,
        help = "Leave the children paused"
    ))]
    #[serde(default = "yes")]
    pub resume: bool,
}

impl ForkOptions {
    /// Makes options with the defaults of the command.
    #[must_use]
    pub fn new(vm: RunningVm, children: Vec<ChildOptions>) -> Self {
        Self { vm, children, resume: yes() }
    }
}

/// Clones of a saved VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct CloneOptions {
    /// The state of the VM's devices: `snapshot_path` of Firecracker, `vmstate` of a checkpoint.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub state: PathBuf,
    /// The clones.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub children: Vec<ChildOptions>,
    /// True, the default, if clones run as soon as they are restored.
    #[serde(default = "yes")]
    #[cfg_attr(feature = "clap", arg(
        long = "paused",
        action = clap::ArgAction::SetFalse,
        help = "Leave the clones paused"
    ))]
    pub resume: bool,
}

impl CloneOptions {
    /// Makes options with the defaults of the command.
    #[must_use]
    pub fn new(state: PathBuf, children: Vec<ChildOptions>) -> Self {
        Self { state, children, resume: yes() }
    }
}

/// Options of one child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildOptions {
    /// The program that starts Firecracker, and its arguments. The standard streams of the program
    /// are `/dev/null`.
    pub command: Vec<OsString>,
    /// The socket of the child's API, which must not exist.
    pub api: PathBuf,
    /// Parts of the host that replace those of the child's VM.
    #[serde(default)]
    pub own: OwnDevices,
    /// Other fields of the request that restores the child, such as `huge_pages`.
    #[serde(default)]
    pub load: Map<String, Value>,
}

impl ChildOptions {
    /// Returns the VMM of the child.
    pub(crate) fn control(&self) -> Box<dyn Control> {
        Box::new(Firecracker::at(&self.api))
    }

    /// Makes options without devices of the child's own.
    #[must_use]
    pub fn new(command: Vec<OsString>, api: PathBuf) -> Self {
        Self { command, api, own: OwnDevices::default(), load: Map::new() }
    }

    /// Returns the sockets that the child makes.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        [self.api.clone()].into_iter().chain(self.own.vsock.clone())
    }

    /// Checks before a process is started that the child's sockets are free, and that the options
    /// set no field of the request that other options determine.
    pub(crate) fn check(&self, number: usize) -> Result<(), ForkError> {
        if let Some(socket) = self.sockets().find(|path| fs::symlink_metadata(path).is_ok()) {
            return Err(ForkError::Exists { number, socket });
        }
        let field = SET_FIELDS.into_iter().find(|&field| self.load.contains_key(field));
        field.map_or(Ok(()), |field| Err(ForkError::Field { field }))
    }
}
