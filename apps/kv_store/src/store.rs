//! Keys and values.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use anyhow::{Result, ensure};

use super::arena::Watched;
use super::image::ImageError;
use super::index::{Index, MOST_MEMORY, Place};
pub use super::slabs::Full;
use super::slabs::{Point, Slabs, room_of};

/// Before key and value: when it expires, and the lengths of both.
const HEAD: usize = 16;

/// One key with its value, wherever its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// When it is gone, in milliseconds since 1970.
    pub expires: Option<u64>,
}

impl<'a> Entry<'a> {
    /// The one that begins where these bytes do; `None` if they end before it.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let expires = u64::from_ne_bytes(head[..8].try_into().ok()?);
        let [key, value] = [8, 12].map(|at| {
            u32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize
        });
        let (key, rest) = rest.split_at_checked(key)?;
        let value = rest.get(..value)?;
        Some(Self { key, value, expires: (expires != 0).then_some(expires) })
    }

    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        HEAD + self.key.len() + self.value.len()
    }

    fn write(&self, bytes: &mut [u8]) {
        let (head, rest) = bytes.split_at_mut(HEAD);
        head[..8].copy_from_slice(&self.expires.unwrap_or(0).to_ne_bytes());
        head[8..12].copy_from_slice(&(self.key.len() as u32).to_ne_bytes());
        head[12..].copy_from_slice(&(self.value.len() as u32).to_ne_bytes());
        let (key, value) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        value[..self.value.len()].copy_from_slice(self.value);
    }

    pub fn is_gone(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Slabs {
    /// What is in a room that may hold anything.
    pub fn entry_in(&self, offset: usize) -> Result<Entry<'_>, ImageError> {
        let room = &self.arena[offset..offset + self.room_at(offset)];
        Entry::read(room).ok_or(ImageError::Entry { offset })
    }
}

/// All keys. `now` is the time in milliseconds since 1970: what has expired is gone when it is looked at.
#[derive(Debug)]
pub struct Store {
    slabs: Slabs,
    index: Index,
    hasher: RandomState,
    changes: u64,
}

impl Store {
    pub fn new(memory: usize) -> Result<Self> {
        ensure!(memory <= MOST_MEMORY, "--memory of {memory} bytes: {MOST_MEMORY} at most");
        let slabs = Slabs::new(memory)?;
        let (index, hasher) = (Index::default(), RandomState::new());
        Ok(Self { slabs, index, hasher, changes: 0 })
    }

    /// Keys, with those that have expired and were not looked at since.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes in use, and bytes that there are.
    pub fn memory(&self) -> (usize, usize) {
        (self.slabs.used(), self.slabs.memory())
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn get(&mut self, key: &[u8], now: u64) -> Option<Entry<'_>> {
        let (_, offset) = self.find(key, now)?;
        Some(self.entry(offset))
    }

    /// Sets a key, unless there is no room for it: nothing is changed then.
    pub fn set(&mut self, entry: &Entry<'_>, now: u64) -> Result<(), Full> {
        if let Some((_, offset)) = self.find(entry.key, now) {
            let (old, new) = (self.entry(offset).len(), entry.len());
            let room = self.slabs.room_at(offset);
            let fits = new <= room;
            if room == room_of(new) && self.slabs.is_free_to_write(offset, old) {
                entry.write(&mut self.slabs.arena[offset..offset + new]);
                self.changes += 1;
                return Ok(());
            }
            return self.set_all(std::slice::from_ref(entry), now).or_else(|full| {
                // There is room where it is, at the price of copying a slab.
                let bytes = fits.then(|| &mut self.slabs.arena[offset..offset + new]);
                entry.write(bytes.ok_or(full)?);
                self.changes += 1;
                Ok(())
            });
        }
        self.set_all(std::slice::from_ref(entry), now)
    }

    /// Sets all of several keys, or none.
    pub fn set_all(&mut self, entries: &[Entry<'_>], now: u64) -> Result<(), Full> {
        self.index.reserve(&mut self.slabs, entries.len())?;
        let mut offsets = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.slabs.take(entry.len()) {
                Ok(offset) => {
                    entry.write(&mut self.slabs.arena[offset..offset + entry.len()]);
                    offsets.push(offset);
                }
                Err(full) => {
                    offsets.into_iter().for_each(|offset| self.slabs.give_back(offset));
                    return Err(full);
                }
            }
        }
        for (entry, offset) in entries.iter().zip(offsets) {
            self.link(entry.key, offset, now);
        }
        self.changes += entries.len() as u64;
        Ok(())
    }

