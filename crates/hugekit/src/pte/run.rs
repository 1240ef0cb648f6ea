//! Runs: consecutive entries that map consecutive pages of one folio, alike in all that matters.

use super::entry::{Change, Entry};
use super::layout::{Bits, Flag, Format, Layout};

/// Entries from which on a run is worth a loop of vector instructions.
pub(super) const LONG: usize = 16;

/// Entries that a scan of [`LONG`] ones looks at without a branch between them.
pub(super) const LONG_STEP: usize = 8;

/// The same for fewer: most folios that have more than one page and less than [`LONG`] have four.
pub(super) const SHORT_STEP: usize = 4;

/// Which differences end a run. The accessed bit never does; every bit that is not named here
/// always does, uffd-wp among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Writable beside protected.
    pub respect_write: bool,
    /// Dirty beside clean.
    pub respect_dirty: bool,
    /// Soft-dirty beside not.
    pub respect_soft_dirty: bool,
}

/// A run's length, and what its entries have between them: nobody needs to take the first for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Entries; 0 if the first was no candidate.
    pub len: usize,
    /// Whether any page may be written.
    pub any_writable: bool,
    /// Whether any page is dirty.
    pub any_dirty: bool,
    /// Whether any page was accessed.
    pub any_accessed: bool,
    /// Whether any page is soft-dirty.
    pub any_soft_dirty: bool,
}

/// The run that begins at the first of `entries`, at most all of them: the caller has clamped them
/// to the end of the table, of the mapping and of the folio.
///
/// 0 if the first is not present, or special; without that there is always a run of one.
#[inline]
#[must_use]
pub fn run_length<F: Format>(entries: &[Entry<F>], policy: Policy) -> Run {
    match entries.first() {
        Some(first) if first.is_present() && !first.is_special() => {
            Likeness::new(policy).run::<LONG_STEP>(entries)
        }
        _ => Run::default(),
    }
}

/// Fills `entries` with the run that begins with `first`: its bits, frame by frame.
///
/// # Panics
/// If the last frame is larger than the format can hold; nothing is written then.
pub fn set_run<F: Format>(entries: &mut [Entry<F>], first: Entry<F>) {
    let follow = F::LAYOUT.frame.max() - first.frame();
    assert!(
        entries.len() as u64 <= follow.saturating_add(1),
        "no entry of {} holds a frame {} beyond {first:?}",
        F::LAYOUT.name,
        entries.len() - 1
    );
    let mut entries = entries;
    let mut first = first;
    while !entries.is_empty() {
        let piece = entries.len().min(until_carry(first));
        let (filled, rest) = entries.split_at_mut(piece);
        let mut bits = first.bits();
        for entry in filled {
            *entry = Entry::from_bits(bits);
            bits = bits.plus(frames::<F>(1));
        }
        if !rest.is_empty() {
            first = first.with_frame(first.frame() + piece as u64);
        }
        entries = rest;
    }
}

/// Protects every page of a run from writes; those that are dirty stay dirty.
#[inline]
pub fn write_protect_run<F: Format>(entries: &mut [Entry<F>]) {
    let change = Change::write_protect();
    for entry in entries {
        *entry = change.apply(*entry);
    }
}

/// What makes entries alike, for one policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Likeness<F: Format> {
    /// Bits that must be equal, but for the frame.
    keep: F::Bits,
}

impl<F: Format> Likeness<F> {
    #[inline]
    pub(super) fn new(policy: Policy) -> Self {
        let Layout { accessed, write, dirty, store, soft_dirty, .. } = F::LAYOUT;
        let ignored = |flag: Flag, respected| if respected { 0 } else { flag.all() };
        let Policy { respect_write, respect_dirty, respect_soft_dirty } = policy;
        let ignored = accessed.all()
            | ignored(write, respect_write)
            | ignored(dirty, respect_dirty)
            // What the hardware lets through follows from both.
            | ignored(store, respect_write && respect_dirty)
            | ignored(soft_dirty, respect_soft_dirty);
        Self { keep: F::Bits::truncated(!ignored) }
    }

