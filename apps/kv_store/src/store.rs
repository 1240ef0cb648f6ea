//! Keys and values in one piece of memory.
//!
//! ```text
//! 0       magic, version and byte order, key of the hash, number of buckets
//! 4096    buckets: u64 offset of the first entry, 0 for none
//! behind  blocks of the heap, each with one entry
//! ```
//!
//! Positions are offsets and the hash has its key in the memory, so a copy of the memory is a store.
//! The number of buckets never changes: there is one for 512 bytes of memory, and no request waits
//! for a table to grow.

use std::collections::HashSet;
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use hugekit::SnapshotError;
use hugekit::snapshot::{Changes, Epoch};
use siphasher::sip::SipHasher13;

use super::arena::Arena;
use super::entry::Entry;
use super::heap::{Heap, order_of};

const MAGIC: &[u8; 8] = b"HKVIMAGE";
/// Reads as another number on a machine with the other byte order.
const VERSION: u64 = 0x0102_0304_0000_0002;
const BUCKETS: usize = 4096;
const MEMORY_PER_BUCKET: usize = 512;

/// All keys. A key that has expired goes when it is looked at.
#[derive(Debug, Default)]
pub struct Store {
    /// Milliseconds since 1970, when the request began.
    pub now: u64,
    arena: Arena,
    heap: Heap,
    hasher: SipHasher13,
    buckets: usize,
    /// Keys, with those that have expired and were not looked at since.
    pub len: usize,
    /// Changes since the start.
    pub changes: u64,
    /// Notes writes since the last save by a snapshot.
    epoch: Option<Epoch>,
    /// The memory that a save has still to read: the offset that it reads next, and the end.
    unread: (Arc<AtomicUsize>, usize),
}

impl Store {
    /// An empty store in `memory` bytes.
    pub fn new(memory: usize) -> Result<Self> {
        ensure!(memory >= 4 << 20, "--memory is {memory} bytes: 4 MiB is the least");
        let mut store = Self { arena: Arena::new(memory)?, ..Self::default() };
        store.reset();
        Ok(store)
    }

    /// Makes the store a new one: empty, with another hash.
    fn reset(&mut self) {
        let key = fastrand::u128(..).to_ne_bytes();
        self.arena.bytes[..8].copy_from_slice(MAGIC);
        self.set_word(8, VERSION);
        self.arena.bytes[16..32].copy_from_slice(&key);
        self.set_word(32, 1 << (self.arena.bytes.len() / MEMORY_PER_BUCKET).ilog2());
        (self.buckets, self.hasher) = (self.word(32), SipHasher13::new_with_key(&key));
        self.clear();
    }

    /// Bytes of blocks with entries, and of the memory.
    pub fn memory(&self) -> (usize, usize) {
        (self.heap.used, self.arena.bytes.len())
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Entry<'_>> {
        self.find(key).map(|(_, at)| self.entry(at))
    }

    /// Sets one key. Without room, it changes nothing and returns `None`.
    #[must_use]
    pub fn set(&mut self, entry: &Entry<'_>) -> Option<()> {
        let (order, unread) = (order_of(entry.size()), self.unread());
        let old = self.find(entry.key).map(|(_, at)| at);
        let old = old.filter(|&at| order_of(self.entry(at).size()) == order);
        let is_free = |&at: &usize| at + (1 << order) <= unread.start || unread.end <= at;
        if old.filter(is_free).is_none() && self.set_all(iter::once(*entry)).is_some() {
            return Some(());
        }
        // Where the old entry is, at the price of a copy perhaps.
        self.write(old?, entry);
        Some(())
    }

