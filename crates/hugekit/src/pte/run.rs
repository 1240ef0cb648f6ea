//! Runs: consecutive entries that map consecutive pages of one folio, alike in all that matters.

use super::entry::{Change, Entry};
use super::layout::{Bits, Flag, Format, Layout};

/// Entries looked at per step of a scan: a cache line of 64-bit ones.
const STEP: usize = 8;

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
            Likeness::new(policy).run(entries)
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
    pub(super) fn run(self, entries: &[Entry<F>]) -> Run {
        let mut seen = F::Bits::truncated(0);
        let mut len = 0;
        let mut first = entries[0];
        loop {
            let piece = (entries.len() - len).min(until_carry(first));
            let matched = self.scan(&entries[len..len + piece], first, &mut seen);
            len += matched;
            let frame = first.frame() + matched as u64;
            if matched < piece || len == entries.len() || frame > F::LAYOUT.frame.max() {
                return merged::<F>(len, seen);
            }
            first = first.with_frame(frame);
        }
    }

    /// How many `entries` are `first` and its successors, up to a carry. The bits of those that
    /// match are added to `seen`, the ones that tell by being absent flipped.
    #[inline]
    fn scan(self, entries: &[Entry<F>], first: Entry<F>, seen: &mut F::Bits) -> usize {
        let inverted = F::Bits::truncated(F::LAYOUT.inverted());
        let mut expected = first.with_dirty_saved().bits() & self.keep;
        let mut matched = 0;
        let (steps, _) = entries.as_chunks::<STEP>();
        for step in steps {
            let mut differing = F::Bits::truncated(0);
            let mut any = F::Bits::truncated(0);
            for (at, entry) in step.iter().enumerate() {
                let bits = entry.with_dirty_saved().bits();
                differing = differing | bits & self.keep ^ expected.plus(frames::<F>(at));
                any = any | bits ^ inverted;
            }
            if differing != F::Bits::truncated(0) {
                break;
            }
            *seen = *seen | any;
            matched += STEP;
            expected = expected.plus(frames::<F>(STEP));
        }
        for entry in &entries[matched..] {
            let bits = entry.with_dirty_saved().bits();
            if bits & self.keep != expected {
                break;
            }
            *seen = *seen | bits ^ inverted;
            matched += 1;
            expected = expected.plus(frames::<F>(1));
        }
        matched
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
