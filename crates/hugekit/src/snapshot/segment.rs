//! What the snapshots of one process protect, cut into ranges with the same snapshots each.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::image::{By, Failure, Image, Phase};
use super::line::{Line, Refused};
use crate::HUGE_PAGE_BYTES;
use crate::fault::{Access, Faults};
use crate::populate::PopulateError;

/// Protection is lifted this far around a write that no snapshot has to do with: a huge page stays
/// whole.
const BLOCK_BYTES: usize = HUGE_PAGE_BYTES;

/// Addresses that these snapshots have in common, and no others.
#[derive(Debug)]
pub(super) struct Segment {
    addresses: Range<usize>,
    images: Vec<Arc<Image>>,
    line: Arc<Line>,
}

/// Why a write cannot pass now.
#[derive(Debug)]
pub(super) enum Hindrance {
    /// Memory is being protected at this moment: to be tried again.
    Arming,
    /// The kernel lets it pass by no means that there is.
    Refused,
}

impl Segment {
    /// The segments of all these images, ascending.
    pub(super) fn of(images: &[Arc<Image>], line: &Arc<Line>) -> Vec<Self> {
        // Where nothing is protected, there is nothing to cut: the ends of that may lie within a page.
        let protected = images.iter().map(|image| image.inner()).filter(|inner| !inner.is_empty());
        let mut bounds: Vec<usize> = protected.flat_map(|inner| [inner.start, inner.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let between = bounds.windows(2).map(|pair| pair[0]..pair[1]);
        let segment = |addresses: Range<usize>| {
            let holds = |image: &&Arc<Image>| image.inner().contains(&addresses.start);
            let images = images.iter().filter(holds).cloned().collect();
            Self { addresses, images, line: Arc::clone(line) }
        };
        between.map(segment).filter(|segment| !segment.images.is_empty()).collect()
    }

    pub(super) fn addresses(&self) -> &Range<usize> {
        &self.addresses
    }

    /// Whether no other image is here.
    pub(super) fn is_only(&self, image: &Arc<Image>) -> bool {
        self.images.iter().all(|other| Arc::ptr_eq(other, image))
    }

    /// Has the granules of a write put aside and lets it pass. Async-signal-safe.
    pub(super) fn let_write(&self, address: usize) -> Result<(), Hindrance> {
        let began = Instant::now();
        let block = address - address % BLOCK_BYTES;
        let mut free = clip(&(block..block + BLOCK_BYTES), &self.addresses);
        if self.line.holds(&free) {
            return Err(Hindrance::Arming);
        }
        for image in &self.images {
            match image.phase() {
                Phase::Forming | Phase::Ended => {}
                Phase::Arming => return Err(Hindrance::Arming),
                Phase::Live => {
                    let (index, granule) = image.granule_at(address);
                    image.put_aside(index, By::Writer(address));
                    free = clip(&free, &granule);
                }
            }
        }
        self.lift(&free)?;
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.images.iter().for_each(|image| image.count_fault(nanos));
        Ok(())
    }

    /// Lifts the protection of those granules in `range`, which lies within, that no snapshot needs any more.
    /// Async-signal-safe.
    pub(super) fn lift_unneeded(&self, range: &Range<usize>) -> Result<(), Hindrance> {
        let is_arming = |image: &Arc<Image>| image.phase() == Phase::Arming;
        if self.images.iter().any(is_arming) || self.line.holds(range) {
            return Err(Hindrance::Arming);
        }
        let live = || self.images.iter().filter(|image| image.phase() == Phase::Live);
        let Some(step) = live().map(|image| image.granule_bytes()).min() else {
            return self.lift(range);
        };
        let is_free = |address: usize| !live().any(|image| image.needs(address));
        let mut next = range.start;
        while next < range.end {
            let until = |next: usize| (next - next % step + step).min(range.end);
            let first = next;
            while next < range.end && is_free(next) {
                next = until(next);
            }
            if first < next {
                self.lift(&(first..next))?;
            } else {
                next = until(next);
            }
        }
        Ok(())
    }

    /// Lets writes pass; where the kernel refuses that, everywhere, and the snapshots are lost.
    fn lift(&self, range: &Range<usize>) -> Result<(), Hindrance> {
        let lose = |Refused| {
            self.fail(Failure::Refused);
            self.line.abandon()
        };
        self.line.lift(range).or_else(lose).map_err(|Refused| Hindrance::Refused)
    }

    fn fail(&self, failure: Failure) {
        self.images.iter().for_each(|image| {
            image.fail(failure);
        });
    }
}

impl Faults for Segment {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.line.descriptor()
    }

    fn serve(&self, address: usize, _write: Access) -> Result<(), PopulateError> {
        match self.let_write(address) {
            Ok(()) => Ok(()),
            // The access is tried again, and faults again: no reader may wait for a maker, which waits for readers.
            Err(Hindrance::Arming) => {
                rustix::thread::sched_yield();
                Ok(())
            }
            Err(Hindrance::Refused) => Err(PopulateError::Kernel(ErrorKind::PermissionDenied)),
        }
    }

    fn leave(&self, address: usize) -> rustix::io::Result<()> {
        self.line.wake(address).map_err(|_| rustix::io::Errno::PERM)
    }

    /// Lets all writes pass, and the snapshots are lost.
    fn give_up(&self) -> rustix::io::Result<()> {
        self.fail(Failure::Unserved);
        let left = self.line.unregister(&self.addresses);
        let _ = left.or_else(|Refused| self.line.abandon());
        Ok(())
    }

    /// A reader meets that by itself.
    fn break_(&self, _: usize) {}
}

fn clip(range: &Range<usize>, to: &Range<usize>) -> Range<usize> {
    range.start.max(to.start)..range.end.min(to.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::open::{self, Of};

    #[test]
    fn segments_have_the_same_images_throughout() {
        let Ok(descriptor) = open::for_handling_in_place(Of::PrivateWrites) else { return };
        let Ok(line) = Line::new(descriptor) else { return };
        let line = Arc::new(line);
        let image = |range: Range<usize>| {
            Arc::new(Image::new(range, 4096, 0, None, Arc::clone(&line)).unwrap())
        };
        let page = |range: Range<usize>| range.start * 4096..range.end * 4096;
        // Of the last one nothing is protected, wherever it ends.
        let within_a_page = 12 * 4096 + 1..12 * 4096 + 9;
        let images = [
            image(page(10..20)),
            image(page(15..30)),
            image(page(40..50)),
            image(page(15..20)),
            image(within_a_page),
        ];
        let found: Vec<_> = Segment::of(&images, &line)
            .iter()
            .map(|segment| (segment.addresses().clone(), segment.images.len()))
            .collect();
        let expected = [(page(10..15), 1), (page(15..20), 3), (page(20..30), 1), (page(40..50), 1)];
        assert_eq!(found, expected);
        assert!(Segment::of(&[], &line).is_empty());
    }
}
