//! Whether a process loads data: its memory grows quickly.
//!
//! A range that is collapsed during a load is soon split again, because the program and its allocator move what they read. So the
//! tender waits for the end of the load.

use std::time::{Duration, Instant};

/// Growth is measured over this time.
const WINDOW: Duration = Duration::from_secs(1);

/// A load makes a process grow by at least this many bytes per second ...
const LITTLE: u64 = 16 << 20;

/// ... and by one part in this many of its memory.
const PART: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// When the window began, and the memory then.
    began: Option<(Instant, Memory)>,
    /// Bytes per second, of the last window.
    rate: Option<u64>,
}

/// Bytes of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// In memory now.
    pub(crate) resident: u64,
    /// Holes that the tender has filled so far. The process did not ask for them.
    pub(crate) filled: u64,
}

impl Load {
    pub(crate) fn note(&mut self, memory: Memory, now: Instant) {
        let Some((began, before)) = self.began else {
            self.began = Some((now, memory));
            return;
        };
        let time = now.saturating_duration_since(began);
        if time >= WINDOW {
            let filled = memory.filled - before.filled;
            let grown = memory.resident.saturating_sub(before.resident).saturating_sub(filled);
            let rate = (grown as f64 / time.as_secs_f64()) as u64;
            self.rate = (rate >= LITTLE.max(memory.resident / PART)).then_some(rate);
            self.began = Some((now, memory));
        }
    }

    /// Returns by how many bytes per second a process grows that loads data.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident and filled MiB of each second, and the growth of a load.
    type Row<'a> = (&'a [(u64, u64)], Option<u64>);

    #[test]
    fn load_is_quick_growth_of_a_good_part_of_the_memory() {
        const MIB: u64 = 1 << 20;
        let rows: [Row<'_>; 7] = [
            (&[(100, 0)], None),
            (&[(100, 0), (200, 0)], Some(100)),
            (&[(100, 0), (200, 0), (200, 0)], None),
            (&[(100, 0), (115, 0)], None),
            (&[(10_000, 0), (10_100, 0)], None),
            (&[(200, 0), (100, 0), (150, 0)], Some(50)),
            (&[(100, 7), (200, 97)], None),
        ];
        for (sizes, expected) in rows {
            let (mut load, start) = (Load::default(), Instant::now());
            for (second, &(resident, filled)) in sizes.iter().enumerate() {
                let memory = Memory { resident: resident * MIB, filled: filled * MIB };
                load.note(memory, start + second as u32 * WINDOW);
            }
            assert_eq!(load.rate(), expected.map(|rate| rate * MIB), "{sizes:?}");
        }
    }

    #[test]
    fn looks_within_a_window_change_nothing() {
        let (mut load, start) = (Load::default(), Instant::now());
        for tenth in 0..10 {
            let memory = Memory { resident: u64::from(tenth) << 30, filled: 0 };
            load.note(memory, start + tenth * WINDOW / 10);
        }
        assert_eq!(load.rate(), None);
    }
}