    /// Has the index point to an entry.
    fn link(&mut self, key: &[u8], offset: usize, now: u64) {
        match self.find(key, now) {
            Some((place, old)) => {
                self.index.replace(&mut self.slabs, place, offset);
                self.slabs.give_back(old);
            }
            None => self.index.insert(&mut self.slabs, self.hasher.hash_one(key), offset),
        }
    }

    /// Whether it was there.
    pub fn remove(&mut self, key: &[u8], now: u64) -> bool {
        let found = self.find(key, now);
        if let Some((place, offset)) = found {
            self.drop_at(place, offset);
        }
        found.is_some()
    }

    /// Has it expire then, or never. Whether it is there.
    pub fn set_expiry(&mut self, key: &[u8], expires: Option<u64>, now: u64) -> bool {
        let found = self.find(key, now);
        if let Some((_, offset)) = found {
            // Where it is, even if that copies a slab: a longer value would cost as much elsewhere.
            self.slabs.set_u64(offset, expires.unwrap_or(0));
            self.changes += 1;
        }
        found.is_some()
    }

    /// Goes through about so many keys from `cursor` on, 0 at first. Returns where to go on, 0 if there are no more. Keys
    /// that are there from the first call to the last are visited; others may be, and more than once.
    pub fn scan<'a>(
        &'a self,
        cursor: usize,
        count: usize,
        now: u64,
        mut visit: impl FnMut(&'a [u8]),
    ) -> usize {
        let (mut bucket, mut seen) = (cursor, 0);
        // Most buckets may be empty, when most keys have been deleted.
        let last = cursor.saturating_add(count.saturating_mul(10));
        loop {
            let more = self.index.visit(&self.slabs, bucket, &mut |offset| {
                seen += 1;
                let entry = self.entry(offset);
                if !entry.is_gone(now) {
                    visit(entry.key);
                }
            });
            if !more {
                return 0;
            }
            bucket += 1;
            if seen >= count || bucket >= last {
                return bucket;
            }
        }
    }

    pub fn clear(&mut self) {
        self.changes += self.index.len() as u64;
        self.slabs.clear();
        self.index = Index::default();
    }

    /// All entries as they are now, as the bytes that a save reads.
    pub fn bytes(&self) -> &[u8] {
        &self.slabs.arena[..self.slabs.entries_len()]
    }

    /// The same bytes as far as they may not be as they were at the save before. They stay as they are while the store is
    /// changed. `read` is to tell which byte of the arena the save reads next. Until [`saved`](Self::saved).
    pub fn snapshot(&mut self, read: Arc<AtomicUsize>) -> Result<Point, hugekit::SnapshotError> {
        self.slabs.protect(read)
    }

    /// All is saved anew, as an image of this generation.
    pub fn begin_generation(&mut self, generation: u64) {
        self.slabs.begin_generation(generation);
    }

    /// The save is over. The copy of the pages is used again, and what was saved is watched.
    pub fn saved(&mut self, pages: Vec<u8>, watched: Vec<Watched>) {
        self.slabs.unprotect(pages, watched);
    }

    /// All of the arena, to be overwritten by an image; then [`adopt`](Self::adopt).
    pub fn image_mut(&mut self) -> &mut [u8] {
        self.slabs.image_mut()
    }

    /// The image's generation.
    pub fn generation(&self) -> Result<u64, ImageError> {
        Ok(self.slabs.head()?.generation)
    }

    /// Makes an index of what the arena's bytes are, which may be anything. Returns how many entries there were; some of
    /// them may have expired. An error leaves an empty store.
    pub fn adopt(&mut self, now: u64) -> Result<u64, ImageError> {
        self.index = Index::default();
        self.try_adopt(now).inspect_err(|_| {
            self.slabs.begin_generation(0);
            self.clear();
        })
    }

    fn try_adopt(&mut self, now: u64) -> Result<u64, ImageError> {
        let rooms = self.slabs.adopt()?;
        for &offset in &rooms {
            let entry = self.slabs.entry_in(offset)?;
            if entry.is_gone(now) {
                self.slabs.give_back(offset);
                continue;
            }
            let hash = self.hasher.hash_one(entry.key);
            let same = |other| self.entry(other).key == entry.key;
            if self.index.find(&self.slabs, hash, same).is_some() {
                return Err(ImageError::Twice { offset });
            }
            let full = ImageError::Full { entries: self.index.len() };
            self.index.reserve(&mut self.slabs, 1).map_err(|Full| full)?;
            self.index.insert(&mut self.slabs, hash, offset);
        }
        Ok(rooms.len() as u64)
    }

    fn find(&mut self, key: &[u8], now: u64) -> Option<(Place, usize)> {
        let is_it = |offset| self.entry(offset).key == key;
        let found = self.index.find(&self.slabs, self.hasher.hash_one(key), is_it)?;
        if !self.entry(found.1).is_gone(now) {
            return Some(found);
        }
        self.drop_at(found.0, found.1);
        None
    }

