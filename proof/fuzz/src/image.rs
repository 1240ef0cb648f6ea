//! Images of the key-value server's memory, of which any bytes may be others: the sums of deltas show
//! accidents, and those of an attacker are right.

use std::collections::BTreeMap;

use crate::store::with_store;
use kv_store::entry::Entry;
use kv_store::store::Store;

/// Blocks of four sizes, the last one longer than a huge page.
const ENTRIES: [(usize, usize); 4] = [(40, 30), (3, 300_000), (20, 5000), (1, (2 << 20) + 5)];

/// A change: where, in one of these parts, and the byte that is there then.
const CHANGE: usize = 5;

/// An image is adopted or refused; one that is adopted is a store like any other.
pub(crate) fn run(bytes: &[u8]) {
    with_store(|store| {
        let entries = fill(store);
        let places: Vec<usize> = entries.iter().flat_map(|key| places(store, key)).collect();
        for change in bytes.chunks_exact(CHANGE) {
            let at = u32::from_le_bytes(change[..4].try_into().expect("four bytes")) as usize;
            let image = store.image_mut();
            // Mostly heads of entries and their buckets.
            let at = match at % 4 {
                0 | 1 => places[(at / 4) % places.len()],
                2 => (at / 4) % 64,
                _ => (at / 4) % image.len(),
            };
            image[at] = change[4];
        }
        match store.adopt() {
            Ok(()) => is_a_store(store),
            Err(_) => assert_eq!((store.len, store.memory().0), (0, 0)),
        }
    });
}

fn fill(store: &mut Store) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for (count, len) in ENTRIES {
        for number in 0..count {
            let (key, value) = (format!("{len}:{number}").into_bytes(), vec![number as u8; len]);
            let entry = Entry { key: &key, value: &value, expires: None };
            // The largest may find no room.
            if store.set(&entry).is_some() {
                keys.push(key);
            }
        }
    }
    keys
}

/// The bytes of an entry's head, and of the offset that leads to it.
fn places(store: &Store, key: &[u8]) -> Vec<usize> {
    let bytes = store.bytes();
    let is_key = |at: &usize| bytes[*at + 24..].starts_with(key);
    let Some(at) = (0..bytes.len() - 64).step_by(64).find(is_key) else { return vec![0] };
    let mut buckets = (4096..4096 + bytes.len() / 64).step_by(8);
    // The first of its bucket, or not.
    let link = buckets.find(|link| bytes[*link..].starts_with(&at.to_ne_bytes())).unwrap_or(at);
    (at..at + 24).chain(link..link + 8).collect()
}

/// The keys that a scan finds are there, can be set, and go.
fn is_a_store(store: &mut Store) {
    let mut entries = BTreeMap::new();
    let keys: Vec<_> = store.scan(0, usize::MAX).0.iter().map(|key| key.to_vec()).collect();
    for key in keys {
        let entry = store.get(&key).expect("a key that a scan finds");
        let (value, expires) = (entry.value.to_vec(), entry.expires);
        entries.insert(key, (value, expires));
    }
    assert_eq!(store.len, entries.len());
    for (key, (value, expires)) in &entries {
        let entry = Entry { key, value, expires: *expires };
        assert_eq!(store.get(key), Some(entry));
        let beside = [&key[..], b"'"].concat();
        if !entries.contains_key(&beside) && store.set(&Entry { key: &beside, ..entry }).is_some() {
            assert!(store.remove(&beside));
        }
        let _ = store.set(&Entry { value: &[1; 300], ..entry });
    }
    for key in entries.keys() {
        assert!(store.remove(key));
    }
    assert_eq!((store.len, store.memory().0), (0, 0));
}
