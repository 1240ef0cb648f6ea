//! States of words that two threads write: each state lies between the words before and after it was taken.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hugekit::Snapshot;
use hugekit::snapshot::{Changes, Epoch};

use super::states::{copied, loaded, saved, words};

/// Ends the threads that look at it when it is dropped: also if a check fails, because a scope waits for them.
#[derive(Debug)]
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writers number the words at both ends of each block, the first one first: in a snapshot the second may be behind by
/// one, never ahead, and neither is older than the word before, or newer than the word afterwards.
pub fn snapshots_keep_order(
    memory: &[AtomicU64],
    block_bytes: usize,
    rounds: usize,
    take: impl Fn() -> Snapshot,
) {
    let block_words = block_bytes / 8;
    let ends = |block: usize| (block * block_words, (block + 1) * block_words - 1);
    let (blocks, stop) = (memory.len() / block_words, AtomicBool::new(false));
    let write = |writer: usize| {
        for (number, block) in (1..).flat_map(|n| (writer..blocks).step_by(2).map(move |b| (n, b)))
        {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let (first, last) = ends(block);
            memory[first].store(number, Ordering::SeqCst);
            memory[last].store(number, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| {
        let _end = Stops(&stop);
        scope.spawn(|| write(0));
        scope.spawn(|| write(1));
        for round in 0..rounds {
            let before = loaded(memory);
            let snapshot = take();
            let after = loaded(memory);
            let mut copy = vec![0; snapshot.len()];
            match round % 2 {
                0 => snapshot.read_at(0, &mut copy).unwrap(),
                _ => copy = copied(snapshot),
            }
            let copy: Vec<u64> = words(&copy).collect();
            for (first, last) in (0..blocks).map(ends) {
                let seen = (copy[first], copy[last]);
                assert!(seen.1 <= seen.0 && seen.0 <= seen.1 + 1, "{first}: {seen:?}");
                for at in [first, last] {
                    assert!((before[at]..=after[at]).contains(&copy[at]), "{at}");
                }
            }
        }
    });
}

/// Writers count in words: each saved word lies between its values before and after the call, and no write is
/// forgotten. The result of `beside` lives as long as a round.
pub fn epochs_forget_no_write<T>(
    memory: &[AtomicU64],
    first: impl FnOnce() -> Changes,
    since: impl Fn(Epoch) -> Changes,
    beside: impl Fn(usize) -> T,
) {
    let stop = AtomicBool::new(false);
    let write = |first: usize| {
        let mut count = first;
        while !stop.load(Ordering::Relaxed) {
            memory[count.wrapping_mul(0x9e37_79b9) % memory.len()].fetch_add(1, Ordering::Relaxed);
            count += 1;
        }
    };
    thread::scope(|scope| {
        let _end = Stops(&stop);
        scope.spawn(|| write(0));
        scope.spawn(|| write(1 << 40));
        let mut image = vec![0; 8 * memory.len()];
        let mut epoch = saved(first(), &mut image);
        for round in 0..40 {
            let _beside = beside(round);
            let before = loaded(memory);
            let changes = since(epoch);
            let after = loaded(memory);
            epoch = saved(changes, &mut image);
            for ((word, least), most) in words(&image).zip(&before).zip(&after) {
                assert!((*least..=*most).contains(&word), "round {round}");
            }
        }
    });
}
