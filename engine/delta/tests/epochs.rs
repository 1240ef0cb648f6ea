//! A chain of what epochs of real memory have seen change.
#![allow(unsafe_code)]

use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot};
use hugekit_delta::{BLOCK, Chain, apply};
use hugekit_testing::trials::skipped;

#[test]
fn chain_of_epochs_holds_blocks_that_have_changed_and_gives_the_last_state() {
    let mut heap = vec![1_u8; 4 * HUGE + 100];
    let mut chain = Chain::new(heap.len() as u64);
    let mut deltas = Vec::new();
    // SAFETY: the heap outlives the epochs, no thread blocks SIGBUS, and no system call writes there.
    let taken = unsafe { Snapshot::builder().first_epoch(&raw const *heap) };
    let mut changes = match taken {
        Ok(changes) => changes,
        // Where writes cannot be served, there are no epochs.
        Err(error) => return skipped(error),
    };
    for round in 0..4 {
        let delta = tempfile::NamedTempFile::new().unwrap();
        let mut saving = chain.save_changes(delta.as_file()).unwrap();
        let epoch = changes.deliver(|offset, bytes| saving.put(offset as u64, bytes)).unwrap();
        let saved = saving.finish().unwrap();
        assert_eq!(saved.is_full, round == 0);
        // Two, and those that are cut where granules begin and end: an allocation begins anywhere.
        assert!(round == 0 || saved.changed <= 10 * BLOCK as u64, "{saved:?}");
        deltas.push(delta);
        heap[round * HUGE + 5] = 9;
        heap[3 * HUGE + round] += 1;
        // SAFETY: the heap outlives the epochs, no thread blocks SIGBUS, and no system call writes there.
        changes = unsafe { Snapshot::builder().since(epoch) }.unwrap();
    }
    let last = tempfile::NamedTempFile::new().unwrap();
    let mut saving = chain.save_changes(last.as_file()).unwrap();
    drop(changes.deliver(|offset, bytes| saving.put(offset as u64, bytes)).unwrap());
    saving.finish().unwrap();
    deltas.push(last);
    let mut restored = vec![0; heap.len()];
    let mut state = None;
    for delta in deltas {
        let mut delta = delta.reopen().unwrap();
        state = Some(apply(&mut restored, state, &mut delta).unwrap());
    }
    assert!(restored == heap);
}
