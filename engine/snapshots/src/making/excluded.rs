//! Addresses that are snapshotted or about to be: no mapping of ours goes there, should the owner unmap them.

use std::ops::Range;

use rustix::io;

use hugekit_sys::apart;
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::sync::primitives::{AtomicUsize, Ordering};
use hugekit_sys::sync::{OfProcess, PerProcess, Published};
use hugekit_sys::thread::without_signals;

/// A range is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    all: &'static All,
    range: Range<usize>,
}

/// The ranges of one process, in no order. Some may overlap.
#[derive(Debug)]
struct All {
    mark: ForkMark,
    ranges: Published<Vec<Range<usize>>>,
    /// So that a process without snapshots is not kept from its work: 0 if there is none.
    count: AtomicUsize,
}

static ALL: PerProcess<All> = PerProcess::new();

impl OfProcess for All {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

impl Taken {
    pub(super) fn new(range: Range<usize>) -> io::Result<Self> {
        let all = ALL.get_or_make(|_parents| {
            apart::keep_from(each);
            let ranges = Published::new(Vec::new())?;
            Ok::<_, io::Errno>(All { mark: ForkMark::new(), ranges, count: AtomicUsize::new(0) })
        })?;
        all.count.fetch_add(1, Ordering::SeqCst);
        all.change(|ranges| ranges.push(range.clone()));
        Ok(Self { all, range })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // A forked child has none of its parent's snapshots.
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

impl All {
    fn change(&self, change: impl FnOnce(&mut Vec<Range<usize>>)) {
        // As for a registry: its reader must not wait for a maker, which waits for readers.
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
    fn range_taken_several_times_is_so_until_the_last_goes() {
        // Addresses that no mapping has.
        let range = 8..11;
        let count = || {
            let mut count = 0;
            each(&mut |taken| count += usize::from(*taken == range));
            count
        };
        let (first, second) =
            (Taken::new(range.clone()).unwrap(), Taken::new(range.clone()).unwrap());
        assert_eq!(count(), 2);
        drop(first);
        assert_eq!(count(), 1);
        drop(second);
        assert_eq!(count(), 0);
    }
}
