//! How carefully to tend.

/// What a tender goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Of a range of 2 MiB, the least share of pages that must be there: a collapse fills the others with zeroes. With
    /// 0.9, what is collapsed grows by a ninth at most.
    pub density: f64,
    /// Of one CPU, the share that collapses may take: after each one, the tender sleeps for as long as this asks.
    pub cpu_share: f64,
    /// Bytes that may be collapsed in a second, at most.
    pub bytes_per_second: u64,
    /// Bytes of free memory in blocks of 2 MiB that are left to everything else, of the machine and of the process's
    /// control group.
    pub keep_free: u64,
    /// The share of time that tasks waited for memory in the last ten seconds (`some avg10` of
    /// `/proc/pressure/memory`), in percent, from which on nothing is collapsed.
    pub most_pressure: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            density: 0.9,
            cpu_share: 0.2,
            bytes_per_second: 1 << 30,
            keep_free: 256 << 20,
            most_pressure: 5.0,
        }
    }
}
