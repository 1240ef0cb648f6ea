//! The file that a save writes.
//!
//! ```text
//! dump    magic, blocks, a last block without bytes whose count is that of all entries
//! block   u64 bytes, u64 entries, u32 checksum, entries
//! entry   u64 expires (ms since 1970, 0 never), u32 bytes of key, u32 bytes of value, key, value
//! ```
//!
//! All little-endian. A checksum (CRC-32) is that of the block's offset in the file, of its head and of its
//! entries: no bit of a dump can change, no block be lost, doubled or moved without notice. Nothing is
//! taken from a block before its checksum has been compared.

use std::io::{self, BufReader, Read, Write};

use super::slabs::{Kind, PAGE, Page, SLAB};
use super::store::Entry;

const MAGIC: &[u8; 8] = b"HKVDUMP1";
const BLOCK_HEAD: usize = 20;

/// Why a dump cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("damaged at byte {offset}: {what}")]
    Damaged { offset: u64, what: String },
    #[error("byte {offset}: {source}")]
    Read { offset: u64, source: io::Error },
    #[error("no room for more than {loaded} of its entries: --memory must be larger")]
    Full { loaded: u64 },
}

/// Makes a dump of what it is given: the bytes of a store, in order, in pieces of any size.
#[derive(Debug)]
pub struct Dumper<W: Write> {
    file: W,
    /// Entries that have expired by now are left out.
    now: u64,
    /// Bytes written.
    written: u64,
    entries: u64,
    pages: Vec<u8>,
    /// The slab that comes next.
    slab: usize,
    /// What there is of it so far.
    part: Vec<u8>,
    block: Vec<u8>,
}

impl<W: Write> Dumper<W> {
    pub fn new(mut file: W, now: u64) -> io::Result<Self> {
        file.write_all(MAGIC)?;
        let (written, entries, slab) = (MAGIC.len() as u64, 0, 0);
        let (pages, part, block) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { file, now, written, entries, pages, slab, part, block })
    }

    /// Writes the last block, and returns the file and how many entries it has.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        assert!(self.part.is_empty() && self.block.is_empty());
        self.write_block(self.entries)?;
        Ok((self.file, self.entries))
    }

    /// Bytes of the slab that comes next, with those that belong to it.
    fn wanted(&self) -> usize {
        match self.page().kind() {
            Kind::Large(slabs) | Kind::Pages(slabs) => slabs as usize * SLAB,
            _ => SLAB,
        }
    }

    /// The page of the slab that comes next. The first one is in what there is of itself.
    fn page(&self) -> Page<'_> {
        let pages = if self.pages.is_empty() { &self.part } else { &self.pages };
        Page(pages.get(self.slab * PAGE..(self.slab + 1) * PAGE).unwrap_or(&[0; PAGE]))
    }

    /// Takes a whole slab, with those that belong to it.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.pages.is_empty() {
            self.pages = bytes.to_vec();
        } else {
            self.take_entries(bytes)?;
        }
        self.slab += bytes.len() / SLAB;
        Ok(())
    }

    fn take_entries(&mut self, bytes: &[u8]) -> io::Result<()> {
        let page = Page(&self.pages[self.slab * PAGE..(self.slab + 1) * PAGE]);
        let large = matches!(page.kind(), Kind::Large(_)).then_some(0);
        let mut entries = 0;
        for at in page.taken().chain(large) {
            let entry = Entry::read(&bytes[at..]).ok_or_else(half_an_entry)?;
            if !entry.is_gone(self.now) {
                self.block.extend(entry.expires.unwrap_or(0).to_le_bytes());
                self.block.extend((entry.key.len() as u32).to_le_bytes());
                self.block.extend((entry.value.len() as u32).to_le_bytes());
                self.block.extend(entry.key);
                self.block.extend(entry.value);
                entries += 1;
            }
        }
        self.entries += entries;
        if entries > 0 { self.write_block(entries) } else { Ok(()) }
    }

    fn write_block(&mut self, entries: u64) -> io::Result<()> {
        let head = Head { bytes: self.block.len() as u64, entries };
        let checksum = head.checksum(self.written, &self.block);
        self.file.write_all(&head.to_bytes(checksum))?;
        self.file.write_all(&self.block)?;
        self.written += (BLOCK_HEAD + self.block.len()) as u64;
        self.block.clear();
        Ok(())
    }
}

