//! Memory for entries: slabs of 2 MiB, each cut into slots of one size.
//!
//! ```text
//!  0        bookkeeping      high                                  index           end
//!  ├─ a page for each slab ─┼─ slabs of entries, lowest first ─▶ … ◀─ highest first ─┤
//!  └─ copied ───────────────┴─ protected ──────────┘ by a save
//! ```
//!
//! The page of a slab says what it holds and which slots are taken, so that a save needs nothing but these pages and
//! the slabs behind them, in order. Freeing a slot touches the page only. Every request changes pages, and they are
//! few: 2 MiB for 1 GiB. So a save copies them at once, into memory that is kept for that.
//!
//! **While a save runs, new entries go where a write copies nothing**: behind the last slab that it is still to read,
//! or before the one that it is at. A write in between makes its thread copy 2 MiB first: that is done only when there is
//! no other place.
//!
//! Slabs that were saved are watched until the next save: the first write to each costs a fault, and the next save reads
//! no others. What has grown behind them is watched from the next save on, as a part of its own.

mod adopt;
mod page;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use hugekit::SnapshotError;

use self::page::{FIRST_CLASS, PAGE_HEAD, SIZES};
pub use self::page::{Kind, PAGE, Page};
use super::arena::{Arena, Unsaved, Watched};
use super::image::Head;

/// Bytes of a slab: a huge page, and a granule of a snapshot.
pub const SLAB: usize = hugekit::HUGE_PAGE_BYTES;

/// There is no room for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The slabs that a save is still to read.
#[derive(Debug)]
struct Window {
    /// The first byte of the arena that it has not read.
    read: Arc<AtomicUsize>,
    /// A slab.
    end: usize,
}

/// What a save is about, at one point in time.
#[derive(Debug)]
pub struct Point {
    /// All pages.
    pub pages: Vec<u8>,
    /// Of slabs behind them, ascending, what may not be as it was at the save before.
    pub entries: Vec<Unsaved>,
    /// Why it is not known any more what has changed: all is to be saved.
    pub lost: Option<SnapshotError>,
}

/// The arena, and which parts of it are free. What is kept outside of it could be made anew from the pages.
#[derive(Debug)]
pub struct Slabs {
    pub arena: Arena,
    /// The first slab behind the pages.
    first: usize,
    count: usize,
    /// Behind the last slab that holds entries.
    high: usize,
    empty: BTreeSet<usize>,
    /// Of each size, slabs with free slots.
    partial: Vec<BTreeSet<usize>>,
    /// Bytes of slots that are taken, and of slabs of the index.
    used: usize,
    window: Option<Window>,
    /// Where the next save copies the pages to. It has been written before: the kernel has nothing to clear.
    copy: Vec<u8>,
    /// So many pages of it may have been other than empty.
    copied: usize,
    /// Slabs of entries that were saved, in parts, ascending and without gaps.
    watched: Vec<Watched>,
}

impl Slabs {
    /// All of `len` bytes, rounded up to whole slabs, for pages, entries and index.
    pub fn new(len: usize) -> Result<Self> {
        Self::of(len, Arena::new)
    }

    /// As [`new`](Self::new), for an image that may say of itself that it is larger than it is.
    pub fn unpopulated(len: usize) -> Result<Self> {
        Self::of(len, Arena::unpopulated)
    }

    fn of(len: usize, arena: impl FnOnce(usize) -> Result<Arena>) -> Result<Self> {
        let count = len.div_ceil(SLAB);
        let first = (count * PAGE).div_ceil(SLAB);
        // Two for the index, and one for entries.
        let least = (first + 3) * SLAB;
        ensure!(count * SLAB >= least, "--memory of {len} bytes is too little: {least} at least");
        let mut slabs = Self {
            copy: vec![0; first * SLAB],
            copied: 0,
            watched: Vec::new(),
            arena: arena(count * SLAB)?,
            first,
            count,
            high: first,
            empty: (first..count).collect(),
            partial: vec![BTreeSet::new(); SIZES.len()],
            used: 0,
            window: None,
        };
        slabs.write_head(0);
        Ok(slabs)
    }

