//! Where the entry of a key is: linear hashing.
//!
//! A table grows by one bucket at a time (Litwin, 1980), so that no request ever waits for all keys to be moved. With
//! `n` buckets, bucket `n` takes over a part of bucket `n` without its highest bit, and nothing else changes.
//! A bucket is a cache line: seven entries, and where it goes on. An entry has 28 bits of the hash, which is all that a
//! bucket needs to be split, and where the entry is, in units of 16 bytes: 1 TiB of them.
//!
//! It lies in the arena, but not where a save looks: entries are found by the pages of their slabs, and the
//! index of another process is made anew.

use super::slabs::{Full, SLAB, Slabs};

const BUCKET: usize = 64;
const ENTRIES: usize = 7;
const UNIT: usize = 16;
const OFFSET_BITS: u32 = 36;
const HASH_BITS: u32 = u64::BITS - OFFSET_BITS;

/// The largest arena that entries can be pointed to in.
pub const MOST_MEMORY: usize = UNIT << OFFSET_BITS;

/// On average so many entries in a bucket: one in ten goes on in another then.
const LOAD: usize = 4;

/// Buckets beyond which 28 bits of hash tell no more of them apart.
const MOST_BUCKETS: usize = 1 << HASH_BITS;

#[derive(Debug, Default)]
pub struct Index {
    /// Slabs full of buckets.
    slabs: Vec<usize>,
    buckets: usize,
    entries: usize,
    /// Where buckets that others go on in are free.
    spare: Vec<usize>,
}

/// Where the index has an entry, until it is changed.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

impl Index {
    pub fn len(&self) -> usize {
        self.entries
    }

    /// The entry of that hash which `is` the one.
    pub fn find(
        &self,
        slabs: &Slabs,
        hash: u64,
        is: impl Fn(usize) -> bool,
    ) -> Option<(Place, usize)> {
        let mut bucket = self.first_bucket(hash)?;
        loop {
            for at in (bucket..).step_by(8).take(ENTRIES) {
                let entry = slabs.u64_at(at);
                let offset = offset_of(entry);
                if entry != 0 && entry >> OFFSET_BITS == short(hash) && is(offset) {
                    return Some((Place(at), offset));
                }
            }
            bucket = next_of(slabs, bucket)?;
        }
    }

    /// Tells `visit` where the entries of a bucket are; `false` if there is no such bucket.
    ///
    /// A program that goes through all buckets from 0 on, while the table changes, meets each entry that is there all the
    /// time: an entry only ever moves to the bucket that was added last, which lies behind all that were visited.
    pub fn visit(&self, slabs: &Slabs, bucket: usize, visit: &mut dyn FnMut(usize)) -> bool {
        let mut next = (bucket < self.buckets).then(|| self.bucket(bucket));
        while let Some(at) = next {
            let entries = (at..).step_by(8).take(ENTRIES).map(|at| slabs.u64_at(at));
            entries.filter(|&entry| entry != 0).for_each(|entry| visit(offset_of(entry)));
            next = next_of(slabs, at);
        }
        bucket < self.buckets
    }

    /// Sees to it that so many can be inserted.
    pub fn reserve(&mut self, slabs: &mut Slabs, more: usize) -> Result<(), Full> {
        if self.buckets == 0 {
            self.add_bucket(slabs)?;
        }
        while self.spare.len() < more {
            let start = slabs.take_for_index()? * SLAB;
            self.spare.extend((start..start + SLAB).step_by(BUCKET).rev());
        }
        Ok(())
    }

    /// Adds an entry that is not there. Something must be reserved.
    pub fn insert(&mut self, slabs: &mut Slabs, hash: u64, offset: usize) {
        self.put(slabs, entry_of(hash, offset));
        self.entries += 1;
        if self.entries > self.buckets * LOAD {
            self.grow(slabs);
        }
    }

    pub fn replace(&mut self, slabs: &mut Slabs, place: Place, offset: usize) {
        let hash = slabs.u64_at(place.0) >> OFFSET_BITS;
        slabs.set_u64(place.0, entry_of(hash, offset));
    }

    pub fn remove(&mut self, slabs: &mut Slabs, place: Place) {
        slabs.set_u64(place.0, 0);
        self.entries -= 1;
    }

    /// Puts an entry into the first free place of its bucket, or of where that goes on.
    fn put(&mut self, slabs: &mut Slabs, entry: u64) {
        let hash = entry >> OFFSET_BITS;
        let mut bucket = self.first_bucket(hash).expect("reserved");
        loop {
            let mut places = (bucket..).step_by(8).take(ENTRIES);
            if let Some(at) = places.find(|&at| slabs.u64_at(at) == 0) {
                return slabs.set_u64(at, entry);
            }
            bucket = next_of(slabs, bucket).unwrap_or_else(|| {
                let spare = self.spare.pop().expect("reserved");
                slabs.arena[spare..spare + BUCKET].fill(0);
                slabs.set_u64(bucket + ENTRIES * 8, spare as u64);
                spare
            });
        }
    }

