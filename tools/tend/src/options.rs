//! The options of a tender. The command, Python and programs in Rust have their defaults from here.

/// The limits within which a tender works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The least share of a 2 MiB range that must be populated, from 0 to 1: a collapse fills the rest with zeroes. With
    /// 0.9, the default, collapsed memory grows by a ninth at most.
    pub density: f64,
    /// The most CPU time for collapses, as a share of one CPU. Default: 1. If threads of the process wait longer for CPUs
    /// while the tender works, the tender uses at most 0.05.
    pub cpu_share: f64,
    /// The most bytes to collapse in a second. Default: 1 GiB.
    pub bytes_per_second: u64,
    /// Bytes of free memory in blocks of 2 MiB that are left to everything else, of the machine and of the process's
    /// control group. Default: 256 MiB.
    pub keep_free: u64,
    /// The share of time in which tasks waited for memory in the last ten seconds (`some avg10` of
    /// `/proc/pressure/memory`), in percent, from which on nothing is collapsed. Default: 5.
    pub most_pressure: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            density: 0.9,
            cpu_share: 1.0,
            bytes_per_second: 1 << 30,
            keep_free: 256 << 20,
            most_pressure: 5.0,
        }
    }
}
