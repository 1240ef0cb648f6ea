//! The options of a tender.

use super::Tender;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::settings::Settings;

/// Builds a [`Tender`]: which processes, and how carefully.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is tended before `build`"]
pub struct Builder {
    settings: Settings,
    fork_cost: Option<ForkCost>,
    pids: Vec<i32>,
}

impl Builder {
    /// This process, too. It may be the calling one: `std::process::id()`.
    pub fn process(mut self, pid: i32) -> Self {
        self.pids.push(pid);
        self
    }

    /// Sets the least share of pages of a 2 MiB range that must be present, from 0 to 1: a collapse fills the others
    /// with zeroes. With 0.9, which is the default, what is collapsed grows by a ninth at most.
    pub fn density(mut self, density: f64) -> Self {
        self.settings.density = density;
        self
    }

    /// The most CPU time for collapses, as a share of one CPU. By default 1. If threads of the process wait longer for
    /// CPUs while the tender works, the tender uses at most 0.05.
    pub fn cpu_share(mut self, share: f64) -> Self {
        self.settings.cpu_share = share;
        self
    }

    /// Bytes that may be collapsed in a second, at most; 1 GiB unless told.
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.settings.bytes_per_second = bytes;
        self
    }

    /// Bytes of free memory in blocks of 2 MiB that are left to everything else, of the machine and of the process's
    /// control group; 256 MiB unless told.
    pub fn keep_free(mut self, bytes: u64) -> Self {
        self.settings.keep_free = bytes;
        self
    }

    /// The share of time that tasks waited for memory in the last ten seconds (`some avg10` of
    /// `/proc/pressure/memory`), in percent, from which on nothing is collapsed; 5 unless told.
    pub fn most_pressure(mut self, percent: f64) -> Self {
        self.settings.most_pressure = percent;
        self
    }

    /// Sets the cost of forks on this machine, so that the tender can estimate how long the forks that it sees have taken
    /// ([`Status::last_fork`](crate::Status::last_fork)).
    pub fn fork_cost(mut self, cost: ForkCost) -> Self {
        self.fork_cost = Some(cost);
        self
    }

    /// The tender, which has done nothing yet.
    ///
    /// # Errors
    /// The reason why one of the processes cannot be tended. Then none is.
    pub fn build(self) -> Result<Tender, TendError> {
        let mut tender = Tender::new(self.settings, self.fork_cost);
        for pid in self.pids {
            tender.add(pid)?;
        }
        Ok(tender)
    }
}
