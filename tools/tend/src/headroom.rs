//! Whether there is memory to spare.
//!
//! Available memory counts, not free memory: on a host that reads and writes files, the page cache fills all that is free.
//! The kernel gathers free blocks from it on request ([`BlockSupply`](crate::blocks::BlockSupply)).

use std::time::Instant;

use hugekit_machine::cgroup::{Cgroups, MemoryLeft};
use hugekit_machine::memory::pressure;
use hugekit_machine::{Memory, Root};

use crate::options::TendOptions;
use crate::stalls::Stalls;
use crate::status::Hindrance;
use crate::target::Target;

/// Memory of the machine, and of the control groups of a process.
#[derive(Debug)]
pub(crate) struct Headroom {
    /// Percent of the last ten seconds.
    pressure: Option<f64>,
    /// Bytes.
    available: Option<u64>,
    left: MemoryLeft,
}

impl Headroom {
    pub(crate) fn read(root: &Root, target: &Target) -> Self {
        let groups = Cgroups::of(root, target.pid());
        Self {
            pressure: pressure(root),
            available: Memory::read(root).ok().map(|memory| memory.available),
            left: groups.map_or(MemoryLeft::Unknown, |groups| groups.memory_left()),
        }
    }

    /// Returns why nothing may be collapsed now; `None` if it may. `own` is what the tender waits for memory itself.
    pub(crate) fn hindrance(
        &self,
        options: &TendOptions,
        own: &Stalls,
        now: Instant,
    ) -> Option<Hindrance> {
        let of_others = self.pressure.map(|pressure| own.of_others(pressure, now));
        if let Some(percent) = of_others.filter(|&percent| percent >= options.most_pressure) {
            return Some(Hindrance::Pressure { percent });
        }
        let keep = options.keep_free;
        if let Some(available) = self.available.filter(|&available| available < keep) {
            return Some(Hindrance::LittleMemory { available, keep });
        }
        match &self.left {
            MemoryLeft::Limited(limit) if limit.left() < keep => {
                Some(Hindrance::ControlGroup { left: limit.left() })
            }
            _ => None,
        }
    }

    pub(crate) fn available(&self) -> u64 {
        self.available.unwrap_or(0)
    }

    /// Returns whether holes of this process may be filled. Memory that it did not ask for must not exceed a limit that
    /// the tender cannot read: the kernel would kill the process.
    pub(crate) fn may_grow(&self) -> bool {
        self.left != MemoryLeft::Unknown
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hugekit_machine::cgroup::GroupLimit;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn group(left: u64) -> MemoryLeft {
        MemoryLeft::Limited(GroupLimit { bytes: left, used: Some(0), file: "".into() })
    }

    #[test]
    fn what_is_available_counts_and_own_waits_do_not() {
        let (options, now) = (TendOptions::default(), Instant::now());
        let keep = options.keep_free;
        let mut own = Stalls::default();
        own.add(Duration::from_secs(2), now);
        let none = Stalls::default();
        let little = |available| Some(Hindrance::LittleMemory { available, keep });
        let pressure = |percent| Some(Hindrance::Pressure { percent });
        let rows = [
            (None, None, MemoryLeft::Unlimited, &none, None),
            (Some(4.9), Some(keep), group(keep), &none, None),
            (Some(5.0), Some(0), group(0), &none, pressure(5.0)),
            (Some(20.0), Some(keep), group(keep), &own, None),
            (Some(0.0), Some(keep - 1), group(0), &own, little(keep - 1)),
            (None, Some(keep), group(MIB), &none, Some(Hindrance::ControlGroup { left: MIB })),
        ];
        for (pressure, available, left, own, expected) in rows {
            let headroom = Headroom { pressure, available, left };
            assert_eq!(headroom.hindrance(&options, own, now), expected, "{headroom:?}");
        }
    }
}