/// Cannot be: an entry is whole before its slot is marked as taken.
fn half_an_entry() -> io::Error {
    io::Error::other("an entry reaches beyond its slab")
}

impl<W: Write> Write for Dumper<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wanted = self.wanted() - self.part.len();
        if self.part.is_empty() && bytes.len() >= wanted && !self.pages.is_empty() {
            self.take(&bytes[..wanted])?;
            return Ok(wanted);
        }
        // Of the first slab, its page comes first: it says how many there are.
        let is_unknown = self.pages.is_empty() && self.part.len() < PAGE;
        let wanted = if is_unknown { PAGE - self.part.len() } else { wanted };
        let taken = wanted.min(bytes.len());
        self.part.extend_from_slice(&bytes[..taken]);
        if self.part.len() == self.wanted() {
            let part = std::mem::take(&mut self.part);
            self.take(&part)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

struct Head {
    bytes: u64,
    entries: u64,
}

impl Head {
    fn checksum(&self, offset: u64, entries: &[u8]) -> u32 {
        let mut checksum = crc32fast::Hasher::new();
        for word in [offset, self.bytes, self.entries] {
            checksum.update(&word.to_le_bytes());
        }
        checksum.update(entries);
        checksum.finalize()
    }

    fn to_bytes(&self, checksum: u32) -> [u8; BLOCK_HEAD] {
        let mut bytes = [0; BLOCK_HEAD];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.entries.to_le_bytes());
        bytes[16..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; BLOCK_HEAD]) -> (Self, u32) {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let checksum = u32::from_le_bytes(bytes[16..].try_into().expect("four bytes"));
        (Self { bytes: word(0), entries: word(8) }, checksum)
    }
}

