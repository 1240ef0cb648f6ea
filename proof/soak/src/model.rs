//! The content that memory must have, word by word.
//!
//! Memory is cut into *cells* of 64 words. A word that was written holds the *tag* of the write and its own
//! index; one that was not holds 0. So a word says by itself whether it belongs where it is read, and a model
//! needs one tag for each cell. The last word of each page is the signal handler's ([`crate::exposed`]).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::exposed::Exposed;

pub const PAGE_BYTES: usize = 4096;
pub const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// The index of the handler's word in its page.
pub const LANE: usize = PAGE_WORDS - 1;

pub const CELL_WORDS: usize = 64;
pub const CELL_BYTES: usize = 8 * CELL_WORDS;

const INDEX_BITS: u32 = 24;

/// The value that a write with a tag leaves in a word.
#[must_use]
pub fn value(tag: u64, index: usize) -> u64 {
    if tag == 0 { 0 } else { tag << INDEX_BITS | index as u64 }
}

/// The tag of the write that left this in a word.
#[must_use]
pub fn tag_of(value: u64) -> u64 {
    value >> INDEX_BITS
}

/// Returns true if a write of its owner, or no write at all, can have left this value in a word.
#[must_use]
pub fn is_plausible(value: u64, index: usize) -> bool {
    value == 0 || tag_of(value) != 0 && value & ((1 << INDEX_BITS) - 1) == index as u64
}

#[must_use]
pub fn is_lane(index: usize) -> bool {
    index % PAGE_WORDS == LANE
}

/// The bounds of what a lane held when the memory began to be exposed under its present counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub least: i64,
    pub most: i64,
}

/// The content of memory at one moment.
#[derive(Clone, Debug)]
pub struct Model {
    pub tags: Vec<u64>,
    pub lanes: Vec<Bounds>,
}

impl Model {
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self {
            tags: vec![0; bytes / CELL_BYTES],
            lanes: vec![Bounds::default(); bytes / PAGE_BYTES],
        }
    }

    /// Checks bytes that lie at an offset of the memory, whole words of them; returns how many.
    ///
    /// # Panics
    /// If a word does not have its expected value.
    pub fn check(&self, offset: usize, bytes: &[u8], what: &str) -> usize {
        let _paused = crate::step::Paused::new();
        for (index, word) in words_of(offset, bytes) {
            if is_lane(index) {
                self.check_lane(index / PAGE_WORDS, word as i64, what);
            } else {
                let expected = value(self.tags[index / CELL_WORDS], index);
                assert!(
                    word == expected,
                    "{what}: word {index} is {word:#x} instead of {expected:#x}"
                );
            }
        }
        bytes.len()
    }

    fn check_lane(&self, page: usize, lane: i64, what: &str) {
        let Bounds { least, most } = self.lanes[page];
        assert!(
            (least.max(0)..=most).contains(&lane),
            "{what}: handlers left {lane} in page {page} instead of {least} to {most}"
        );
    }
}

/// The whole words among bytes that lie at an offset, with their indices.
pub fn words_of(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    let skipped = offset.next_multiple_of(8) - offset;
    let words = bytes.get(skipped..).unwrap_or_default().as_chunks::<8>().0;
    let first = offset.div_ceil(8);
    words.iter().enumerate().map(move |(at, word)| (first + at, u64::from_ne_bytes(*word)))
}

/// Memory and its expected content. Other threads' handlers touch it while it is exposed.
#[derive(Debug)]
pub struct Tracked {
    start: *mut AtomicU64,
    pub model: Model,
    exposed: Option<Exposed>,
}

// SAFETY: all accesses are atomic.
unsafe impl Send for Tracked {}

