//! Collapse of supplied memory into huge pages.

use std::ops::Range;
use std::time::Duration;

use hugekit_sys::HUGE_PAGE_BYTES;
use rustix::io::Errno;

use super::demand::Server;
use super::{ServedVm, Stop, pages_of};
use crate::vmm::base_page;

const HUGE: u64 = HUGE_PAGE_BYTES as u64;

/// The highest number of attempts for a range that the guest was using, and the pause between
/// attempts.
const ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The longest wait for the end of a process whose memory is gone.
const ENDING: Duration = Duration::from_secs(1);

/// The part of a VM's memory that was put on huge pages.
#[derive(Default)]
pub(super) struct Collapsed {
    pub(super) bytes: u64,
    /// The bytes that the kernel did not collapse, and its last answer: no huge page is free, this
    /// process may not, or the kernel has no such call.
    pub(super) refused: Option<(u64, Errno)>,
}

impl Server<'_> {
    /// Collapses each aligned 2 MiB of which at least half is data and nothing was released.
    pub(super) fn collapse(&mut self) -> Result<Collapsed, Stop> {
        let (mut left, mut collapsed) = (self.vm.to_collapse(), Collapsed::default());
        for _ in 0..ROUNDS {
            let mut again = Vec::new();
            for start in left {
                self.vm.wait(self.stop, Some(Duration::ZERO))?;
                self.read_messages()?;
                match self.vm.process.collapse(start) {
                    Ok(()) => collapsed.bytes += HUGE,
                    Err(Errno::AGAIN) => again.push(start),
                    // It stays as it is.
                    Err(errno) => {
                        let bytes = collapsed.refused.map_or(0, |(bytes, _)| bytes);
                        collapsed.refused = Some((bytes + HUGE, errno));
                    }
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
            self.vm.wait(self.stop, Some(PAUSE))?;
        }
        Ok(collapsed)
    }
}

impl ServedVm {
    fn to_collapse(&self) -> Vec<u64> {
        if self.layout.is_hugetlb() || !HUGE.is_multiple_of(base_page()) {
            return Vec::new();
        }
        let aligned = self.layout.regions().iter().flat_map(|region| {
            let Range { start, end } = region.addresses();
            (start.next_multiple_of(HUGE)..end)
                .step_by(HUGE as usize)
                .filter(move |at| at + HUGE <= end)
        });
        aligned.filter(|&start| self.is_worth_it(start)).collect()
    }

    fn is_worth_it(&self, start: u64) -> bool {
        let Some(offset) = self.layout.offset_of(start) else { return false };
        let pages = pages_of(offset..offset + HUGE);
        let data = pages.clone().filter(|&page| self.data().has(page)).count() as u64;
        data * base_page() >= HUGE / 2 && !self.state.removed().has_any(pages)
    }

    /// Unregisters all regions, and wakes waiting threads.
    pub(super) fn leave(&self) -> Result<(), Stop> {
        for region in self.layout.regions() {
            match self.faults.unregister(&region.addresses()) {
                Ok(()) => {}
                // Its memory is gone, and soon it is.
                Err(_) if self.process.await_end(ENDING) => return Err(Stop::Ended),
                Err(errno) => {
                    let why =
                        super::VmError::Kernel { address: region.start, source: errno.into() };
                    return Err(Stop::Failed(why));
                }
            }
        }
        Ok(())
    }
}