/// Reads a dump of `len` bytes, and gives each entry to `take`, which may refuse it as too many. Returns how many
/// there are. Before an error, some may have been given.
pub fn read(
    file: impl Read,
    len: u64,
    mut take: impl FnMut(&Entry<'_>) -> Result<(), super::store::Full>,
) -> Result<u64, LoadError> {
    let mut source = Source { file: BufReader::new(file), offset: 0, len };
    if &source.array::<{ MAGIC.len() }>("no dump of this program")? != MAGIC {
        return Err(damaged(0, "no dump of this program"));
    }
    let (mut loaded, mut block) = (0, Vec::new());
    loop {
        let offset = source.offset;
        let (head, checksum) = Head::of_bytes(&source.array("its end is missing")?);
        source.read(head.bytes, &mut block, offset)?;
        if head.checksum(offset, &block) != checksum {
            let what = format!("the checksum of the block of {} bytes differs", head.bytes);
            return Err(damaged(offset, &what));
        }
        if block.is_empty() {
            return source.end(loaded, head.entries);
        }
        let before = loaded;
        let mut rest = &block[..];
        while !rest.is_empty() {
            let (entry, behind) = entry_of(rest)
                .ok_or_else(|| damaged(offset, "an entry reaches beyond its block"))?;
            take(&entry).map_err(|_| LoadError::Full { loaded })?;
            loaded += 1;
            rest = behind;
        }
        if loaded - before != head.entries {
            return Err(damaged(offset, "the block has not as many entries as it says"));
        }
    }
}

fn damaged(offset: u64, what: &str) -> LoadError {
    LoadError::Damaged { offset, what: what.to_owned() }
}

fn entry_of(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (expires, bytes) = bytes.split_first_chunk()?;
    let (key, bytes) = bytes.split_first_chunk()?;
    let (value, bytes) = bytes.split_first_chunk()?;
    let expires = u64::from_le_bytes(*expires);
    let (key, bytes) = bytes.split_at_checked(u32::from_le_bytes(*key) as usize)?;
    let (value, bytes) = bytes.split_at_checked(u32::from_le_bytes(*value) as usize)?;
    Some((Entry { key, value, expires: (expires != 0).then_some(expires) }, bytes))
}

struct Source<R> {
    file: R,
    offset: u64,
    len: u64,
}

impl<R: Read> Source<R> {
    fn array<const N: usize>(&mut self, missing: &str) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        let offset = self.offset;
        self.file.read_exact(&mut bytes).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged(offset, missing),
            _ => LoadError::Read { offset, source },
        })?;
        self.offset += N as u64;
        Ok(bytes)
    }

    /// Reads so many bytes of a block, if the file has them.
    fn read(&mut self, len: u64, bytes: &mut Vec<u8>, block: u64) -> Result<(), LoadError> {
        let left = self.len.saturating_sub(self.offset);
        if len > left {
            let what = format!("the block says that it has {len} bytes, and {left} are left");
            return Err(damaged(block, &what));
        }
        bytes.clear();
        let offset = self.offset;
        let read = self.file.by_ref().take(len).read_to_end(bytes);
        let read = read.map_err(|source| LoadError::Read { offset, source })? as u64;
        self.offset += read;
        if read < len {
            return Err(damaged(block, "the file was cut while it was read"));
        }
        Ok(())
    }

    /// Behind the last block.
    fn end(mut self, loaded: u64, entries: u64) -> Result<u64, LoadError> {
        let offset = self.offset;
        if loaded != entries {
            let what = format!("{loaded} entries were there, and {entries} were written");
            return Err(damaged(offset, &what));
        }
        match self.file.read(&mut [0]) {
            Ok(0) => Ok(loaded),
            Ok(_) => Err(damaged(offset, "something follows behind the end")),
            Err(source) => Err(LoadError::Read { offset, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::Store;
    use super::*;

    fn dump() -> Vec<u8> {
        let mut store = Store::new(16 * SLAB).unwrap();
        for number in 0..500_usize {
            let (key, value) = (number.to_string(), vec![number as u8; number % 100]);
            let entry = Entry { key: key.as_bytes(), value: &value, expires: None };
            store.set(&entry, 0).unwrap();
        }
        let mut dump = Vec::new();
        let mut dumper = Dumper::new(&mut dump, 0).unwrap();
        dumper.write_all(store.bytes()).unwrap();
        assert_eq!(dumper.finish().unwrap().1, 500);
        dump
    }

    fn loaded(dump: &[u8]) -> Result<u64, LoadError> {
        read(dump, dump.len() as u64, |_| Ok(()))
    }

    #[test]
    fn no_bit_may_change() {
        let mut dump = dump();
        assert_eq!(loaded(&dump).unwrap(), 500);
        let bits = dump.len() * 8;
        for bit in (0..bits).step_by(7).chain(0..800).chain(bits - 400..bits) {
            dump[bit / 8] ^= 1 << (bit % 8);
            let Err(LoadError::Damaged { offset, .. }) = loaded(&dump) else { panic!("{bit}") };
            assert!(offset as usize <= bit / 8, "{bit}: {offset}");
            dump[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn no_byte_may_be_missing_or_added() {
        let mut dump = dump();
        for len in (0..dump.len()).step_by(13).chain(dump.len() - 50..dump.len()) {
            assert!(matches!(loaded(&dump[..len]), Err(LoadError::Damaged { .. })), "{len}");
        }
        dump.push(0);
        assert!(matches!(loaded(&dump), Err(LoadError::Damaged { .. })));
    }

    #[test]
    fn a_store_that_is_too_small_says_so() {
        let dump = dump();
        let mut left = 200;
        let read = read(&dump[..], dump.len() as u64, |_| {
            left -= 1;
            if left > 0 { Ok(()) } else { Err(super::super::store::Full) }
        });
        assert!(matches!(read, Err(LoadError::Full { loaded: 199 })));
    }
}
