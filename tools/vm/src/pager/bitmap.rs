//! One bit for each page or block, in words that several threads share, and successive processes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the number of words for this many bits.
pub(crate) fn words_of(bits: u64) -> usize {
    bits.div_ceil(64) as usize
}

/// Bits in borrowed words. Bits are only ever set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bitmap<'a>(pub(crate) &'a [AtomicU64]);

impl Bitmap<'_> {
    pub(crate) fn has(self, bit: u64) -> bool {
        let word = &self.0[(bit / 64) as usize];
        word.load(Ordering::Acquire) >> (bit % 64) & 1 == 1
    }

    /// Sets a bit. Returns true if it was not set.
    pub(crate) fn set(self, bit: u64) -> bool {
        let mask = 1 << (bit % 64);
        self.0[(bit / 64) as usize].fetch_or(mask, Ordering::AcqRel) & mask == 0
    }

    pub(crate) fn set_all(self, bits: Range<u64>) {
        bits.for_each(|bit| {
            self.set(bit);
        });
    }

    pub(crate) fn has_all(self, mut bits: Range<u64>) -> bool {
        bits.all(|bit| self.has(bit))
    }

    pub(crate) fn has_any(self, mut bits: Range<u64>) -> bool {
        bits.any(|bit| self.has(bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_once_and_stay() {
        let words: Vec<AtomicU64> = (0..words_of(130)).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(words.len(), 3);
        let bits = Bitmap(&words);
        assert!(bits.set(64) && !bits.set(64) && bits.has(64) && !bits.has(63));
        bits.set_all(126..130);
        assert!(bits.has_any(100..127) && !bits.has_any(100..126) && bits.has(129));
    }
}
