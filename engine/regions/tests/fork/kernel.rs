//! The kernel writes to forks, holds their pages and locks them.

use std::io::{Read, Write};
use std::ops::Range;
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Region, RegionError};
use hugekit_testing::memory::Memory;
use hugekit_testing::smaps::bytes_at;
use hugekit_testing::trials::skip;
use rustix::mm::mlock;

use crate::backings::{Check, FOLIOS, is_zero};
use crate::child::in_a_child;
use crate::fixture::{each, granules, is_painted, paint, pool};
use crate::permitted::fault_modes;
use crate::sharing::reads_share;

/// A fork group whose slots are in every state there is is made ready by all of its regions at the same time: each
/// has its own bytes, and the kernel may write them.
fn prepare_write_in_any_state_lets_the_kernel_write(backing: Backing) {
    each(backing, 4, |_, mut region, fork, granule| {
        let mut forks = [(); 3].map(|()| fork(&region));
        let mut models = [(); 4].map(|()| region.to_vec());
        let mut write = |which: usize, bytes: &mut [u8], slots: std::iter::StepBy<Range<usize>>| {
            for slot in slots {
                bytes[slot * granule] = !bytes[slot * granule];
                models[which][slot * granule] = bytes[slot * granule];
            }
        };
        let slots = region.len() / granule;
        let half = region.len() / 2;
        // The first has copies of its own here and there, the second has half of it mapped, and the parent's
        // writes leave copies that all of them show.
        write(1, &mut forks[0], (0..slots).step_by(3));
        assert!(is_painted(&forks[1][..half], 1));
        write(0, &mut region, (1..slots).step_by(5));
        let [first, second, third] = forks;
        let mut regions = [region, first, second, third];
        thread::scope(|scope| {
            for region in &regions {
                scope.spawn(|| region.prepare_write(0..region.len()).unwrap());
            }
        });
        for (region, model) in regions.iter().zip(&models) {
            assert!(**region == **model);
            assert_eq!(region.shared_bytes().unwrap(), 0);
        }
        let mut zeroes = std::fs::File::open("/dev/zero").unwrap();
        for which in 0..regions.len() {
            zeroes.read_exact(&mut regions[which]).unwrap();
            assert!(is_zero(&regions[which]));
            for (region, model) in regions.iter().zip(&models).skip(which + 1) {
                assert!(**region == **model);
            }
        }
    });
}

/// What a ring holds goes on in the parent's pages: the kernel writes there by a reference of its own.
fn fork_of_pinned_pages_leaves_them_to_the_parent(backing: Backing) {
    for fault_mode in fault_modes() {
        let pool = pool(backing, 3);
        let page = backing.page_size();
        let region = pool.region(FOLIOS * page).unwrap().share();
        region.write_at(page + 5, b"before").unwrap();
        let pin = region.pin(page..page + 100).unwrap();
        assert_eq!((pin.range(), pin.region().len()), (page..page + 100, region.len()));
        let how = || region.fork_builder().fault_mode(fault_mode).build().unwrap();
        let child = how();
        // Not by a fault: nothing holds the write back.
        let (mut source, mut sink) = std::io::pipe().unwrap();
        sink.write_all(b"behind").unwrap();
        // SAFETY: bytes of the region, which no thread accesses meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(page + 5), 6) };
        assert_eq!(source.read(bytes).unwrap(), 6);
        assert_eq!(&child[page + 5..page + 11], b"before");
        let second = how();
        assert_eq!(&second[page + 5..page + 11], b"behind");
        drop(pin);
        drop(second);
        let third = how();
        assert!(third.shared_bytes().unwrap() > child.shared_bytes().unwrap());
        assert!(matches!(region.pin(0..region.len() + 1), Err(RegionError::OutOfRange { .. })));
    }
}

/// Whether this user may lock so many bytes.
fn may_lock(len: usize) -> rustix::io::Result<()> {
    let memory = Memory::untouched(len, false);
    // SAFETY: memory of our own, which is unmapped with its locks.
    unsafe { mlock(memory.start().cast(), len) }
}

/// A process that locks all it maps has pages mapped by the kernel that no thread touched: none of them may
/// let a write through.
fn fork_under_mlockall_keeps_each_sides_bytes(backing: Backing) {
    if let Err(errno) = may_lock(4 * FOLIOS * backing.page_size()) {
        skip(format!("this user may not lock the memory (ulimit -l): {errno}"));
    }
    for fault_mode in fault_modes() {
        let code = in_a_child(|| {
            let pool = pool(backing, 4);
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let granule = granules(backing)[0];
            let how = |region: &Region| {
                region.fork_builder().granule(granule).fault_mode(fault_mode).build().unwrap()
            };
            let early = how(&region);
            // SAFETY: changes no byte.
            assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
            let mut child = how(&region);
            paint(&mut child[..2 * granule], 2);
            let mut grandchild = how(&child);
            paint(&mut grandchild, 3);
            region[granule] = 9;
            let fine = is_painted(&child[..2 * granule], 2)
                && is_painted(&grandchild, 3)
                && is_painted(&early, 1)
                && child[3 * granule..] == early[3 * granule..]
                && is_painted(&region[..granule], 1);
            i32::from(!fine)
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

/// Bytes of a region that huge pages map.
fn mapped_by_huge_pages(region: &Region) -> usize {
    let start = region.as_ptr().expose_provenance();
    bytes_at(&(start..start + region.len()), "ShmemPmdMapped") as usize
}

/// Protecting by marks would take every huge page apart, and fault once for each of its base pages afterwards.
fn fork_leaves_its_parent_on_huge_pages(backing: Backing) {
    if backing != Backing::Thp {
        return;
    }
    // Where threads serve, what was taken out is shown to readers with marks, which older kernels cannot.
    let whole = |mode: &FaultMode| *mode == FaultMode::InPlace || reads_share();
    for fault_mode in fault_modes().into_iter().filter(whole) {
        let pool = pool(backing, 3);
        // The fork lies where the first was: behind the region, as its frames do.
        let mut regions = [(); 2].map(|()| pool.region(FOLIOS * backing.page_size()).unwrap());
        regions.sort_by_key(|region| region.as_ptr().addr());
        let [mut region, behind] = regions;
        drop(behind);
        paint(&mut region, 1);
        if mapped_by_huge_pages(&region) < region.len() {
            skip("the kernel found too few huge pages");
        }
        let fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
        assert!(is_painted(&region, 1));
        if fault_mode == FaultMode::InPlace {
            assert_eq!(mapped_by_huge_pages(&region), region.len(), "read");
        }
        paint(&mut region, 2);
        assert!(is_painted(&fork, 1));
        assert_eq!(mapped_by_huge_pages(&region), region.len(), "written, {fault_mode:?}");
        drop(fork);
        let fork =
            hugekit::Snapshot::of_region(region.fork_builder().fault_mode(fault_mode)).unwrap();
        // What a snapshot has read may be written without a fault.
        let mut bytes = vec![0; region.len()];
        fork.copy_to(&mut bytes).unwrap();
        assert!(is_painted(&bytes, 2) && is_painted(&region, 2));
        assert_eq!(
            mapped_by_huge_pages(&region),
            region.len(),
            "read by a snapshot, {fault_mode:?}"
        );
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    fork_leaves_its_parent_on_huge_pages,
    prepare_write_in_any_state_lets_the_kernel_write,
    fork_of_pinned_pages_leaves_them_to_the_parent,
    fork_under_mlockall_keeps_each_sides_bytes,
];
