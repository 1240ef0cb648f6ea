//! The settings of a pager.

use std::path::PathBuf;
use std::time::Duration;

/// The socket of a pager, and its way of serving VMs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket that VMMs connect to.
    pub socket: PathBuf,
    /// The folder with a record of each VM that is served. `None`: the socket's path with `.state` behind it.
    pub state: Option<PathBuf>,
    /// Bytes that one fault brings in at least: a power of two from the base page to 2 MiB.
    pub around: u64,
    /// True if memory is read before it is touched. If not, the pager serves until the VM ends.
    pub prefetch: bool,
    /// The file that names what VMs touch first. `None`: the memory file's path with `.working-set`
    /// behind it.
    pub working_set: Option<PathBuf>,
    /// The time for which the touches of a VM are recorded, if there is no such file. Everything else is read
    /// afterwards.
    pub record: Duration,
    /// For this time after its connection, a VM gets only memory that it waits for. The time is over
    /// earlier if the VM has had 16 faults.
    pub startup: Duration,
    /// True if the pager goes on serving a VM when all of its memory is there.
    pub stay: bool,
    /// For how long a VM waits whose message was lost with an earlier pager and whose regions cannot
    /// be distinguished. Another VM of the same memory file that connects meanwhile shows them.
    pub patience: Duration,
    /// Users, besides this one and root, whose VMs are served.
    pub users: Vec<u32>,
}

/// 2 MiB.
pub const LONGEST_AROUND: u64 = 2 << 20;

impl Settings {
    /// With the defaults of the command.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            state: None,
            around: LONGEST_AROUND,
            prefetch: true,
            working_set: None,
            record: Duration::from_secs(10),
            startup: Duration::from_millis(100),
            stay: false,
            patience: Duration::from_secs(60),
            users: Vec::new(),
        }
    }

    pub(crate) fn state_folder(&self) -> PathBuf {
        let beside = || {
            let mut path = self.socket.clone().into_os_string();
            path.push(".state");
            path.into()
        };
        self.state.clone().unwrap_or_else(beside)
    }
}
