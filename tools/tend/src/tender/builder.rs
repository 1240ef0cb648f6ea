//! Makes a tender of processes and options.

use super::Tender;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::options::TendOptions;

/// Builds a [`Tender`]: which processes, and how carefully.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is tended before `build`"]
pub struct Builder {
    options: TendOptions,
    fork_cost: Option<ForkCost>,
    pids: Vec<i32>,
}

impl Builder {
    /// This process, too. It may be the calling one: `std::process::id()`.
    pub fn process(mut self, pid: i32) -> Self {
        self.pids.push(pid);
        self
    }

    /// Sets the limits within which the tender works.
    pub fn options(mut self, options: TendOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the cost of forks on this machine, so that the tender can estimate how long the forks that it sees have taken
    /// ([`Status::last_fork`](crate::Status::last_fork)).
    pub fn fork_cost(mut self, cost: ForkCost) -> Self {
        self.fork_cost = Some(cost);
        self
    }

    /// Returns the tender, which has done nothing yet.
    ///
    /// # Errors
    /// The reason why one of the processes cannot be tended. Then none is.
    pub fn build(self) -> Result<Tender, TendError> {
        let mut tender = Tender::new(self.options, self.fork_cost);
        for pid in self.pids {
            tender.add(pid)?;
        }
        Ok(tender)
    }
}