    /// The first page: where the entries begin, and what this is an image of.
    fn write_head(&mut self, generation: u64) {
        self.set_word(0, 0, 4);
        self.set_word(0, 1, self.first as u32);
        let head = Head { slabs: self.count as u64, generation };
        head.write(&mut self.arena[..PAGE]);
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn memory(&self) -> usize {
        self.arena.len()
    }

    /// What a save is about: the pages, and every slab that holds entries.
    pub fn entries_len(&self) -> usize {
        self.high * SLAB
    }

    /// What is saved from now on is a new generation of images, all of it.
    pub fn begin_generation(&mut self, generation: u64) {
        self.write_head(generation);
        self.watched.clear();
    }

    /// Protects the slabs of entries that were written since they were saved, and watches all of them; copies their pages.
    /// `read` is to tell which byte of the arena the save reads next.
    pub fn protect(&mut self, read: Arc<AtomicUsize>) -> Result<Point, SnapshotError> {
        let (mut entries, lost) = match self.changed() {
            Ok(changed) => (changed, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let known = entries.last().map_or(self.first * SLAB, |part| part.part().end);
        let end = self.high.max(self.first + 1) * SLAB;
        if known < end {
            entries.push(self.arena.watch(known..end)?);
        }
        let end = entries.iter().map(Unsaved::end).max().unwrap_or(0);
        read.store(self.first * SLAB, Ordering::Release);
        self.window = Some(Window { read, end: end.div_ceil(SLAB) });
        Ok(Point { pages: self.copy_pages(), entries, lost })
    }

    fn changed(&mut self) -> Result<Vec<Unsaved>, SnapshotError> {
        let watched = std::mem::take(&mut self.watched);
        watched.into_iter().map(|part| self.arena.changed(part)).collect()
    }

    /// Slabs behind the entries are empty, or of the index, which is not saved.
    fn copy_pages(&mut self) -> Vec<u8> {
        let mut pages = std::mem::take(&mut self.copy);
        if pages.is_empty() {
            (pages, self.copied) = (vec![0; self.first * SLAB], 0);
        }
        let (before, now) = (self.copied * PAGE, self.high.max(1) * PAGE);
        pages[..now].copy_from_slice(&self.arena[..now]);
        if now < before {
            pages[now..before].fill(0);
        }
        self.copied = now / PAGE;
        pages
    }

    /// The save is over, and gives the copy of the pages back, if it still has it, and the parts that it has saved.
    pub fn unprotect(&mut self, pages: Vec<u8>, watched: Vec<Watched>) {
        self.window = None;
        self.copy = pages;
        self.watched = watched;
    }

    /// Slabs whose first write would copy them.
    fn protected(&self) -> Range<usize> {
        self.window.as_ref().map_or(0..0, |window| {
            let read = window.read.load(Ordering::Acquire) / SLAB;
            read.min(window.end)..window.end
        })
    }

    /// Whether an entry can be written without copying a slab.
    pub fn is_free_to_write(&self, offset: usize, len: usize) -> bool {
        let protected = self.protected();
        offset / SLAB >= protected.end || (offset + len).div_ceil(SLAB) <= protected.start
    }

    /// Room for an entry of `len` bytes, where it is.
    pub fn take(&mut self, len: usize) -> Result<usize, Full> {
        let offset = match class_of(len) {
            Some(class) => self.take_slot(class)?,
            None => self.take_large(len.div_ceil(SLAB))?,
        };
        self.used += self.room_at(offset);
        Ok(offset)
    }

    /// Bytes of the room that begins there.
    pub fn room_at(&self, offset: usize) -> usize {
        match self.page(offset / SLAB).kind() {
            Kind::Slots(size) => size,
            Kind::Large(slabs) => slabs as usize * SLAB,
            _ => 0,
        }
    }

    fn page(&self, slab: usize) -> Page<'_> {
        Page::of(&self.arena[..self.first * SLAB], slab)
    }

    fn take_slot(&mut self, class: usize) -> Result<usize, Full> {
        let protected = self.protected();
        let outside = |slabs: &BTreeSet<usize>| {
            let before = slabs.range(..protected.start).next();
            before.or_else(|| slabs.range(protected.end..).next()).copied()
        };
        let same = &self.partial[class];
        // Rather than none, a slot that is too large.
        let larger = &self.partial[class + 1..];
        let slab = outside(same)
            .or_else(|| outside(&self.empty))
            .or_else(|| larger.iter().find_map(outside))
            .or_else(|| same.first().copied())
            .or_else(|| self.empty.first().copied())
            .or_else(|| larger.iter().find_map(BTreeSet::first).copied())
            .ok_or(Full)?;
        if self.empty.remove(&slab) {
            self.open(slab, (FIRST_CLASS + class) as u32, 0);
            self.arena[slab * PAGE + PAGE_HEAD..(slab + 1) * PAGE].fill(0);
            self.partial[class].insert(slab);
        }
        let class = self.class_at(slab);
        let slots = SLAB / SIZES[class];
        let slot = self.take_bit(slab, slots);
        if self.count_taken(slab, 1) == slots {
            self.partial[class].remove(&slab);
        }
        Ok(slab * SLAB + slot * SIZES[class])
    }

    /// Takes the first free slot of a slab that has one.
    fn take_bit(&mut self, slab: usize, slots: usize) -> usize {
        let mut word = self.word(slab, 3) as usize;
        loop {
            let at = slab * PAGE + PAGE_HEAD + word * 8;
            let taken = self.u64_at(at);
            let slot = word * 64 + (!taken).trailing_zeros() as usize;
            if taken != u64::MAX && slot < slots {
                self.arena[at..at + 8].copy_from_slice(&(taken | 1 << (slot % 64)).to_ne_bytes());
                self.set_word(slab, 3, word as u32);
                return slot;
            }
            word += 1;
        }
    }

    /// So many slabs in a row, the lowest that are not protected, else the lowest.
    fn take_large(&mut self, slabs: usize) -> Result<usize, Full> {
        let protected = self.protected();
        let mut fallback = None;
        let (mut start, mut next) = (0, 0);
        let mut found = None;
        for &slab in &self.empty {
            if slab != next {
                start = slab;
            }
            next = slab + 1;
            if next - start >= slabs {
                let run = next - slabs..next;
                if run.end <= protected.start || run.start >= protected.end {
                    found = Some(run.start);
                    break;
                }
                fallback = fallback.or(Some(run.start));
            }
        }
        let first = found.or(fallback).ok_or(Full)?;
        for slab in first..first + slabs {
            self.empty.remove(&slab);
            let is_first = slab == first;
            self.open(slab, if is_first { 2 } else { 3 }, if is_first { slabs as u32 } else { 0 });
        }
        Ok(first * SLAB)
    }

    /// A slab for the index, from the end on. Whatever was there is there still.
    pub fn take_for_index(&mut self) -> Result<usize, Full> {
        let slab = self.empty.pop_last().ok_or(Full)?;
        self.set_word(slab, 0, 1);
        self.used += SLAB;
        Ok(slab)
    }

    fn open(&mut self, slab: usize, kind: u32, len: u32) {
        for (at, word) in [kind, len, 0, 0].into_iter().enumerate() {
            self.set_word(slab, at, word);
        }
        self.high = self.high.max(slab + 1);
    }

    /// Gives back the room that begins there. Its bytes are not touched.
    pub fn give_back(&mut self, offset: usize) {
        self.used -= self.room_at(offset);
        let slab = offset / SLAB;
        if let Kind::Large(slabs) = self.page(slab).kind() {
            return (slab..slab + slabs as usize).for_each(|slab| self.close(slab));
        }
        let class = self.class_at(slab);
        let slot = offset % SLAB / SIZES[class];
        let at = slab * PAGE + PAGE_HEAD + slot / 64 * 8;
        let taken = self.u64_at(at) & !(1 << (slot % 64));
        self.arena[at..at + 8].copy_from_slice(&taken.to_ne_bytes());
        self.set_word(slab, 3, self.word(slab, 3).min(slot as u32 / 64));
        if self.count_taken(slab, -1) == 0 {
            self.partial[class].remove(&slab);
            self.close(slab);
        } else {
            self.partial[class].insert(slab);
        }
    }

    fn close(&mut self, slab: usize) {
        self.set_word(slab, 0, 0);
        self.empty.insert(slab);
        if self.high == slab + 1 {
            while self.high > self.first && self.empty.contains(&(self.high - 1)) {
                self.high -= 1;
            }
        }
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        for slab in self.first..self.count {
            self.set_word(slab, 0, 0);
        }
        self.empty = (self.first..self.count).collect();
        self.partial.iter_mut().for_each(BTreeSet::clear);
        self.high = self.first;
        self.used = 0;
        self.watched.clear();
    }

    /// Of a slab of slots.
    fn class_at(&self, slab: usize) -> usize {
        self.word(slab, 0) as usize - FIRST_CLASS
    }

    fn count_taken(&mut self, slab: usize, more: i32) -> usize {
        let taken = self.word(slab, 2).wrapping_add_signed(more);
        self.set_word(slab, 2, taken);
        taken as usize
    }

    fn word(&self, slab: usize, at: usize) -> u32 {
        self.page(slab).word(at)
    }

    fn set_word(&mut self, slab: usize, at: usize, word: u32) {
        let at = slab * PAGE + at * 4;
        self.arena[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }

    pub fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.arena[at..at + 8].try_into().expect("eight bytes"))
    }

    pub fn set_u64(&mut self, at: usize, word: u64) {
        self.arena[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
}

/// The least size that holds so many bytes; `None` if they get slabs of their own.
fn class_of(len: usize) -> Option<usize> {
    let class = SIZES.partition_point(|&size| size < len);
    (class < SIZES.len()).then_some(class)
}

/// The room that an entry gets if there is a choice.
pub fn room_of(len: usize) -> usize {
    class_of(len).map_or(len.next_multiple_of(SLAB), |class| SIZES[class])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_has_a_bit_for_each_slot() {
        assert!(SLAB / SIZES[0] <= (PAGE - PAGE_HEAD) * 8);
        assert!(SIZES.is_sorted() && SIZES.iter().all(|size| size % 16 == 0));
        assert_eq!(SLAB / SIZES[SIZES.len() - 1], 2, "all larger ones take whole slabs");
        assert!(SIZES.windows(2).all(|two| two[1] * 4 <= two[0] * 5));
    }

    proptest! {
        /// Rooms are multiples of 16, lie behind the pages, never overlap, and the pages list them.
        #[test]
        fn rooms_are_apart(
            steps in prop::collection::vec((any::<bool>(), 1..5 * SLAB, 0..4_u32, any::<usize>()), 1..200),
        ) {
            let mut slabs = Slabs::new(24 * SLAB).unwrap();
            let mut rooms = BTreeMap::new();
            for (give_back, len, shift, which) in steps {
                let len = (len >> (5 * shift)).max(1);
                if give_back && !rooms.is_empty() {
                    let &offset = rooms.keys().nth(which % rooms.len()).unwrap();
                    slabs.give_back(offset);
                    rooms.remove(&offset);
                } else if let Ok(offset) = slabs.take(len) {
                    let room = slabs.room_at(offset);
                    prop_assert!(offset >= SLAB && offset % 16 == 0);
                    prop_assert!(room >= len);
                    let behind = offset + room;
                    prop_assert!(behind <= slabs.entries_len());
                    prop_assert!(rooms.range(offset..behind).next().is_none());
                    if let Some((&before, &room)) = rooms.range(..offset).next_back() {
                        prop_assert!(before + room <= offset);
                    }
                    rooms.insert(offset, room);
                }
                prop_assert_eq!(slabs.used, rooms.values().sum::<usize>());
            }
            let mut listed = Vec::new();
            for slab in 1..slabs.entries_len() / SLAB {
                let page = Page(&slabs.arena[slab * PAGE..(slab + 1) * PAGE]);
                listed.extend(page.taken().map(|slot| slab * SLAB + slot));
                if let Kind::Large(_) = page.kind() {
                    listed.push(slab * SLAB);
                }
            }
            prop_assert_eq!(listed, rooms.keys().copied().collect::<Vec<_>>());
            for &offset in rooms.keys() {
                slabs.give_back(offset);
            }
            prop_assert_eq!((slabs.empty.len(), slabs.entries_len()), (23, SLAB));
        }
    }
}
