//! Runs: consecutive entries that map consecutive pages of one folio, alike in all that matters.

use crate::entry::{Change, Entry};
use crate::layout::{Bits, Flag, Format, Layout};

/// Entries from which on a run is worth a loop of vector instructions.
pub(crate) const LONG: usize = 16;

/// Entries that a scan of [`LONG`] ones looks at without a branch between them.
pub(crate) const LONG_STEP: usize = 8;

/// The same for fewer: most folios that have more than one page and less than [`LONG`] have four.
pub(crate) const SHORT_STEP: usize = 4;

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

/// A run's length, and what its entries have between them, so that no caller takes the first for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Entries; 0 if the first was no candidate.
    pub len: usize,
    /// True if any page may be written.
    pub any_writable: bool,
    /// True if any page is dirty.
    pub any_dirty: bool,
    /// True if any page was accessed.
    pub any_accessed: bool,
    /// True if any page is soft-dirty.
    pub any_soft_dirty: bool,
}

impl Run {
    /// The run of one present entry.
    #[inline]
    pub(crate) fn of<F: Format>(entry: Entry<F>) -> Self {
        merged(1, entry.with_dirty_saved(), F::Bits::truncated(0))
    }
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

/// The bits by which entries are alike, for one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Likeness<F: Format> {
    /// Bits that must be equal, but for the frame.
    keep: F::Bits,
}

impl<F: Format> Likeness<F> {
    #[inline]
    pub(crate) fn new(policy: Policy) -> Self {
        let Layout { accessed, write, dirty, store, soft_dirty, .. } = F::LAYOUT;
        let ignored = |flag: Flag, respected| if respected { 0 } else { flag.all() };
        let Policy { respect_write, respect_dirty, respect_soft_dirty } = policy;
        let ignored = accessed.all()
            | ignored(write, respect_write)
            | ignored(dirty, respect_dirty)
            // The accesses that the hardware lets through follow from both.
            | ignored(store, respect_write && respect_dirty)
            | ignored(soft_dirty, respect_soft_dirty);
        Self { keep: F::Bits::truncated(!ignored) }
    }

    /// Alike are entries that map pages one after the other, whatever else differs. This is enough
    /// for one who changes each entry by the same masks and counts all of them at once.
    #[inline]
    pub(crate) fn in_frames() -> Self {
        let Layout { present, special, frame, .. } = F::LAYOUT;
        Self { keep: F::Bits::truncated(present | special | frame.encode(u64::MAX)) }
    }

    /// The run that begins at the first entry, which is present and not special. Both bits are
    /// among those that must be equal.
    #[inline]
    pub(crate) fn run<const STEP: usize>(self, entries: &[Entry<F>]) -> Run {
        let first = entries[0].with_dirty_saved();
        let (near, far) = entries.split_at(entries.len().min(until_carry(first)));
        let mut scan = Scan::new(self.keep, first);
        scan.all::<STEP>(near);
        let mut len = scan.matched;
        if F::LAYOUT.frame.high_bits != 0 && len == near.len() && !far.is_empty() {
            len += scan.beyond_carry(far, first);
        }
        merged(len, first, scan.differing)
    }
}

/// The progress of a scan.
struct Scan<F: Format> {
    keep: F::Bits,
    /// The next entry, if it were like the first.
    expected: F::Bits,
    /// Bits in which entries that matched differ from the expected entry: ignored ones.
    differing: F::Bits,
    matched: usize,
}

impl<F: Format> Scan<F> {
    #[inline]
    fn new(keep: F::Bits, first: Entry<F>) -> Self {
        Self { keep, expected: first.bits(), differing: F::Bits::truncated(0), matched: 0 }
    }

    /// Scans entries up to a carry.
    #[inline]
    fn all<const STEP: usize>(&mut self, entries: &[Entry<F>]) {
        self.steps::<STEP>(entries);
        self.steps::<1>(entries);
    }

    /// Goes on by `N` entries at a time while all of them match.
    #[inline]
    fn steps<const N: usize>(&mut self, entries: &[Entry<F>]) {
        let (steps, _) = entries[self.matched..].as_chunks::<N>();
        for step in steps {
            let mut differing = self.differing;
            for (at, entry) in step.iter().enumerate() {
                let bits = entry.with_dirty_saved().bits();
                differing = differing | bits ^ self.expected.plus(frames::<F>(at));
            }
            if differing & self.keep != F::Bits::truncated(0) {
                break;
            }
            self.differing = differing;
            self.matched += N;
            self.expected = self.expected.plus(frames::<F>(N));
        }
    }

    /// Goes on where entries no longer follow by addition: beyond the carry out of the frame's low
    /// piece, the first is encoded anew. No folio is so large as to reach another carry. Returns how
    /// many matched there.
    #[cold]
    fn beyond_carry(&mut self, entries: &[Entry<F>], first: Entry<F>) -> usize {
        let frame = first.frame() + self.matched as u64;
        if frame > F::LAYOUT.frame.max() {
            return 0;
        }
        let next = first.with_frame(frame);
        let mut scan = Self { differing: self.differing, ..Self::new(self.keep, next) };
        scan.all::<SHORT_STEP>(&entries[..entries.len().min(until_carry(next))]);
        self.differing = scan.differing;
        scan.matched
    }
}

/// The number that is added to an entry for the frame `count` further on.
#[inline]
fn frames<F: Format>(count: usize) -> F::Bits {
    F::Bits::truncated((count as u64) << F::LAYOUT.frame.low_shift)
}

/// Entries from this one on that follow from each other by addition, this one included.
#[inline]
fn until_carry<F: Format>(first: Entry<F>) -> usize {
    usize::try_from(F::LAYOUT.frame.until_carry(first.frame())).unwrap_or(usize::MAX)
}

/// The bits that the entries of a run have between them: those of the first, and those in which others differ.
/// Bits that tell by being absent are flipped for this.
#[inline]
fn merged<F: Format>(len: usize, first: Entry<F>, differing: F::Bits) -> Run {
    let first: u64 = first.bits().into();
    let seen = first ^ F::LAYOUT.inverted() | differing.into();
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
