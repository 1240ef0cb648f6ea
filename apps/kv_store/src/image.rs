//! The arena as a state that deltas lead from and to: its pages and slabs as they are, at their offsets.
//!
//! Neither addresses nor the seed of hashes are in it: entries are found by the pages of their slabs, and the index, which
//! needs both, is made anew. Slabs without entries count as unchanged, whatever is in them.
//!
//! ```text
//! first page    u32 4, u32 slabs of pages, head
//! head          8 bytes of magic, u32 version, u32 order of bytes, u64 slabs, u64 generation
//! ```
//!
//! Numbers are those of the machine. `slabs/` describes the other pages, `store.rs` an entry.

use std::fs::File;
use std::io;

use hugekit_delta::SavingChanges;

use super::slabs::{Page, SLAB};

const MAGIC: &[u8; 8] = b"HKVIMAGE";
const VERSION: u32 = 1;
/// Reads as another number on a machine that orders bytes the other way.
const ORDER: u32 = 0x0102_0304;

/// Zeroes that are given together.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Why bytes are no image that can be served. The places are slabs, of 2 MiB, from the image's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error("it is no image of a store: its first page does not begin as one")]
    NoImage,
    #[error("it is an image of version {found}, and this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("a machine with another order of bytes has written it")]
    Order,
    #[error("its first page says {said} slabs, and it has {slabs}")]
    Length { said: u64, slabs: u64 },
    #[error("slab {slab}: {what}")]
    Slab { slab: usize, what: &'static str },
    #[error("the entry at byte {offset} reaches beyond its slot")]
    Entry { offset: usize },
    #[error("the key of the entry at byte {offset} is there twice")]
    Twice { offset: usize },
    #[error("no room for the index of more than {entries} entries")]
    Full { entries: usize },
}

/// What an image says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub slabs: u64,
    /// Two full images never have the same, even if their entries are.
    pub generation: u64,
}

impl Head {
    /// Behind the kind of the first slab.
    const AT: usize = 16;
    const BYTES: usize = 32;

    /// Writes it into the first page.
    pub fn write(self, page: &mut [u8]) {
        let bytes = &mut page[Self::AT..];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&ORDER.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.slabs.to_ne_bytes());
        bytes[24..Self::BYTES].copy_from_slice(&self.generation.to_ne_bytes());
    }

    /// Reads it from the first page.
    pub fn read(page: &[u8]) -> Result<Self, ImageError> {
        let bytes = page.get(Self::AT..Self::AT + Self::BYTES).ok_or(ImageError::NoImage)?;
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if &bytes[..8] != MAGIC {
            return Err(ImageError::NoImage);
        }
        match (word(12), word(8)) {
            (ORDER, VERSION) => Ok(Self { slabs: long(16), generation: long(24) }),
            (ORDER, found) => Err(ImageError::Version { found }),
            _ => Err(ImageError::Order),
        }
    }
}

/// Gives a chain the bytes of one state, of slabs that have entries alone. Of a full one, the others are zeroes.
#[derive(Debug)]
pub struct Taker<'a> {
    saving: SavingChanges<'a, &'a File>,
    pages: &'a [u8],
    /// Bytes that are zeroes as far as they are not given; of a delta, none.
    filled: Option<u64>,
}

impl<'a> Taker<'a> {
    /// Gives the pages, which are of the same moment as the slabs that follow.
    pub fn new(
        saving: SavingChanges<'a, &'a File>,
        is_full: bool,
        pages: &'a [u8],
    ) -> io::Result<Self> {
        let mut taker = Self { saving, pages, filled: is_full.then_some(0) };
        taker.give(0, pages)?;
        Ok(taker)
    }

    /// Takes bytes of slabs, in order.
    pub fn put(&mut self, mut offset: usize, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(SLAB - offset % SLAB));
            if Page::of(self.pages, offset / SLAB).has_entries() {
                self.give(offset as u64, part)?;
            }
            (offset, bytes) = (offset + part.len(), rest);
        }
        Ok(())
    }

    /// All bytes of a state of that length were given.
    pub fn finish(mut self, length: u64) -> io::Result<SavingChanges<'a, &'a File>> {
        self.fill(length)?;
        Ok(self.saving)
    }

    fn give(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.fill(offset)?;
        self.filled = self.filled.map(|_| offset + bytes.len() as u64);
        self.saving.put(offset, bytes)
    }

    fn fill(&mut self, until: u64) -> io::Result<()> {
        let Some(mut from) = self.filled else { return Ok(()) };
        while from < until {
            let len = ZEROES.len().min((until - from) as usize);
            self.saving.put(from, &ZEROES[..len])?;
            from += len as u64;
        }
        self.filled = Some(from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hugekit_delta::{Chain, apply};

    use super::super::slabs::PAGE;
    use super::*;

    #[test]
    fn head_of_another_program_version_or_machine_is_refused() {
        let head = Head { slabs: 7, generation: 9 };
        let mut page = [0; PAGE];
        assert_eq!(Head::read(&page), Err(ImageError::NoImage));
        assert_eq!(Head::read(&page[..40]), Err(ImageError::NoImage));
        head.write(&mut page);
        assert_eq!(Head::read(&page), Ok(head));
        let order = Head::AT + 12..Head::AT + 16;
        page[order.clone()].reverse();
        assert_eq!(Head::read(&page), Err(ImageError::Order));
        page[order].reverse();
        page[Head::AT + 8..Head::AT + 12].copy_from_slice(&2_u32.to_ne_bytes());
        let error = Head::read(&page).unwrap_err();
        assert_eq!(error, ImageError::Version { found: 2 });
        assert!(error.to_string().contains("version 2") && error.to_string().contains("version 1"));
    }

    /// Slabs without entries are zeroes in an image, and stay as they were in a delta.
    #[test]
    fn slabs_without_entries_are_not_taken() {
        let (len, mut pages) = (4 * SLAB, vec![0; SLAB]);
        let kind = |pages: &mut [u8], slab: usize, kind: u32| {
            pages[slab * PAGE..slab * PAGE + 4].copy_from_slice(&kind.to_ne_bytes());
        };
        kind(&mut pages, 0, 4);
        kind(&mut pages, 2, 16);
        let mut chain = Chain::new(len as u64);
        let (mut state, mut restored) = (None, vec![0; len]);
        for (round, expected) in [(1_u8, [0, 1, 0]), (2, [2, 1, 0])] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let is_full = state.is_none();
            let saving = chain.save_changes(file.as_file()).unwrap();
            let mut taker = Taker::new(saving, is_full, &pages).unwrap();
            // In pieces that end anywhere.
            let slabs = vec![round; 3 * SLAB];
            for (index, piece) in slabs.chunks(SLAB / 3).enumerate() {
                taker.put(SLAB + index * (SLAB / 3), piece).unwrap();
            }
            taker.finish(len as u64).unwrap().finish().unwrap();
            state = Some(apply(&mut restored, state, &mut file.reopen().unwrap()).unwrap());
            assert!(restored[..SLAB] == pages);
            let slabs = restored[SLAB..].chunks(SLAB);
            assert!(
                slabs.zip(expected).all(|(slab, byte)| slab.iter().all(|&found| found == byte))
            );
            kind(&mut pages, 2, 0);
            kind(&mut pages, 1, 16);
        }
    }
}
