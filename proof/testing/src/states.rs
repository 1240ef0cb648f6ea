//! States of memory that follow each other.
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit::snapshot::{Changes, Epoch};
use hugekit::{Snapshot, SnapshotError};

/// Puts what has changed into an image of the state before. Returns the epoch that begins with this state.
pub fn try_save(changes: Changes, image: &mut [u8]) -> Result<Epoch, SnapshotError> {
    changes.deliver(|offset, bytes| {
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    })
}

/// Does the same as [`try_save`], for a state that can be saved.
pub fn saved(changes: Changes, image: &mut [u8]) -> Epoch {
    try_save(changes, image).unwrap()
}

pub fn copied(snapshot: Snapshot) -> Vec<u8> {
    let mut copy = vec![0; snapshot.len()];
    snapshot.copy_to(&mut copy).unwrap();
    copy
}

pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
}

pub fn loaded(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::SeqCst)).collect()
}
