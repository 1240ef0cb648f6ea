//! Addresses that have a snapshot or are about to get one. hugekit maps nothing at these addresses,
//! even if the owner unmaps them.

use std::ops::Range;

use rustix::io;

use hugekit_sys::apart;
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::sync::primitives::{AtomicUsize, Ordering};
use hugekit_sys::sync::{OfProcess, PerProcess, Published};
use hugekit_sys::thread::without_signals;

/// A range of addresses where hugekit maps nothing until this value is dropped.
#[derive(Debug)]
pub(crate) struct ExcludedRange {
    all: &'static ExcludedRanges,
    range: Range<usize>,
}

/// The ranges of a process, in no order. Some may overlap.
#[derive(Debug)]
struct ExcludedRanges {
    mark: ForkMark,
    ranges: Published<Vec<Range<usize>>>,
    /// The number of ranges. If it is 0, a new mapping need not be compared with the ranges.
    count: AtomicUsize,
}

static ALL: PerProcess<ExcludedRanges> = PerProcess::new();

impl OfProcess for ExcludedRanges {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

impl ExcludedRange {
    pub(super) fn new(range: Range<usize>) -> io::Result<Self> {
        let all = ALL.get_or_make(|_parents| {
            apart::keep_from(each);
            let ranges = Published::new(Vec::new())?;
            Ok::<_, io::Errno>(ExcludedRanges {
                mark: ForkMark::new(),
                ranges,
                count: AtomicUsize::new(0),
            })
        })?;
        all.count.fetch_add(1, Ordering::SeqCst);
        all.change(|ranges| ranges.push(range.clone()));
        Ok(Self { all, range })
    }
}

impl Drop for ExcludedRange {
    fn drop(&mut self) {
        // A forked child does not have its parent's snapshots.
        if !self.all.mark.is_ours() {
            return;
        }
        self.all.change(|ranges| {
            let own = ranges.iter().position(|range| *range == self.range);
            ranges.swap_remove(own.expect("there until now"));
        });
        self.all.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ExcludedRanges {
    fn change(&self, change: impl FnOnce(&mut Vec<Range<usize>>)) {
        // Signals are blocked as for a registry: a reader must not wait for a maker, which waits for readers.
        without_signals(|blocked| {
            self.ranges.replace(blocked, |ranges| {
                let mut ranges = ranges.clone();
                change(&mut ranges);
                ranges
            });
        });
    }
}

fn each(look: &mut dyn FnMut(&Range<usize>)) {
    let all = ALL.last().filter(|all| all.mark.is_ours());
    let Some(all) = all.filter(|all| all.count.load(Ordering::SeqCst) > 0) else { return };
    without_signals(|blocked| all.ranges.read(blocked, |ranges| ranges.iter().for_each(look)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_excluded_several_times_is_so_until_the_last_goes() {
        // Addresses that no mapping has.
        let range = 8..11;
        let count = || {
            let mut count = 0;
            each(&mut |excluded| count += usize::from(*excluded == range));
            count
        };
        let (first, second) = (
            ExcludedRange::new(range.clone()).unwrap(),
            ExcludedRange::new(range.clone()).unwrap(),
        );
        assert_eq!(count(), 2);
        drop(first);
        assert_eq!(count(), 1);
        drop(second);
        assert_eq!(count(), 0);
    }
}
