//! The costs of a fork.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::checkpoint::report::Way;

/// The costs of a fork with complete children. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ForkReport {
    /// The way in which the memory was preserved.
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
    /// The time from the start until all children are restored.
    pub restored_ms: f64,
    /// The time from the start until all children have all of their memory.
    pub complete_ms: f64,
    /// Bytes of the VM's memory.
    pub memory_bytes: u64,
    /// Bytes of the VM's memory that were copied once for all children. All other bytes are zero.
    pub copied_bytes: u64,
    /// Accesses of the running VM that waited for a copy.
    pub faults: u64,
    /// The longest time until such an access was handled.
    pub longest_fault_ms: f64,
    /// The children, in the order of their numbers.
    pub children: Vec<ChildReport>,
}

/// The costs of a complete child. Times are in milliseconds, from the start of the fork.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ChildReport {
    /// The number of the child, from 1 on.
    pub number: usize,
    /// The number of the process of its VMM.
    pub pid: i32,
    /// The socket of its API.
    pub api: PathBuf,
    /// The time until the child is restored, and runs unless it was to stay paused.
    pub restored_ms: f64,
    /// The number of handled page faults.
    pub faults: u64,
    /// Bytes of memory that belong to the child only.
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
