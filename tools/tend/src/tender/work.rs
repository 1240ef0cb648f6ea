//! The work of a pass: a free block, a collapse and a rest, range by range.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::other_process::{UnreadableByte, collapse};
use hugekit_sys::thread::cpu_time;
use rustix::io::Errno;
use rustix::process::Pid;

use super::away::Shared;
use super::tended::Tended;
use super::{PIECE, rest};
use crate::blocks::{BlockSupply, Request};
use crate::headroom::Headroom;
use crate::pace::{Pace, Turn, Worked};
use crate::pages::Look;
use crate::status::{Hindrance, TendRefusal};
use crate::supply::{Next, Supply};
use crate::waits::Waits;

/// Turns for each look at the machine's memory: 32 MiB, which [`TendOptions::keep_free`](crate::TendOptions::keep_free)
/// leaves many times.
const LOOK_EVERY: usize = 16;

/// The work of a pass so far.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) collapsed: u64,
    pub(super) filled: u64,
    pub(super) supply: Supply,
    pub(super) refused: BTreeMap<TendRefusal, u64>,
    /// The longest collapse, and all together.
    pub(super) longest: Duration,
    pub(super) locked: Duration,
    pub(super) hindrance: Option<Hindrance>,
    /// The kernel collapses nothing of which no page can be written: a page is made writable first.
    unreadable: Option<UnreadableByte>,
}

impl Tended {
    pub(super) fn work(&mut self, ranges: Vec<Look>, shared: &Shared, stop: &AtomicBool) -> Work {
        // Where a child shares all of the memory there is no range, and it is the child that is in the way.
        let switched_off = self.target.has_switched_off().then_some(Hindrance::SwitchedOff);
        let hindrance = switched_off.or_else(|| self.hindrance(shared, stop, true));
        let mut work = Work { hindrance, ..Work::default() };
        let blocks = BlockSupply::new(&shared.root);
        let mut waits = Waits::new(&shared.options, self.target.folder());
        let locks = self.rhythm.share_for(ranges.len());
        let mut ranges = ranges.into_iter().peekable();
        let mut turns = 0;
        while let (None, Some(&range)) = (work.hindrance, ranges.peek()) {
            let Some(turn) = turn(&shared.pace, stop) else {
                work.hindrance = Some(Hindrance::Stopped);
                break;
            };
            let (began, cpu) = (Instant::now(), cpu_time());
            let request = blocks.request();
            shared.add_stall(&request);
            let next = work.supply.after(&request);
            work.hindrance = match next {
                Next::NoBlock => Some(self.no_block(&blocks, shared)),
                Next::Swapping { bytes } => Some(Hindrance::Swapping { bytes }),
                Next::Collapse | Next::Request => {
                    self.hindrance(shared, stop, turns % LOOK_EVERY == 0)
                }
            };
            turns += 1;
            let mut worked = Worked { stalled: request.stalled(), ..Worked::default() };
            if next == Next::Collapse && work.hindrance.is_none() {
                ranges.next();
                if self.target.is_still(range) {
                    worked.bytes = HUGE_PAGE_BYTES as u64;
                    worked.locked = self.collapse(range, &mut work);
                }
            }
            (worked.elapsed, worked.cpu) = (began.elapsed(), cpu_time().saturating_sub(cpu));
            let share = waits.share(self.target.folder());
            let rest = worked.rest(share, locks, shared.options.bytes_per_second);
            // What made a request slow, or refused it, needs time to pass.
            let least = if next == Next::Request { request.took } else { Duration::ZERO };
            turn.rest(rest.max(least));
        }
        work
    }

    fn no_block(&self, blocks: &BlockSupply<'_>, shared: &Shared) -> Hindrance {
        let available = Headroom::read(&shared.root, &self.target).available();
        Hindrance::NoFreeHugePages { free: blocks.free().unwrap_or(0), available }
    }

    fn hindrance(
        &mut self,
        shared: &Shared,
        stop: &AtomicBool,
        of_memory: bool,
    ) -> Option<Hindrance> {
        if stop.load(Ordering::Relaxed) {
            return Some(Hindrance::Stopped);
        }
        let Some(resident) = self.target.resident() else { return Some(Hindrance::Gone) };
        if let Some(bytes_per_second) = self.note_load(resident) {
            return Some(Hindrance::Loading { bytes_per_second });
        }
        match self.relatives.look(&self.target) {
            0 if of_memory => shared.hindrance(&Headroom::read(&shared.root, &self.target)),
            0 => None,
            count => Some(Hindrance::Child { count }),
        }
    }

