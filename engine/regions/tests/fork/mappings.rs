//! What forks cost in mappings, and what they do where mappings are few or none is left.

use hugekit::Region;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::backings::{Check, FOLIOS, builder, is_zero};
use crate::child::in_a_child;
use crate::fixture::{granules, is_painted, paint, pool};
use crate::permitted::fault_modes;

/// Mappings of this process that have some of a region: the kernel may join the first or the last with a neighbour's.
fn mappings(region: &Region) -> usize {
    let (start, end) = (region.as_ptr().addr(), region.as_ptr().addr() + region.mapped_len());
    let lies_in = |line: &&str| {
        let (range, _) = line.split_once(' ').unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        address(first) < end && start < address(last)
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(lies_in).count()
}

/// Where forks may cost no more mappings, a region copies what it shares and is one mapping again.
fn fork_beyond_max_vmas_becomes_one_mapping(backing: Backing) {
    for fault_mode in fault_modes() {
        let pool = pool(backing, 2);
        let granule = *granules(backing).first().unwrap();
        let region = pool.region(FOLIOS * backing.page_size()).unwrap();
        let how = region.fork_builder().granule(granule).fault_mode(fault_mode).max_vmas(4);
        let mut child = how.build().unwrap();
        child[granule] = 1;
        child[3 * granule] = 3;
        assert_eq!(mappings(&child), 5);
        assert!(child.shared_bytes().unwrap() > 0);
        child[5 * granule] = 5;
        assert_eq!(mappings(&child), 1);
        assert_eq!(child.shared_bytes().unwrap(), 0);
        let written = child.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let written: Vec<_> = written.map(|(at, byte)| (at, *byte)).collect();
        assert_eq!(written, [1_u8, 3, 5].map(|slot| (usize::from(slot) * granule, slot)));
        assert!(is_zero(&region));
    }
}

/// A region whose frames are fragmented is brought together before it is forked, where mappings are few:
/// into its own place if it has all of that, else into a new one.
fn fork_of_a_scattered_region_brings_it_together(backing: Backing) {
    for fault_mode in fault_modes() {
        let pool = pool(backing, 3);
        let (page, granule) = (backing.page_size(), backing.page_size());
        let mut region = pool.region(FOLIOS * page).unwrap();
        paint(&mut region, 1);
        let how = |region: &Region| {
            let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
            fork.max_vmas(8).build()
        };
        let mut child = how(&region).unwrap();
        for slot in [1, 3, 5] {
            let byte = child[slot * page + 1];
            child[slot * page] = byte;
        }
        assert_eq!(mappings(&child), 7);
        // In its own place.
        let grandchild = how(&child).unwrap();
        assert_eq!((mappings(&child), mappings(&grandchild)), (1, 1));
        assert_eq!(child.shared_bytes().unwrap(), child.len());
        assert_eq!(region.shared_bytes().unwrap(), 0);
        drop(grandchild);
        drop(child);
        // In a new one, because half of its own is the pool's again.
        let mut child = how(&region).unwrap();
        for slot in [1, 3, 5] {
            let byte = child[slot * page + 1];
            child[slot * page] = byte;
        }
        drop(region);
        assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
        let shared = child.share();
        let pin = shared.pin(0..1).unwrap();
        let refused = shared.fork();
        assert!(matches!(refused, Err(ForkError::Mappings { .. })), "{refused:?}");
        drop(pin);
        // SAFETY: no other thread uses it.
        let child = unsafe { shared.into_exclusive() }.unwrap();
        let grandchild = how(&child).unwrap();
        assert_eq!((mappings(&child), mappings(&grandchild)), (1, 1));
        assert!(is_painted(&child, 1) && is_painted(&grandchild, 1));
        assert_eq!(pool.stats().unwrap().in_use, 2 * FOLIOS);
    }
}

/// Neighbours that were written are one mapping again, whatever the order.
fn write_to_neighbouring_granules_leaves_one_mapping(backing: Backing) {
    const SLOTS: usize = 64;
    let granule = granules(backing)[0];
    let folios = (SLOTS * granule).div_ceil(backing.page_size());
    for step in [1, 5, 27] {
        for fault_mode in fault_modes() {
            let Ok(pool) = builder(backing, 2 * folios).scrub_threads(0).build() else { return };
            let region = pool.region(folios * backing.page_size()).unwrap();
            let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
            let mut child = fork.build().unwrap();
            for index in 0..SLOTS {
                let slot = index * step % SLOTS;
                child[slot * granule] = slot as u8 + 1;
            }
            // A handler thread may still be at the last one.
            child.populate(0..child.len()).unwrap();
            assert_eq!(mappings(&child), 1, "{step}");
            assert_eq!(child.shared_bytes().unwrap(), 0);
            let written =
                |(slot, bytes): (usize, &[u8])| bytes[0] == slot as u8 + 1 && is_zero(&bytes[1..]);
            assert!(child.chunks(granule).enumerate().all(written));
            assert!(is_zero(&region));
        }
    }
}

/// A process that has no mapping left can still write its forks, and cannot make more of them.
fn write_without_a_mapping_left_goes_on(backing: Backing) {
    for fault_mode in fault_modes() {
        let code = in_a_child(|| {
            let pool = pool(backing, 3);
            let granule = granules(backing)[0];
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let how = || region.fork_builder().granule(granule).fault_mode(fault_mode).build();
            let mut child = how().unwrap();
            child[granule] = 9;
            // Neighbours with different rights never become one.
            let prots = [ProtFlags::empty(), ProtFlags::READ];
            let use_all = || {
                let map = |&count: &usize| {
                    let (nowhere, prot) = (std::ptr::null_mut(), prots[count % 2]);
                    // SAFETY: a new mapping, which no thread uses.
                    unsafe { mmap_anonymous(nowhere, 4096, prot, MapFlags::PRIVATE) }.is_ok()
                };
                (0..).take_while(map).count()
            };
            let used = use_all();
            child[3 * granule] = 7;
            let seen = (child[granule], child[3 * granule], child[3 * granule + 1]);
            let expected = (9, 7, region[3 * granule + 1]);
            use_all();
            let refused = matches!(how(), Err(ForkError::NotMapped { .. }));
            i32::from(seen != expected) + 2 * i32::from(!refused) + 4 * i32::from(used < 1000)
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    fork_beyond_max_vmas_becomes_one_mapping,
    fork_of_a_scattered_region_brings_it_together,
    write_to_neighbouring_granules_leaves_one_mapping,
    write_without_a_mapping_left_goes_on,
];