    /// Moves a part of one bucket to a new one. Without room for it, buckets go on longer.
    fn grow(&mut self, slabs: &mut Slabs) {
        if self.buckets == MOST_BUCKETS {
            return;
        }
        let Ok(split) = self.add_bucket(slabs) else { return };
        let mut moved = Vec::with_capacity(2 * ENTRIES);
        let mut bucket = Some(split);
        while let Some(at) = bucket {
            let entries = (at..).step_by(8).take(ENTRIES).map(|at| slabs.u64_at(at));
            moved.extend(entries.filter(|&entry| entry != 0));
            bucket = next_of(slabs, at);
            slabs.arena[at..at + BUCKET].fill(0);
            self.spare.extend(bucket);
        }
        // Two buckets go on in no more others than the one did.
        moved.into_iter().for_each(|entry| self.put(slabs, entry));
    }

    /// Adds an empty bucket, and returns where the one is that it takes entries from: the first takes none, and
    /// is returned itself.
    fn add_bucket(&mut self, slabs: &mut Slabs) -> Result<usize, Full> {
        let new = self.buckets;
        if new * BUCKET == self.slabs.len() * SLAB {
            self.slabs.push(slabs.take_for_index()?);
        }
        let at = self.bucket(new);
        slabs.arena[at..at + BUCKET].fill(0);
        self.buckets += 1;
        let split = if new == 0 { 0 } else { new & !(1 << new.ilog2()) };
        Ok(self.bucket(split))
    }

    fn first_bucket(&self, hash: u64) -> Option<usize> {
        let mask = self.buckets.checked_next_power_of_two()?.checked_sub(1)?;
        let bucket = short(hash) as usize & mask;
        let bucket = if bucket < self.buckets { bucket } else { bucket & (mask >> 1) };
        (self.buckets > 0).then(|| self.bucket(bucket))
    }

    fn bucket(&self, bucket: usize) -> usize {
        let at = bucket * BUCKET;
        self.slabs[at / SLAB] * SLAB + at % SLAB
    }
}

fn next_of(slabs: &Slabs, bucket: usize) -> Option<usize> {
    let next = slabs.u64_at(bucket + ENTRIES * 8) as usize;
    (next != 0).then_some(next)
}

fn short(hash: u64) -> u64 {
    hash & ((1 << HASH_BITS) - 1)
}

fn entry_of(hash: u64, offset: usize) -> u64 {
    short(hash) << OFFSET_BITS | (offset / UNIT) as u64
}

fn offset_of(entry: u64) -> usize {
    (entry & ((1 << OFFSET_BITS) - 1)) as usize * UNIT
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_grows_and_finds_all() {
        let mut slabs = Slabs::new(16 * SLAB).unwrap();
        let mut index = Index::default();
        let hash = |key: usize| (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        for key in 1..=200_000 {
            index.reserve(&mut slabs, 1).unwrap();
            index.insert(&mut slabs, hash(key), key * UNIT);
        }
        assert_eq!(index.buckets, 50_000);
        for key in 1..=200_000 {
            let found = index.find(&slabs, hash(key), |offset| offset == key * UNIT);
            assert_eq!(found.map(|(_, offset)| offset), Some(key * UNIT));
        }
    }

    proptest! {
        /// Against a map, with few different hashes, so that buckets go on, and with no slab left to grow.
        #[test]
        fn it_follows_a_map(
            hashes in 1..2000_u64,
            memory in 4..8_usize,
            steps in prop::collection::vec((any::<u64>(), 1..400_usize, 0..3), 1..2000),
        ) {
            let mut slabs = Slabs::new(memory * SLAB).unwrap();
            let mut index = Index::default();
            let mut model = HashMap::new();
            for (hash, key, what) in steps {
                let (offset, hash) = (key * UNIT, hash % hashes);
                let hash = *model.get(&offset).unwrap_or(&hash);
                let found = index.find(&slabs, hash, |at| at == offset);
                prop_assert_eq!(found.is_some(), model.contains_key(&offset));
                match found {
                    Some((place, _)) if what == 0 => {
                        index.remove(&mut slabs, place);
                        model.remove(&offset);
                    }
                    Some((place, _)) => index.replace(&mut slabs, place, offset),
                    None => {
                        index.reserve(&mut slabs, 1).unwrap();
                        index.insert(&mut slabs, hash, offset);
                        model.insert(offset, hash);
                    }
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for (&offset, &hash) in &model {
                prop_assert!(index.find(&slabs, hash, |at| at == offset).is_some());
            }
        }
    }
}