    fn collapse(&mut self, range: Look, work: &mut Work) -> Duration {
        let began = Instant::now();
        let done = self.try_collapse(range.start, work);
        let took = began.elapsed();
        work.longest = work.longest.max(took);
        work.locked += took;
        match done {
            Ok(()) => {
                work.collapsed += 1;
                let holes = (HUGE_PAGE_BYTES as u64).saturating_sub(range.present);
                work.filled += holes;
                self.filled += holes;
                self.history.collapsed(range, Instant::now());
            }
            // It is gone, which is the hindrance then.
            Err(Errno::SRCH) => {}
            Err(Errno::INVAL) if self.target.has_switched_off() => {
                work.hindrance = Some(Hindrance::SwitchedOff);
            }
            Err(errno) => *work.refused.entry(TendRefusal::from(errno)).or_insert(0) += 1,
        }
        took
    }

    /// Some kernels (seen: 6.1, 6.8, 6.12; not 6.18) refuse 2 MiB of which no page can be written without a fault, as
    /// after a fork. One page that can be written is enough for them.
    fn try_collapse(&self, start: u64, work: &mut Work) -> Result<(), Errno> {
        let (descriptor, pid) = (self.target.descriptor(), Pid::from_raw(self.target.pid()));
        if let (Some(byte), Some(pid)) = (&work.unreadable, pid) {
            byte.make_writable(pid, start);
            return collapse(descriptor, start);
        }
        let done = collapse(descriptor, start);
        if let (Err(Errno::INVAL), Some(pid), Ok(byte)) = (done, pid, UnreadableByte::new()) {
            byte.make_writable(pid, start);
            collapse(descriptor, start)?;
            // The rest of the memory has been forked, too.
            work.unreadable = Some(byte);
            return Ok(());
        }
        done
    }
}

impl Shared {
    fn add_stall(&self, request: &Request) {
        let mut stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        stalls.add(request.stalled(), Instant::now());
    }

    fn hindrance(&self, headroom: &Headroom) -> Option<Hindrance> {
        let stalls = *self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        headroom.hindrance(&self.options, &stalls, Instant::now())
    }
}

/// None after a stop.
fn turn<'a>(pace: &'a Pace, stop: &AtomicBool) -> Option<Turn<'a>> {
    while !stop.load(Ordering::Relaxed) {
        match pace.start_turn() {
            Ok(turn) => return Some(turn),
            Err(wait) => rest(wait.min(PIECE), stop),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;
    use hugekit_machine::Root;

    use super::*;
    use crate::options::TendOptions;
    use crate::own_memory::{OwnMemory, in_turn};
    use crate::status::PassReport;
    use crate::target::Target;

    const RANGES: u64 = 4;

    /// A machine of 16 GiB, of which no block of 2 MiB is free.
    fn host(available: u64) -> Files {
        let files = Files::new().unwrap();
        let kib = available >> 10;
        let meminfo = format!(
            "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: {kib} kB\nSwapTotal: 0 kB\n"
        );
        files.file("/proc/meminfo", meminfo);
        files.file("/proc/buddyinfo", "Node 0, zone Normal 9 9 9 9 9 9 9 9 9 0 0\n");
        files.file("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        files
    }

    /// A pass over this process, which has some memory on small pages, as on that machine. `None` if it may not be
    /// tended here.
    fn pass_on(files: &Files) -> Option<PassReport> {
        let _turn = in_turn();
        let _memory = OwnMemory::of_base_pages(RANGES as usize * HUGE_PAGE_BYTES).unwrap();
        let target = Target::beside_a_tender(std::process::id() as i32).ok()?;
        let mut tended = Tended::new(target);
        let shared = Shared::new(Root::at(files.path()), TendOptions::default(), None);
        tended.pass(&shared, &AtomicBool::new(false)).unwrap();
        tended.last
    }

    #[test]
    fn host_whose_memory_is_page_cache_is_tended_and_the_gathered_blocks_are_told() {
        let Some(report) = pass_on(&host(15 << 30)) else { return };
        assert!(report.gathering > Duration::ZERO, "the kernel was asked: {report:?}");
        // The blocks come from the machine that runs the test, which may have none.
        if !matches!(report.hindrance, Some(Hindrance::NoFreeHugePages { .. })) {
            assert_eq!(report.hindrance, None, "{report:?}");
            let refused: u64 = report.refused.iter().map(|&(_, ranges)| ranges).sum();
            assert!(report.collapsed + refused >= RANGES, "{report:?}");
            assert!(report.gathered >= report.collapsed, "{report:?}");
        }
    }

    #[test]
    fn host_with_little_available_memory_is_left_alone_and_the_figures_are_told() {
        let Some(report) = pass_on(&host(100 << 20)) else { return };
        let keep = TendOptions::default().keep_free;
        let little = Hindrance::LittleMemory { available: 100 << 20, keep };
        assert_eq!((report.hindrance, report.collapsed), (Some(little), 0), "{report:?}");
        assert_eq!(report.gathered, 0, "{report:?}");
        let text = little.to_string();
        assert!(text.contains("100 MiB are available") && text.contains("256 MiB"), "{text}");
    }
}