    /// Sets all of several keys. Without room, it changes nothing and returns `None`.
    #[must_use]
    pub fn set_all<'a>(&mut self, entries: impl Iterator<Item = Entry<'a>> + Clone) -> Option<()> {
        let (unread, mut blocks) = (self.unread(), Vec::new());
        for entry in entries.clone() {
            let order = order_of(entry.size());
            let Some(at) = self.heap.take(order, &unread) else {
                blocks.into_iter().for_each(|(at, order)| self.heap.give_back(at, order));
                return None;
            };
            blocks.push((at, order));
        }
        for (entry, (at, _)) in entries.zip(blocks) {
            if let Some((link, old)) = self.find(entry.key) {
                self.unlink(link, old);
            }
            let bucket = self.bucket(entry.key);
            self.write(at, &entry);
            self.set_word(at, self.word(bucket) as u64);
            self.set_word(bucket, at as u64);
            self.len += 1;
        }
        Some(())
    }

    fn write(&mut self, at: usize, entry: &Entry<'_>) {
        entry.write(&mut self.arena.bytes[at..at + entry.size()]);
        self.changes += 1;
    }

    /// Removes a key. Returns whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let Some((link, at)) = self.find(key) else { return false };
        self.unlink(link, at);
        self.changes += 1;
        true
    }

    /// Lets a key expire then, or never. Returns whether it was there.
    pub fn set_expiry(&mut self, key: &[u8], expires: Option<u64>) -> bool {
        let Some((_, at)) = self.find(key) else { return false };
        self.set_word(at + 8, expires.unwrap_or(0));
        self.changes += 1;
        true
    }

    /// At least `count` keys from the bucket `cursor` on, and the next cursor, 0 at the end. Entries
    /// never move to another bucket: a key that is there all the time is found.
    pub fn scan(&self, cursor: usize, count: usize) -> (Vec<&[u8]>, usize) {
        let mut keys = Vec::new();
        let last = cursor.saturating_add(count.saturating_mul(10)).min(self.buckets);
        for bucket in cursor..last {
            let mut at = self.word(BUCKETS + 8 * bucket);
            while at != 0 {
                let entry = self.entry(at);
                keys.extend((!entry.is_gone(self.now)).then_some(entry.key));
                at = self.word(at);
            }
            if keys.len() >= count && bucket + 1 < self.buckets {
                return (keys, bucket + 1);
            }
        }
        (keys, if last < self.buckets { last } else { 0 })
    }

    pub fn clear(&mut self) {
        let heap = BUCKETS + 8 * self.buckets;
        self.arena.bytes[BUCKETS..heap].fill(0);
        self.changes += self.len as u64;
        (self.heap, self.len) = (Heap::default(), 0);
        self.heap.fill(heap, self.arena.bytes.len());
        self.heap.divide(self.unread().end);
    }

    pub fn bytes(&self) -> &[u8] {
        self.arena.bytes
    }

    /// The memory that was written since the last snapshot was saved, as it is now; all of it if that
    /// is not known. `next` has to say which offset the save reads next. Until [`saved`](Self::saved).
    pub fn snapshot(&mut self, next: Arc<AtomicUsize>) -> Result<Changes, SnapshotError> {
        // After an error, it is not known what has changed.
        let since = self.epoch.take().and_then(|epoch| self.arena.changes(Some(epoch)).ok());
        let changes = since.map_or_else(|| self.arena.changes(None), Ok)?;
        let end = changes.changed().last().map_or(0, |range| range.end);
        self.heap.divide(end);
        self.unread = (next, end);
        Ok(changes)
    }

    /// The save by a snapshot is over. The next one has the writes since `epoch` began.
    pub fn saved(&mut self, epoch: Option<Epoch>) {
        (self.epoch, self.unread) = (epoch, Default::default());
    }

    /// All of the memory, to be overwritten by an image; [`adopt`](Self::adopt) has to follow.
    pub fn image_mut(&mut self) -> &mut [u8] {
        self.epoch = None;
        self.arena.bytes
    }

    /// Makes a store of bytes that came from a file. They are checked: every entry lies in its own
    /// block and in the bucket of its key, and no key is there twice. Expired keys go. An error
    /// leaves an empty store.
    pub fn adopt(&mut self) -> Result<()> {
        self.heap = Heap::default();
        let gone = self.adopt_entries().inspect_err(|_| self.reset())?;
        gone.iter().for_each(|key| _ = self.find(key));
        Ok(())
    }

    /// Returns the keys that have expired.
    fn adopt_entries(&mut self) -> Result<Vec<Vec<u8>>> {
        let is_known = &self.arena.bytes[..8] == MAGIC && self.word(8) as u64 == VERSION;
        ensure!(is_known, "another program, version or machine wrote it");
        self.hasher = SipHasher13::new_with_key(self.arena.bytes[16..32].try_into()?);
        (self.buckets, self.len) = (self.word(32), 0);
        let fits = self.buckets.is_power_of_two() && self.buckets <= self.arena.bytes.len() / 64;
        ensure!(fits, "an index of {} buckets does not fit", self.buckets);
        let (mut blocks, mut gone) = (Vec::new(), Vec::new());
        for bucket in (BUCKETS..).step_by(8).take(self.buckets) {
            let (mut at, mut keys) = (self.word(bucket), HashSet::new());
            while at != 0 {
                let entry = self.arena.bytes.get(at..).and_then(Entry::read);
                let entry = entry.filter(|entry| self.bucket(entry.key) == bucket);
                // A key that is there twice also ends a chain that is a ring.
                let entry = entry.filter(|entry| keys.insert(entry.key));
                let entry = entry.with_context(|| format!("no entry of its index is at {at}"))?;
                blocks.push((at, order_of(entry.size())));
                gone.extend(entry.is_gone(self.now).then(|| entry.key.to_vec()));
                at = self.word(at);
            }
        }
        blocks.sort_unstable();
        let mut free = BUCKETS + 8 * self.buckets;
        for &(at, order) in &blocks {
            let (end, last) = (at + (1 << order), self.arena.bytes.len());
            let is_apart = at >= free && at.is_multiple_of(1 << order) && end <= last;
            ensure!(is_apart, "the entry at byte {at} lies in no block of its own");
            self.heap.fill(free, at);
            self.heap.used += 1 << order;
            (self.len, free) = (self.len + 1, end);
        }
        self.heap.fill(free, self.arena.bytes.len());
        Ok(gone)
    }

    /// Where the offset of a key's entry is written, and that offset.
    fn find(&mut self, key: &[u8]) -> Option<(usize, usize)> {
        let mut link = self.bucket(key);
        let mut at = self.word(link);
        while at != 0 && self.entry(at).key != key {
            (link, at) = (at, self.word(at));
        }
        if at != 0 && self.entry(at).is_gone(self.now) {
            self.unlink(link, at);
            return None;
        }
        (at != 0).then_some((link, at))
    }

    fn unlink(&mut self, link: usize, at: usize) {
        let order = order_of(self.entry(at).size());
        self.set_word(link, self.word(at) as u64);
        self.heap.give_back(at, order);
        self.len -= 1;
    }

    fn entry(&self, at: usize) -> Entry<'_> {
        Entry::read(&self.arena.bytes[at..]).expect("an entry of this store")
    }

    fn bucket(&self, key: &[u8]) -> usize {
        BUCKETS + 8 * (self.hasher.hash(key) as usize & (self.buckets - 1))
    }

    /// Where a write costs a copy.
    fn unread(&self) -> Range<usize> {
        self.unread.0.load(Ordering::Acquire)..self.unread.1
    }

    fn word(&self, at: usize) -> usize {
        u64::from_ne_bytes(self.arena.bytes[at..at + 8].try_into().expect("eight bytes")) as usize
    }

    fn set_word(&mut self, at: usize, word: u64) {
        self.arena.bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
}
