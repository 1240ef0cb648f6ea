//! Images of the key-value server's memory, of which any bytes may be others: the sums of deltas show accidents, and a
//! stranger's are right.

use std::collections::BTreeMap;
use std::io::Write;

use crate::store::with_store;
use kv_store::dump::{self, Dumper};
use kv_store::slabs::{PAGE, SLAB};
use kv_store::store::{Entry, Store};

/// Three sizes of slots, one of them full, and an entry of two slabs.
const ENTRIES: [(usize, usize); 4] = [(40, 30), (3, 900_000), (20, 5000), (1, SLAB + 5)];

/// A change: where, in one of these parts, and what is there then.
const CHANGE: usize = 5;

/// An image is taken over or refused; one that is taken over is a store like any other.
pub(crate) fn run(bytes: &[u8]) {
    with_store(|store| {
        fill(store);
        let high = store.bytes().len();
        for change in bytes.chunks_exact(CHANGE) {
            let at = u32::from_le_bytes(change[..4].try_into().expect("four bytes")) as usize;
            let image = store.image_mut();
            // Mostly pages, and heads of entries.
            let at = match at % 4 {
                0 | 1 => (at / 4) % ((high / SLAB + 2) * PAGE),
                2 => (at / 4) % (high / 64) * 64 + (at / 1024) % 16,
                _ => (at / 4) % image.len(),
            };
            image[at] = change[4];
        }
        match store.adopt(0) {
            Ok(_) => it_is_a_store(store),
            Err(_) => assert_eq!((store.len(), store.memory().0), (0, 0)),
        }
    });
}

fn fill(store: &mut Store) {
    for (count, len) in ENTRIES {
        for number in 0..count {
            let (key, value) = (format!("{len}:{number}"), vec![number as u8; len]);
            let entry = Entry { key: key.as_bytes(), value: &value, expires: None };
            // A few MiB: the largest may find no room.
            let _ = store.set(&entry, 0);
        }
    }
}

/// What is listed is found, can be replaced, and goes.
fn it_is_a_store(store: &mut Store) {
    let mut dumper = Dumper::new(Vec::new(), 0).expect("memory is written");
    dumper.write_all(store.bytes()).expect("memory is written");
    let (listed, count) = dumper.finish().expect("memory is written");
    assert_eq!(store.len() as u64, count);
    let mut entries = BTreeMap::new();
    let read = dump::read(&listed[..], listed.len() as u64, |entry| {
        entries.insert(entry.key.to_vec(), (entry.value.to_vec(), entry.expires));
        Ok(())
    });
    assert_eq!(read.expect("what was dumped can be loaded"), entries.len() as u64);
    for (key, (value, expires)) in &entries {
        let entry = Entry { key, value, expires: *expires };
        assert_eq!(store.get(key, 0), Some(entry));
        // Of the same size elsewhere, and of another one.
        let beside = [&key[..], b"'"].concat();
        if !entries.contains_key(&beside) && store.set(&Entry { key: &beside, ..entry }, 0).is_ok()
        {
            assert!(store.remove(&beside, 0));
        }
        let _ = store.set(&Entry { value: &[1; 300], ..entry }, 0);
    }
    for key in entries.keys() {
        assert!(store.remove(key, 0));
    }
    assert_eq!(store.len(), 0);
}
