//! Views of a snapshot, its pieces, and several that share one.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Granule, Unsuitable, View};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};

use crate::fixture::{Check, PAGE, assert_is_plain, copied, of, of_all, words};
use crate::memory::Memory;

/// A list whose links are pointers, walked in the view while its owner breaks it.
fn view_of_a_list_rebases_its_pointers(fault_mode: FaultMode) {
    const LEN: usize = 1000;
    let memory = Memory::filled(4 * HUGE, true, 0);
    let link = |index: usize| &memory.words()[index * 7919 % (memory.words().len() - 1)];
    for index in 0..LEN {
        link(index).store(ptr::from_ref(link(index + 1)).addr() as u64, Ordering::Relaxed);
    }
    link(LEN).store(0, Ordering::Relaxed);
    let snapshot = of_all(fault_mode, &memory);
    (0..=LEN).for_each(|index| link(index).store(1, Ordering::Relaxed));
    let view = View::of(Arc::new(snapshot)).unwrap();
    let (mut at, mut count) = (ptr::from_ref(link(0)).cast::<u64>(), 0);
    loop {
        // SAFETY: the view has an aligned word there, for as long as it lives.
        let next = unsafe { view.rebase(at).unwrap().read() };
        if next == 0 {
            break;
        }
        at = ptr::with_exposed_provenance(next as usize);
        count += 1;
    }
    assert_eq!((count, view.len()), (LEN, memory.len()));
    let last = memory.start().wrapping_add(memory.len() - 4).cast::<u64>();
    assert!(matches!(view.rebase(last), Err(SnapshotError::OutOfRange { .. })));
    let before = memory.start().wrapping_sub(8).cast::<u64>();
    assert!(matches!(view.rebase(before), Err(SnapshotError::OutOfRange { .. })));
}

/// Pieces are snapshots: read in any order, one by one, while a writer runs, and each for itself.
fn split_into_pieces_reads_each_apart(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 7);
    let cuts = [
        100..HUGE + 5,
        HUGE + 5..3 * HUGE,
        3 * HUGE + PAGE..3 * HUGE + 2 * PAGE,
        4 * HUGE..8 * HUGE,
    ];
    for granule in [Granule::Huge, Granule::Small] {
        // Less than a page at both ends is in no granule, but is cut as well.
        let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(50), memory.len() - 100);
        let mut pieces = of(fault_mode, range, granule).unwrap().split(&cuts[..3]).unwrap();
        assert!(pieces.iter().map(Snapshot::len).eq(cuts[..3].iter().map(ExactSizeIterator::len)));
        memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
        let mut read = [0; 16];
        pieces[2].read_at(PAGE - 16, &mut read).unwrap();
        assert!(pieces[2].read_at(PAGE - 15, &mut read).is_err());
        let cost = pieces[0].stats();
        assert_eq!(
            (cost.granules, cost.copied_by_writers),
            (memory.len() / cost.granule_bytes, cost.granules as u64)
        );
        assert!(
            View::of(&pieces[1]).unwrap().bytes(3..11).unwrap().iter().all(|&byte| byte % 7 == 0)
        );
        // A snapshot that shares a granule with another one leaves it to that.
        for at in [2, 0, 0] {
            let piece = pieces.remove(at);
            let len = piece.len();
            let mut written = Vec::new();
            piece.write_to(&mut written).unwrap();
            assert!(
                written.len() == len
                    && written.iter().filter(|&&byte| byte != 0).all(|&byte| byte == 7)
            );
        }
        assert_is_plain(&memory);
        memory.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
    }
    // What a piece has alone is let go with it, what it shares is not. In memory that is still on huge pages.
    let memory = Memory::filled(8 * HUGE, true, 7);
    let mut pieces = of_all(fault_mode, &memory)
        .split(&[0..3 * HUGE + PAGE, 3 * HUGE + PAGE..8 * HUGE])
        .unwrap();
    drop(pieces.remove(0));
    memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
    assert_eq!(pieces[0].stats().copied_by_writers, 5);
    assert!(words(&copied(pieces.remove(0))[PAGE..]).all(|word| word == 7));
    let wrong = [[0..9, 8..10], [3..5, 5..5], [0..1, 1..memory.len() + 1], [9..10, 0..1]];
    for wrong in &wrong {
        let refused = of_all(fault_mode, &memory).split(wrong).unwrap_err();
        assert!(matches!(refused, SnapshotError::OutOfRange { .. }));
    }
    assert!(of_all(fault_mode, &memory).split(&[]).unwrap().is_empty());
    assert_is_plain(&memory);
}

