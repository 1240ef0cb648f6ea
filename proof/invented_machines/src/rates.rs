//! Rates that routines reached on machines that the lab has run on: `data/rates.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A machine, and its rates.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Its name.
    #[serde(rename = "name")]
    pub machine: String,
    /// The CPU's vendor as CPUID names it: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// Display family.
    pub family: u32,
    /// Display model.
    pub model: u32,
    /// Second-level cache in KiB.
    pub l2_kib: usize,
    /// Last level in KiB, as the CPU reports it.
    pub llc_kib: usize,
    /// CPUs of a virtual machine; `None` for a machine without a hypervisor, whose last level has no other users.
    pub guest_cpus: Option<usize>,
    /// By operation, state and length.
    pub rows: Vec<Row>,
}

/// The rates at one length.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// The operation, and the state of its memory.
    pub of: Of,
    /// Length of the operation in KiB.
    pub kib: usize,
    /// Name of libc's routine, and its rate in GiB/s.
    pub libc: (String, f64),
    /// The other routines that were recorded: rates in GiB/s by name.
    #[serde(flatten)]
    pub others: BTreeMap<String, f64>,
}

/// Operations that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// A clear of the same bytes over and over.
    ClearWarm,
    /// A clear of bytes that are not in the cache.
    ClearCold,
    /// A copy of the same bytes over and over.
    CopyWarm,
    /// A copy of bytes that are not in the cache.
    CopyCold,
}

impl Row {
    /// The rate of a routine in GiB/s, if it was recorded.
    #[must_use]
    pub fn rate(&self, routine: &str) -> Option<f64> {
        let (libc, rate) = &self.libc;
        if libc == routine { Some(*rate) } else { self.others.get(routine).copied() }
    }

    /// The highest rate in GiB/s.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.others.values().copied().fold(self.libc.1, f64::max)
    }
}

/// All machines.
///
/// # Panics
/// If the data file is damaged, which a test would find.
#[must_use]
pub fn rates() -> Vec<Rates> {
    #[derive(Deserialize)]
    struct File {
        machine: Vec<Rates>,
    }
    let file: File =
        toml::from_str(include_str!("../data/rates.toml")).expect("it is part of the crate");
    file.machine
}
