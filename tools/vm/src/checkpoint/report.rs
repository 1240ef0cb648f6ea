//! The costs of a checkpoint.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The way in which the VM's memory was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Way {
    /// The memory was protected in the pause, and copied while the VM ran.
    WriteProtected,
    /// Firecracker saved the memory in the pause, because this version does not save its state
    /// separately.
    StockSnapshot,
}

/// The costs of a complete checkpoint. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// The way in which the memory was saved.
    pub way: Way,
    /// The time between the request to pause the VM and the answer that it runs again; 0 if the VM
    /// was paused before.
    pub paused_ms: f64,
    /// The part of the pause in which the memory was protected.
    pub protect_ms: f64,
    /// The time before the pause in which memory was put on huge pages.
    pub collapse_ms: f64,
    /// Bytes that were put on huge pages before the pause.
    pub collapsed_bytes: u64,
    /// The time from the start until the output is complete and on its disk.
    pub complete_ms: f64,
    /// Bytes of the VM's memory.
    pub memory_bytes: u64,
    /// Bytes of the VM's memory that were read: bytes that are present and may have changed.
    pub read_bytes: u64,
    /// Bytes of the VM's memory that were copied. All other bytes are zero, or in a delta
    /// unchanged.
    pub copied_bytes: u64,
    /// Bytes of the delta; `None` if the checkpoint is not a delta.
    pub delta_bytes: Option<u64>,
    /// Accesses of the running VM that waited for a copy.
    pub faults: u64,
    /// The longest time until such an access was handled.
    pub longest_fault_ms: f64,
    /// Disks that the VM writes and that are not in the output.
    pub unsaved: Vec<String>,
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl fmt::Display for CheckpointReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { paused_ms, complete_ms, memory_bytes, copied_bytes, faults, .. } = self;
        let (memory, copied) = (memory_bytes >> 20, copied_bytes >> 20);
        write!(
            f,
            "paused for {paused_ms:.1} ms; complete after {complete_ms:.0} ms: {copied} of \
             {memory} MiB copied, {faults} accesses waited"
        )?;
        if self.collapsed_bytes > 0 {
            let (collapsed, time) = (self.collapsed_bytes >> 20, self.collapse_ms);
            write!(f, "; {collapsed} MiB put on huge pages before, in {time:.0} ms")?;
        }
        if self.way == Way::StockSnapshot {
            f.write_str(
                "; by a stock snapshot, because this Firecracker does not save its state alone",
            )?;
        }
        if !self.unsaved.is_empty() {
            let unsaved = self.unsaved.join(", ");
            write!(f, "; not saved: {unsaved}")?;
        }
        Ok(())
    }
}