/// Ranges that lie side by side share a snapshot, unless other bytes lie between them, or what lies there would
/// have to be served in place.
fn of_several_neighbours_shares_one_snapshot(fault_mode: FaultMode) {
    let memory = Memory::filled(12 * HUGE, true, 7);
    let bytes = |start: usize, end: usize| {
        ptr::slice_from_raw_parts(memory.start().wrapping_add(start).cast_const(), end - start)
    };
    let padded = 5 * HUGE + 80..5 * HUGE + 80 + 3000;
    // SAFETY: within the memory, which only this thread uses.
    unsafe { memory.start().add(padded.start).write_bytes(0, padded.len() - 16) };
    let ranges = [
        bytes(padded.end, 8 * HUGE + 100),
        bytes(100, 3 * HUGE + 5),
        bytes(3 * HUGE + 5, padded.start),
        // Another object's words lie before it.
        bytes(8 * HUGE + 150, 10 * HUGE),
        // A whole page, whatever it holds.
        bytes(10 * HUGE + 2 * PAGE, 12 * HUGE),
        bytes(11 * HUGE, 12 * HUGE),
    ];
    let expected: Vec<Vec<u8>> = ranges
        .iter()
        // SAFETY: within the memory, which only this thread uses.
        .map(|range| unsafe { (**range).to_vec() })
        .collect();
    let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(usize::MAX);
    let addresses = ranges.map(|range| {
        let start = range.cast::<u8>().addr();
        start..start + range.len()
    });
    assert_eq!(builder.neighbours(&addresses), [vec![1, 2, 0], vec![3], vec![4], vec![5]]);
    // SAFETY: no system call writes there.
    let taken = unsafe { builder.take_many(&ranges) }.unwrap();
    let share = |one: usize, other: usize| taken[one].shares_cost_with(&taken[other]);
    assert_eq!((share(1, 2), share(2, 0)), (true, fault_mode != FaultMode::InPlace));
    assert!(!share(0, 3) && !share(3, 4) && !share(4, 5) && share(5, 5));
    let cap = if share(2, 0) { 8 * HUGE } else { padded.start - 100 };
    assert_eq!(taken[1].stats().cap, cap);
    memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
    for (snapshot, expected) in taken.into_iter().zip(expected) {
        assert!(copied(snapshot) == expected);
    }
    assert_is_plain(&memory);
    // One that cannot be taken takes the others with it.
    // SAFETY: reads a number.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let vdso = ptr::slice_from_raw_parts(ptr::with_exposed_provenance(vdso), 64);
    let builder = Snapshot::builder().fault_mode(fault_mode);
    // SAFETY: no system call writes there; that of the vDSO is refused.
    let refused =
        unsafe { builder.clone().take_many(&[bytes(0, HUGE), bytes(HUGE, 4 * HUGE), vdso]) };
    assert!(matches!(refused, Err(SnapshotError::Unsuitable { reason: Unsuitable::Kernels, .. })));
    assert_is_plain(&memory);
    // SAFETY: no system call writes there.
    let refused = unsafe { builder.clone().take_many(&[bytes(0, HUGE), bytes(HUGE, HUGE)]) };
    assert!(matches!(refused, Err(SnapshotError::Empty { .. })));
    // SAFETY: there is no range.
    assert!(unsafe { builder.take_many(&[]) }.unwrap().is_empty());
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    view_of_a_list_rebases_its_pointers,
    split_into_pieces_reads_each_apart,
    of_several_neighbours_shares_one_snapshot,
];
