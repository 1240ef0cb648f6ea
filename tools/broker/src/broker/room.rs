//! Memory for programs that start without a lease. Units without a client return to the kernel, and
//! no unit is begun ahead while such a program starts.

use std::time::{Duration, Instant};

use hugekit_lease::protocol::Answer;

use super::{Broker, ClientId};
use crate::options::Charge;
use crate::unit::FillingUnit;

/// The longest and the shortest time that a program may need for its memory.
const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);

/// The lowest rate at which a program populates memory, in bytes per second, on one thread.
const PER_SECOND: u64 = 1 << 30;

impl Broker {
    /// Answers a client that starts a program without a lease. A user gets no more memory in this
    /// way than its quota permits for leases.
    pub(super) fn give_back(&mut self, id: ClientId, asked: u64, page_size: u64) {
        if let Err(refusal) = self.ledger.check(self.clients[&id].account, asked) {
            return self.refuse(id, refusal);
        }
        let bytes = if self.has_pages_of(page_size) { self.free_memory(asked) } else { 0 };
        self.answer(id, &Answer::GivenBack { bytes }, None);
    }

    /// Returns true if units are begun ahead, and consist of the same kind of memory as the
    /// program's.
    fn has_pages_of(&self, page_size: u64) -> bool {
        let (backing, is_charged) = (self.backing(), self.options.charge == Charge::Client);
        let own = if backing.is_reserved() { backing.page_size() as u64 } else { 0 };
        self.options.unit.is_some() && !is_charged && own == page_size
    }

    /// Frees memory, and returns the number of freed bytes.
    fn free_memory(&mut self, asked: u64) -> u64 {
        self.look();
        let unit = self.unit_bytes();
        let mut left = lacking(asked, self.memory.free, unit);
        let ready = left.min(self.ready.len());
        left -= ready;
        self.ready.truncate(self.ready.len() - ready);
        let is_ahead = left > 0 && self.waiting().is_empty();
        let begun = if is_ahead { std::mem::take(&mut self.filling) } else { Vec::new() };
        let units = ready + begun.len();
        self.ending.extend(begun.into_iter().map(FillingUnit::abandon));
        self.look();
        if self.memory.free < asked.saturating_add(unit) {
            self.settled_from = self.settled_from.max(Instant::now() + time_for(asked));
        }
        units as u64 * unit
    }
}

/// Returns the number of units that must return until this much memory is free.
fn lacking(asked: u64, free: u64, unit: u64) -> usize {
    usize::try_from(asked.saturating_sub(free).div_ceil(unit)).unwrap_or(usize::MAX)
}

fn time_for(bytes: u64) -> Duration {
    Duration::from_secs(bytes / PER_SECOND).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_units_return_as_memory_is_lacking() {
        for (asked, free, units) in
            [(0, 0, 0), (8, 8, 0), (9, 8, 1), (12, 8, 1), (13, 8, 2), (u64::MAX, 0, 1 << 62)]
        {
            assert_eq!(lacking(asked, free, 4), units, "{asked} of {free}");
        }
    }

    #[test]
    fn a_pause_is_as_long_as_the_memory_is_large() {
        let seconds = |gib: u64| time_for(gib << 30).as_secs();
        assert_eq!([0, 1, 8, 1 << 20].map(seconds), [1, 1, 8, 60]);
    }
}
