//! Memory that forked children keep.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit::Pool;
use hugekit::pool::{Backing, InheritedMemory, PoolError};
use hugekit_lease::MemoryFile;

use crate::backings::{Check, FOLIOS, builder, is_zero};
use crate::child::in_a_child;

pub(crate) const CHECKS: &[Check] = &[
    ("memory_that_children_keep_is_zeroed_and_populated", made),
    ("store_of_a_child_is_seen_by_its_parent_and_its_sibling", stores),
    ("child_of_a_child_has_it_too", grandchild),
    ("child_that_drops_it_takes_it_from_no_other_process", dropped_by_a_child),
    ("child_never_sees_what_its_parent_does_after_dropping_it", dropped_by_the_parent),
    ("memory_of_another_process_is_not_inherited", adopted),
];

fn inherited(backing: Backing) -> InheritedMemory {
    builder(backing, FOLIOS).build_inherited().unwrap()
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn last(memory: &InheritedMemory) -> &AtomicU64 {
    memory.words().last().unwrap()
}

/// Whether the kernel has put pages behind all of it; not known of reserved pages that were not touched by this address.
fn is_there(memory: &InheritedMemory) -> bool {
    let mut pages = vec![0; memory.mapped_len() / rustix::param::page_size()];
    let (start, len) = (memory.as_ptr().cast(), memory.mapped_len());
    // SAFETY: mapped, and one byte is written for each page.
    let asked = unsafe { libc::mincore(start, len, pages.as_mut_ptr()) };
    asked == 0 && pages.iter().all(|page| page & 1 == 1)
}

fn made(backing: Backing) {
    let len = FOLIOS * backing.page_size() - 5;
    let builder = Pool::builder(len).backing(backing).strict(true);
    let memory = builder.build_inherited().unwrap();
    assert_eq!((memory.len(), memory.mapped_len()), (len, FOLIOS * backing.page_size()));
    assert_eq!(memory.as_ptr().addr() % backing.page_size(), 0);
    assert_eq!(
        (memory.backing_report().backing, memory.backing_report().asked),
        (backing, backing)
    );
    assert!(backing.is_reserved() || is_there(&memory));
    assert!(memory.words().iter().all(|word| load(word) == 0));
}

fn stores(backing: Backing) {
    let memory = inherited(backing);
    memory.words()[0].store(1, Ordering::Relaxed);
    let first = in_a_child(|| {
        last(&memory).store(2, Ordering::Relaxed);
        i32::from(load(&memory.words()[0]) != 1)
    });
    let second = in_a_child(|| i32::from(load(last(&memory)) != 2));
    assert_eq!((first, second, load(last(&memory))), (0, 0, 2));
}

fn grandchild(backing: Backing) {
    let memory = inherited(backing);
    let code = in_a_child(|| {
        in_a_child(|| {
            last(&memory).store(3, Ordering::Relaxed);
            0
        })
    });
    assert_eq!((code, load(last(&memory))), (0, 3));
}

fn dropped_by_a_child(backing: Backing) {
    let memory = Mutex::new(Some(inherited(backing)));
    let code = in_a_child(|| {
        let mine = memory.lock().unwrap().take().unwrap();
        last(&mine).store(4, Ordering::Relaxed);
        drop(mine);
        0
    });
    let memory = memory.into_inner().unwrap().unwrap();
    assert_eq!((code, load(last(&memory))), (0, 4));
}

/// The child waits until the parent has let go of it and filled new memory of each kind with sevens.
fn dropped_by_the_parent(backing: Backing) {
    let (memory, signal) = (inherited(backing), inherited(Backing::Base));
    memory.words().iter().for_each(|word| word.store(5, Ordering::Relaxed));
    let memory = Mutex::new(Some(memory));
    std::thread::scope(|scope| {
        let child = scope.spawn(|| {
            in_a_child(|| {
                let memory = memory.lock().unwrap().take().unwrap();
                last(&signal).store(1, Ordering::Relaxed);
                while load(&signal.words()[0]) == 0 {
                    std::thread::yield_now();
                }
                let is_as_it_was = memory.words().iter().all(|word| load(word) == 5);
                memory.words().iter().for_each(|word| word.store(6, Ordering::Relaxed));
                i32::from(!is_as_it_was)
            })
        });
        while load(last(&signal)) == 0 && !child.is_finished() {
            std::thread::yield_now();
        }
        drop(memory.lock().unwrap().take());
        let next = inherited(backing);
        assert!(next.words().iter().all(|word| load(word) == 0));
        next.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        let pool = builder(backing, FOLIOS).build().unwrap();
        let region = pool.region(pool.capacity()).unwrap();
        signal.words()[0].store(1, Ordering::Relaxed);
        assert_eq!(child.join().unwrap(), 0);
        assert!(is_zero(&region) && next.words().iter().all(|word| load(word) == 7));
    });
}

fn adopted(backing: Backing) {
    let bytes = FOLIOS * backing.page_size();
    let file = MemoryFile::create("adopted", bytes, backing).unwrap();
    // SAFETY: the file is this test's, which does not write to it.
    let builder = unsafe { Pool::builder(bytes).adopt(file.into_file()) };
    assert!(matches!(builder.build_inherited(), Err(PoolError::NotInherited)));
}
