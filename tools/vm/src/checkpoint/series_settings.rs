//! Options of a series of checkpoints.

use std::time::Duration;

use crate::checkpoint::settings::Settings;

/// Options of a series of checkpoints.
#[derive(Clone, Debug)]
pub struct SeriesSettings {
    /// The VM, and the folder for the folders of checkpoints, which is made or empty.
    pub vm: Settings,
    /// From the start of a checkpoint to the start of the next one. A checkpoint that takes longer is
    /// followed at once.
    pub interval: Duration,
    /// Deltas that may follow on a full checkpoint; the next checkpoint is full again. 60 by default:
    /// a restore reads the full one and all deltas.
    pub deltas: u64,
    /// The last checkpoint of the series. None by default.
    pub count: Option<u64>,
    /// True if a series that is stopped makes a last checkpoint. It does not by default.
    pub save_at_end: bool,
}

impl SeriesSettings {
    /// With the defaults of the command.
    #[must_use]
    pub fn new(vm: Settings, interval: Duration) -> Self {
        Self { vm, interval, deltas: 60, count: None, save_at_end: false }
    }
}