    /// The run that begins at the first entry, which is present and not special. Both bits are
    /// among those that must be equal.
    #[inline]
    pub(super) fn run<const STEP: usize>(self, entries: &[Entry<F>]) -> Run {
        let mut seen = F::Bits::truncated(0);
        let (near, far) = entries.split_at(entries.len().min(until_carry(entries[0])));
        let mut len = self.scan::<STEP>(near, entries[0], &mut seen);
        if F::LAYOUT.frame.high_bits != 0 && len == near.len() && !far.is_empty() {
            len += self.scan_beyond_carry(far, entries[0], len as u64, &mut seen);
        }
        merged::<F>(len, seen)
    }

    /// Entries beyond the carry out of the frame's low piece do not follow by addition: their first
    /// is encoded anew. No folio is so large as to reach another carry.
    #[cold]
    fn scan_beyond_carry(
        self,
        entries: &[Entry<F>],
        first: Entry<F>,
        distance: u64,
        seen: &mut F::Bits,
    ) -> usize {
        let frame = first.frame() + distance;
        if frame > F::LAYOUT.frame.max() {
            return 0;
        }
        let next = first.with_frame(frame);
        self.scan::<SHORT_STEP>(&entries[..entries.len().min(until_carry(next))], next, seen)
    }

    /// How many `entries` are `first` and its successors, up to a carry. The bits of those that
    /// match are added to `seen`, the ones that tell by being absent flipped.
    #[inline]
    fn scan<const STEP: usize>(
        self,
        entries: &[Entry<F>],
        first: Entry<F>,
        seen: &mut F::Bits,
    ) -> usize {
        let expected = first.with_dirty_saved().bits() & self.keep;
        let mut scan = Scan { keep: self.keep, expected, seen: *seen, matched: 0 };
        scan.steps::<STEP>(entries);
        scan.steps::<1>(entries);
        *seen = scan.seen;
        scan.matched
    }
}

/// How far a scan has come.
struct Scan<F: Format> {
    keep: F::Bits,
    /// The next entry, but for what is ignored.
    expected: F::Bits,
    seen: F::Bits,
    matched: usize,
}

impl<F: Format> Scan<F> {
    /// Goes on by `N` entries at a time while all of them match.
    #[inline]
    fn steps<const N: usize>(&mut self, entries: &[Entry<F>]) {
        let (steps, _) = entries[self.matched..].as_chunks::<N>();
        let inverted = F::Bits::truncated(F::LAYOUT.inverted());
        for step in steps {
            let mut differing = F::Bits::truncated(0);
            let mut seen = self.seen;
            for (at, entry) in step.iter().enumerate() {
                let bits = entry.with_dirty_saved().bits();
                differing = differing | bits & self.keep ^ self.expected.plus(frames::<F>(at));
                seen = seen | bits ^ inverted;
            }
            if differing != F::Bits::truncated(0) {
                break;
            }
            self.seen = seen;
            self.matched += N;
            self.expected = self.expected.plus(frames::<F>(N));
        }
    }
}

/// What is added to an entry for the frame `count` further on.
#[inline]
fn frames<F: Format>(count: usize) -> F::Bits {
    F::Bits::truncated((count as u64) << F::LAYOUT.frame.low_shift)
}

/// Entries from this one on that follow from each other by addition, this one included.
#[inline]
fn until_carry<F: Format>(first: Entry<F>) -> usize {
    usize::try_from(F::LAYOUT.frame.until_carry(first.frame())).unwrap_or(usize::MAX)
}

#[inline]
fn merged<F: Format>(len: usize, seen: F::Bits) -> Run {
    let seen: u64 = seen.into();
    let any = |flag: Flag| seen & flag.tells != 0;
    let Layout { accessed, write, dirty, soft_dirty, .. } = F::LAYOUT;
    Run {
        len,
        any_writable: any(write),
        any_dirty: any(dirty),
        any_accessed: any(accessed),
        any_soft_dirty: any(soft_dirty),
    }
}