impl Tracked {
    /// # Safety
    /// As many bytes as the model has may be read and written until this is dropped or forgets them.
    #[must_use]
    pub unsafe fn new(start: *mut u8, model: Model) -> Self {
        let mut tracked = Self { start: start.cast(), model, exposed: None };
        tracked.expose();
        tracked
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.model.lanes.len() * PAGE_BYTES
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` was promised that these bytes may be accessed.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes() / 8) }
    }

    /// Lets handlers touch it.
    pub fn expose(&mut self) {
        // SAFETY: `new` was promised that these bytes may be accessed, and `conceal` is called before the memory goes.
        self.exposed = unsafe { Exposed::new(self.start, self.model.lanes.len()) };
    }

    /// Has no handler touch it any more.
    pub fn conceal(&mut self) {
        let Some(exposed) = self.exposed.take() else { return };
        exposed.withdraw();
        for (page, lane) in self.model.lanes.iter_mut().enumerate() {
            lane.least += exposed.done(page);
            lane.most += exposed.begun(page);
        }
    }

    fn done(&self, page: usize) -> i64 {
        self.exposed.as_ref().map_or(0, |exposed| exposed.done(page))
    }

    fn begun(&self, page: usize) -> i64 {
        self.exposed.as_ref().map_or(0, |exposed| exposed.begun(page))
    }

    /// The least that each lane holds from now on.
    #[must_use]
    pub fn least(&self) -> Vec<i64> {
        let lanes = self.model.lanes.iter().enumerate();
        lanes.map(|(page, lane)| lane.least + self.done(page)).collect()
    }

    /// The content of a copy of it that was made between the call of [`least`](Self::least) and now.
    #[must_use]
    pub fn moment(&self, least: &[i64]) -> Model {
        let lanes = self.model.lanes.iter().zip(least).enumerate();
        let bounds = |(page, (lane, &least)): (usize, (&Bounds, &i64))| Bounds {
            least,
            most: lane.most + self.begun(page),
        };
        Model { tags: self.model.tags.clone(), lanes: lanes.map(bounds).collect() }
    }

    /// Writes whole cells.
    pub fn write(&mut self, cells: std::ops::Range<usize>, tag: u64) {
        self.model.tags[cells.clone()].fill(tag);
        let _paused = crate::step::Paused::new();
        for index in cells.start * CELL_WORDS..cells.end * CELL_WORDS {
            if !is_lane(index) {
                self.words()[index].store(value(tag, index), Ordering::Relaxed);
            }
        }
    }

    /// Has pages read as zeroes by `release`, while handlers go on.
    pub fn release(&mut self, pages: std::ops::Range<usize>, release: impl FnOnce()) {
        let done: Vec<i64> = pages.clone().map(|page| self.done(page)).collect();
        release();
        for (page, done) in pages.clone().zip(done) {
            // An increment in between was lost or not.
            self.model.lanes[page] = Bounds { least: -self.begun(page), most: -done };
        }
        let cells = PAGE_BYTES / CELL_BYTES;
        self.model.tags[pages.start * cells..pages.end * cells].fill(0);
    }

    /// Forgets what lies behind the first bytes, which are whole pages, after `cut` has taken it away.
    pub fn truncate(&mut self, bytes: usize, cut: impl FnOnce()) {
        self.conceal();
        cut();
        self.model.tags.truncate(bytes / CELL_BYTES);
        self.model.lanes.truncate(bytes / PAGE_BYTES);
        self.expose();
    }

    /// Checks every byte; returns how many.
    ///
    /// # Panics
    /// If a word does not have its expected value.
    pub fn check(&self, what: &str) -> usize {
        let _paused = crate::step::Paused::new();
        for (index, word) in self.words().iter().enumerate() {
            if is_lane(index) {
                let page = index / PAGE_WORDS;
                let (bounds, done) = (self.model.lanes[page], self.done(page));
                let lane = word.load(Ordering::SeqCst) as i64;
                let (least, most) = (bounds.least + done, bounds.most + self.begun(page));
                assert!(
                    (least..=most).contains(&lane),
                    "{what}: handlers left {lane} in page {page} instead of {least} to {most}"
                );
            } else {
                let expected = value(self.model.tags[index / CELL_WORDS], index);
                let word = word.load(Ordering::Relaxed);
                assert!(
                    word == expected,
                    "{what}: word {index} is {word:#x} instead of {expected:#x}"
                );
            }
        }
        self.bytes()
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.conceal();
    }
}

/// The stores of a writer in a known order, so that a copy of the memory shows if it is of one moment.
///
/// The writer goes over its cells again and again, in steps that are coprime to their number, and writes each
/// word of a cell in ascending order; the tag is the number of the step.
#[derive(Debug)]
pub struct Sequence {
    cells: std::ops::Range<usize>,
    step: usize,
}

impl Sequence {
    #[must_use]
    pub fn new(cells: std::ops::Range<usize>) -> Self {
        let len = cells.len();
        let is_coprime = |step: usize| {
            let (mut one, mut other) = (step, len);
            while other > 0 {
                (one, other) = (other, one % other);
            }
            one == 1
        };
        // About the golden ratio of them: neighbours in time lie far apart.
        let step = (len * 5 / 8 + 1..).find(|&step| is_coprime(step)).unwrap_or(1);
        Self { cells, step }
    }

    /// Makes one step, the first of which is 1.
    pub fn write(&self, words: &[AtomicU64], number: u64) {
        let cell =
            self.cells.start + (number as usize % self.cells.len() * self.step) % self.cells.len();
        let first = cell * CELL_WORDS;
        for (index, word) in (first..).zip(&words[first..first + CELL_WORDS]) {
            if !is_lane(index) {
                // Released, because copies are promised the order of stores and nothing else.
                word.store(value(number, index), Ordering::Release);
            }
        }
    }

    /// The last step that was made in memory whose cells were all written.
    #[must_use]
    pub fn last(&self, words: &[AtomicU64]) -> u64 {
        let first_words = self.cells.clone().map(|cell| &words[cell * CELL_WORDS]);
        first_words.map(|word| tag_of(word.load(Ordering::Relaxed))).max().unwrap_or(0)
    }

    /// Steps after which every cell was written.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Checks that bytes at an offset are of one moment, once every cell had been written; returns how many
    /// bytes that were.
    ///
    /// # Panics
    /// If they are not: if a store is seen and one before it is not.
    pub fn check(&self, offset: usize, bytes: &[u8], what: &str) -> usize {
        let _paused = crate::step::Paused::new();
        let (mut last, mut first_missing) = ((0, 0), (u64::MAX, 0));
        let own = self.cells.start * CELL_WORDS..self.cells.end * CELL_WORDS;
        let mut checked = 0;
        for (index, word) in words_of(offset, bytes).filter(|(index, _)| own.contains(index)) {
            checked += 8;
            if is_lane(index) {
                continue;
            }
            let tag = tag_of(word);
            assert!(
                tag > 0 && word == value(tag, index),
                "{what}: word {index} is {word:#x}, which its writer never wrote"
            );
            last = last.max((tag, index));
            first_missing = first_missing.min((tag + self.round(), index));
        }
        assert!(
            last < first_missing,
            "{what}: not of one moment: step {} at word {} is there, and step {} at word {} is not",
            last.0,
            last.1,
            first_missing.0,
            first_missing.1
        );
        checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn what_is_of_one_moment_is_told_from_what_is_not() {
        let words: Vec<AtomicU64> = (0..4 * PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let sequence = Sequence::new(0..4 * PAGE_WORDS / CELL_WORDS);
        (1..=100).for_each(|number| sequence.write(&words, number));
        let before = bytes(&words);
        assert_eq!(sequence.check(0, &before, "all"), before.len());
        sequence.check(5, &before[5..9000], "a part");
        (101..=103).for_each(|number| sequence.write(&words, number));
        let after = bytes(&words);
        sequence.check(0, &after, "all");
        let mixed: Vec<Vec<u8>> = [PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES]
            .map(|cut| [&after[..cut], &before[cut..]].concat())
            .into();
        let is_wrong = |mixed: &Vec<u8>| {
            *mixed != before
                && *mixed != after
                && std::panic::catch_unwind(|| sequence.check(0, mixed, "mixed")).is_err()
        };
        assert!(mixed.iter().any(is_wrong));
    }

    #[test]
    fn words_say_where_they_belong() {
        assert!(is_plausible(value(7, 9), 9) && is_plausible(0, 9));
        assert!(!is_plausible(value(7, 9), 8) && !is_plausible(0xd1d1_d1d1_d1d1_d1d1, 9));
        let words: Vec<_> = words_of(3, &[0; 30]).map(|(index, _)| index).collect();
        assert_eq!(words, [1, 2, 3]);
    }
}
