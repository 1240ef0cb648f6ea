//! Options of a tender, and its construction.

use super::Tender;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::options::TendOptions;

/// Options of a [`Tender`]: its processes, and the limits of its work.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is tended before `build`"]
pub struct Builder {
    options: TendOptions,
    fork_cost: Option<ForkCost>,
    pids: Vec<i32>,
}

impl Builder {
    /// Adds a process. The calling process is permitted, too: `std::process::id()`.
    pub fn process(mut self, pid: i32) -> Self {
        self.pids.push(pid);
        self
    }

    /// Sets the limits of the tender's work. By default [`TendOptions::default`].
    pub fn options(mut self, options: TendOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the cost of forks on this machine. With it, the tender estimates the time of the forks
    /// that it sees ([`Status::last_fork`](crate::Status::last_fork)). By default none.
    pub fn fork_cost(mut self, cost: ForkCost) -> Self {
        self.fork_cost = Some(cost);
        self
    }

    /// Makes the tender, which has not begun to work.
    ///
    /// # Errors
    /// [`TendError`] with the reason why one of the processes cannot be tended. Then no process is
    /// tended.
    pub fn build(self) -> Result<Tender, TendError> {
        let mut tender = Tender::new(self.options, self.fork_cost);
        for pid in self.pids {
            tender.add(pid)?;
        }
        Ok(tender)
    }
}
