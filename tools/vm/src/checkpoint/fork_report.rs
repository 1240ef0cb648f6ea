//! What a fork took.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::checkpoint::report::Way;

/// A fork whose children are complete. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ForkReport {
    /// The way in which the memory was preserved.
    pub way: Way,
    /// Between the request to pause the VM and the answer that it runs again; 0 if it was paused
    /// before.
    pub paused_ms: f64,
    /// Milliseconds of the pause in which the memory was protected.
    pub protect_ms: f64,
    /// Before the pause, memory that was put on huge pages: time.
    pub collapse_ms: f64,
    /// Before the pause, memory that was put on huge pages: bytes.
    pub collapsed_bytes: u64,
    /// From the start until all children are restored.
    pub restored_ms: f64,
    /// From the start until all children have all of their memory.
    pub complete_ms: f64,
    /// Bytes of the VM's memory.
    pub memory_bytes: u64,
    /// Bytes of it that were copied once for all children: all others are zero.
    pub copied_bytes: u64,
    /// Accesses of the running VM that waited for a copy.
    pub faults: u64,
    /// The longest time in which such an access was answered.
    pub longest_fault_ms: f64,
    /// In the order of their numbers.
    pub children: Vec<ChildReport>,
}

/// A child that needs this process no more. Times are in milliseconds, from the start of the fork.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ChildReport {
    /// From 1 on.
    pub number: usize,
    /// Its VMM's process.
    pub pid: i32,
    /// The socket of its API.
    pub api: PathBuf,
    /// Until it is restored, and runs if it was to run.
    pub restored_ms: f64,
    /// Page faults that were answered.
    pub faults: u64,
    /// Bytes that it has of its own.
    pub copied_bytes: u64,
    /// Bytes of these that are on huge pages.
    pub huge_bytes: u64,
}

impl fmt::Display for ForkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ChildReport { number, pid, api, restored_ms, copied_bytes, .. } in &self.children {
            let (api, copied) = (api.display(), copied_bytes >> 20);
            writeln!(
                f,
                "child {number}: process {pid}, {api}: restored after {restored_ms:.0} ms, {copied} \
                 MiB of its own"
            )?;
        }
        let Self { paused_ms, restored_ms, complete_ms, faults, .. } = self;
        write!(
            f,
            "paused for {paused_ms:.1} ms; children restored after {restored_ms:.0} ms, complete \
             after {complete_ms:.0} ms; {faults} accesses of the VM waited"
        )?;
        match self.way {
            Way::WriteProtected => Ok(()),
            Way::StockSnapshot => f.write_str(
                "; by a stock snapshot, because this Firecracker does not save its state alone",
            ),
        }
    }
}