    fn drop_at(&mut self, place: Place, offset: usize) {
        self.index.remove(&mut self.slabs, place);
        self.slabs.give_back(offset);
        self.changes += 1;
    }

    fn entry(&self, offset: usize) -> Entry<'_> {
        Entry::read(&self.slabs.arena[offset..]).expect("the index points to entries")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::io::Write;
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;

    use super::super::dump::{self, Dumper};
    use super::super::slabs::SLAB;
    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Set { key: u8, len: usize, fill: u8, expires: Option<u64> },
        SetTwo { keys: [u8; 2], len: usize },
        Remove { key: u8 },
        Wait { time: u64 },
        Clear,
        Snapshot,
        Read { slabs: usize },
        Compare,
    }

    fn step() -> impl Strategy<Value = Step> {
        let len = prop_oneof![8 => 0..2000_usize, 2 => 0..200_000_usize, 1 => 0..3 * SLAB];
        let expires = prop::option::weighted(0.2, 1..100_u64);
        prop_oneof![
            20 => (any::<u8>(), len.clone(), any::<u8>(), expires)
                .prop_map(|(key, len, fill, expires)| Step::Set { key, len, fill, expires }),
            4 => (any::<[u8; 2]>(), len).prop_map(|(keys, len)| Step::SetTwo { keys, len }),
            8 => any::<u8>().prop_map(|key| Step::Remove { key }),
            4 => (1..20_u64).prop_map(|time| Step::Wait { time }),
            1 => Just(Step::Clear),
            2 => Just(Step::Snapshot),
            2 => (1..4_usize).prop_map(|slabs| Step::Read { slabs }),
            2 => Just(Step::Compare),
        ]
    }

    type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

    /// What a dump of these bytes has, taken piece by piece.
    fn listed(bytes: &[u8], now: u64) -> Model {
        let mut dump = Vec::new();
        let mut dumper = Dumper::new(&mut dump, now).unwrap();
        bytes.chunks(SLAB / 3 + 1).for_each(|piece| dumper.write_all(piece).unwrap());
        dumper.finish().unwrap();
        let mut model = Model::new();
        let read = dump::read(&dump[..], dump.len() as u64, |entry| {
            model.insert(entry.key.to_vec(), (entry.value.to_vec(), entry.expires));
            Ok(())
        });
        assert_eq!(read.unwrap(), model.len() as u64);
        model
    }

    fn alive(model: &Model, now: u64) -> Model {
        let live = model.iter().filter(|(_, (_, expires))| expires.is_none_or(|at| at > now));
        live.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// A key of one byte, again and again.
    fn long_key(key: u8) -> Vec<u8> {
        vec![key; 1 + key as usize % 40]
    }

    /// A store, the map that it should be like, and what was saved of it with what the map held then.
    struct Pair {
        store: Store,
        model: Model,
        now: u64,
        snapshot: Option<(Point, Model, Arc<AtomicUsize>)>,
        /// What was saved, each time on what was saved before.
        image: Vec<u8>,
        adopted: Store,
    }

    impl Pair {
        fn new() -> Self {
            let store = Store::new(24 * SLAB).unwrap();
            let adopted = Store::new(24 * SLAB).unwrap();
            let image = vec![0; 24 * SLAB];
            Self { store, model: Model::new(), now: 1, snapshot: None, image, adopted }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Set { key, len, fill, expires } => {
                    self.set(long_key(key), vec![fill; len], expires);
                }
                Step::SetTwo { keys, len } => self.set_two(keys, &vec![3; len]),
                Step::Remove { key } => self.remove(&long_key(key)),
                Step::Wait { time } => self.now += time,
                Step::Clear => self.clear(),
                Step::Snapshot if self.snapshot.is_none() => self.take_snapshot(),
                Step::Snapshot => self.read_snapshot(),
                Step::Read { slabs } => self.say_that_more_is_read(slabs),
                Step::Compare => {
                    self.bytes_are_as_the_map();
                    self.values_are_as_the_map();
                }
            }
        }

        fn set(&mut self, key: Vec<u8>, value: Vec<u8>, lasts: Option<u64>) {
            let expires = lasts.map(|time| self.now + time);
            let entry = Entry { key: &key, value: &value, expires };
            if self.store.set(&entry, self.now).is_ok() {
                self.model.insert(key, (value, expires));
            }
        }

        fn set_two(&mut self, keys: [u8; 2], value: &[u8]) {
            let entry = |key| Entry { key: std::slice::from_ref(key), value, expires: None };
            if self.store.set_all(&keys.each_ref().map(entry), self.now).is_ok() {
                self.model.extend(keys.map(|key| (vec![key], (value.to_vec(), None))));
            }
        }

        fn remove(&mut self, key: &[u8]) {
            let was = alive(&self.model, self.now).contains_key(key);
            assert_eq!(self.store.remove(key, self.now), was);
            self.model.remove(key);
        }

        fn clear(&mut self) {
            self.store.clear();
            self.model.clear();
            assert_eq!(self.store.memory().0, 0);
        }

        /// Where userfaultfd is not to be had, the integration tests say so.
        fn take_snapshot(&mut self) {
            let read = Arc::new(AtomicUsize::new(0));
            let taken = self.store.snapshot(Arc::clone(&read)).ok();
            self.snapshot = taken.map(|taken| (taken, alive(&self.model, self.now), read));
        }

        fn read_snapshot(&mut self) {
            let (taken, model, read) = self.snapshot.take().unwrap();
            self.image[..taken.pages.len()].copy_from_slice(&taken.pages);
            let mut watched = Vec::new();
            for part in taken.entries {
                let put = |offset: usize, bytes: &[u8]| {
                    self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
                    Ok(())
                };
                watched.push(part.write_to(put).unwrap());
            }
            assert!(alive(&listed(&self.image, 0), self.now) == alive(&model, self.now));
            self.adopted_is_as(&alive(&model, self.now));
            read.store(usize::MAX / 2, Ordering::Release);
            self.store.saved(taken.pages, watched);
        }

        /// Another store that takes the image over has what was saved, and can be written.
        fn adopted_is_as(&mut self, model: &Model) {
            self.adopted.image_mut().copy_from_slice(&self.image);
            self.adopted.adopt(self.now).unwrap();
            assert_eq!(self.adopted.len(), model.len());
            for (key, (value, expires)) in model {
                let entry = Entry { key, value, expires: *expires };
                assert_eq!(self.adopted.get(key, self.now), Some(entry));
                // Where it is, elsewhere, and away, as there is room.
                let _ = self.adopted.set(&Entry { value: &[9; 700], ..entry }, self.now);
                self.adopted.remove(key, self.now);
            }
            assert_eq!(self.adopted.len(), 0);
        }

        /// What is said to be read is written again: the snapshot itself copies it in time.
        fn say_that_more_is_read(&self, slabs: usize) {
            if let Some((_, _, read)) = &self.snapshot {
                read.fetch_add(slabs * SLAB, Ordering::Release);
            }
        }

        fn bytes_are_as_the_map(&self) {
            assert!(listed(self.store.bytes(), self.now) == alive(&self.model, self.now));
        }

        fn values_are_as_the_map(&mut self) {
            for (key, (value, _)) in alive(&self.model, self.now) {
                assert_eq!(self.store.get(&key, self.now).unwrap().value, &value[..]);
            }
        }

        /// Without the snapshot, and then without any entry.
        fn end(mut self) {
            self.snapshot = None;
            self.store.saved(Vec::new(), Vec::new());
            self.bytes_are_as_the_map();
            for key in self.model.keys() {
                self.store.remove(key, self.now);
            }
            assert_eq!(self.store.len(), 0);
        }
    }

    proptest! {
        /// Other keys come and go between the steps, and the table grows.
        #[test]
        fn scan_beside_changes_meets_all_that_stay(
            stay in 0..3000_usize,
            rounds in prop::collection::vec((0..400_usize, 0..400_usize, 1..300_usize), 1..60),
        ) {
            let mut store = Store::new(16 * SLAB).unwrap();
            let set = |store: &mut Store, key: String| {
                store.set(&Entry { key: key.as_bytes(), value: b"", expires: None }, 1).unwrap();
            };
            (0..stay).for_each(|key| set(&mut store, format!("stays {key}")));
            let (mut met, mut cursor, mut rounds) = (HashSet::new(), 0, rounds.into_iter());
            loop {
                let (more, less, count) = rounds.next().unwrap_or((0, 0, 100));
                cursor = store.scan(cursor, count, 1, |key| {
                    met.insert(key.to_vec());
                });
                if cursor == 0 {
                    break;
                }
                (0..more).for_each(|key| set(&mut store, format!("goes {cursor} {key}")));
                for key in 0..less {
                    store.remove(format!("goes {cursor} {key}").as_bytes(), 1);
                }
            }
            for key in 0..stay {
                prop_assert!(met.contains(format!("stays {key}").as_bytes()), "{}", key);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

        /// Any steps, against a map; snapshots hold what the map held, however late they are read.
        #[test]
        fn steps_follow_a_map(steps in prop::collection::vec(step(), 1..300)) {
            let mut pair = Pair::new();
            steps.into_iter().for_each(|step| pair.step(step));
            pair.end();
        }
    }
}
