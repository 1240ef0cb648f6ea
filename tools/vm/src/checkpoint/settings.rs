//! Options: the VM, and the folder for its state.

use std::path::PathBuf;

/// Options of a checkpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The VMM's process.
    pub pid: i32,
    /// The socket of its API.
    pub api: PathBuf,
    /// The folder that is made. It must not exist, or be empty.
    pub output: PathBuf,
    /// Checkpoints of the same VM, the oldest first: a full one, and the deltas since. The output is
    /// then a delta. None by default.
    pub previous: Vec<PathBuf>,
    /// True if memory on base pages is put on huge pages before the pause. This copies it once
    /// more.
    pub collapse: bool,
    /// True if the API's socket must belong to the VMM's process. The socket of a proxy does not.
    pub check_api: bool,
}

impl Settings {
    /// With the defaults of the command.
    #[must_use]
    pub fn new(pid: i32, api: PathBuf, output: PathBuf) -> Self {
        Self { pid, api, output, previous: Vec::new(), collapse: true, check_api: true }
    }
}
