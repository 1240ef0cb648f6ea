//! Dumps of the key-value server, which may come from a stranger: damaged ones, and ones whose
//! damage has the right checksum.

use std::collections::BTreeMap;
use std::io::Write;

use crate::store::with_store;
use kv_store::dump::{self, Dumper};
use kv_store::store::Store;

const MAGIC: usize = 8;
const HEAD: usize = 20;

type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// A dump that is loaded is all that is there, and is the same when it is dumped and loaded again.
pub(crate) fn run(bytes: &[u8]) {
    load(bytes);
    load(&with_right_checksums(bytes));
}

fn load(bytes: &[u8]) {
    with_store(|store| {
        let mut entries = Entries::new();
        let loaded = dump::read(bytes, bytes.len() as u64, |entry| {
            store.set(entry, 0)?;
            entries.insert(entry.key.to_vec(), (entry.value.to_vec(), entry.expires));
            Ok(())
        });
        if loaded.is_ok() {
            assert_eq!(store.len(), entries.len());
            assert!(dumped(store) == entries);
        }
    });
}

fn dumped(store: &Store) -> Entries {
    let mut dumper = Dumper::new(Vec::new(), 0).expect("memory is written");
    dumper.write_all(store.bytes()).expect("memory is written");
    let (dump, count) = dumper.finish().expect("memory is written");
    let mut entries = Entries::new();
    let loaded = dump::read(&dump[..], dump.len() as u64, |entry| {
        entries.insert(entry.key.to_vec(), (entry.value.to_vec(), entry.expires));
        Ok(())
    });
    assert_eq!(loaded.expect("what was dumped can be loaded"), count);
    entries
}

/// The same blocks with the checksums that they ought to have, as far as there are blocks.
fn with_right_checksums(bytes: &[u8]) -> Vec<u8> {
    let (mut bytes, mut at) = (bytes.to_vec(), MAGIC);
    while let Some(head) = bytes.get(at..at + HEAD) {
        let len = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        let start = at + HEAD;
        let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
        let Some(entries) = end.and_then(|end| bytes.get(start..end)) else { break };
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&(at as u64).to_le_bytes());
        checksum.update(&head[..16]);
        checksum.update(entries);
        let checksum = checksum.finalize().to_le_bytes();
        bytes[at + 16..start].copy_from_slice(&checksum);
        at = start + len as usize;
    }
    bytes
}
