//! Pools of memory that was made elsewhere.

use std::os::fd::OwnedFd;

use hugekit::pool::{Backing, PoolError, PoolStats};
use hugekit::{ErrorKind, Pool, PopulateOptions};
use hugekit_lease::{LeaseError, MemoryFile, Unfit};

use crate::backings::{Check, FOLIOS, is_zero};

pub(crate) const CHECKS: &[Check] = &[
    ("adopt_takes_what_is_populated_for_clean", populated),
    ("adopt_populates_what_is_not_there", holes),
    ("adopt_of_another_length_is_refused", length),
    ("adopt_of_what_is_no_memory_of_one_length_is_refused", unfit),
    ("adopt_makes_one_pool", once),
];

fn bytes(backing: Backing) -> usize {
    FOLIOS * backing.page_size().max(hugekit::HUGE_PAGE_BYTES)
}

fn file(backing: Backing) -> MemoryFile {
    MemoryFile::create("adopted", bytes(backing), backing).unwrap()
}

fn adopt(capacity: usize, file: impl Into<OwnedFd>) -> Result<Pool, PoolError> {
    // SAFETY: the file is this test's, which does not write to it.
    unsafe { Pool::builder(capacity).adopt(file.into()).scrub_threads(0).build() }
}

fn populated(backing: Backing) {
    let file = file(backing);
    file.populate(&PopulateOptions::new(), None).unwrap();
    let pool = adopt(bytes(backing), file.into_file()).unwrap();
    assert_eq!(pool.backing().is_reserved(), backing.is_reserved());
    let stats = pool.stats().unwrap();
    assert_eq!((stats.clean * pool.page_size(), stats.holes), (bytes(backing), 0));
    for _ in 0..2 {
        let mut region = pool.region(bytes(backing)).unwrap();
        assert!(is_zero(&region));
        region.fill(7);
    }
    assert_eq!(pool.stats().unwrap().dirty * pool.page_size(), bytes(backing));
}

fn holes(backing: Backing) {
    for on_allocation in [false, true] {
        // SAFETY: the file is new, and no other process or mapping has it.
        let builder = unsafe { Pool::builder(bytes(backing)).adopt(file(backing).into_file()) };
        let pool = builder.populate_on_allocation(on_allocation).build().unwrap();
        let PoolStats { holes, clean, .. } = pool.stats().unwrap();
        let (left, other) = if on_allocation { (holes, clean) } else { (clean, holes) };
        assert_eq!((left * pool.page_size(), other), (bytes(backing), 0));
        assert!(is_zero(&pool.region(bytes(backing)).unwrap()));
    }
}

fn length(backing: Backing) {
    for wanted in [1, bytes(backing) / 2, bytes(backing) * 2] {
        let refused = adopt(wanted, file(backing).into_file()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        match refused {
            PoolError::Lease(LeaseError::Unfit(Unfit::Other { bytes: said, .. })) => {
                assert_eq!(said, bytes(backing));
            }
            other => panic!("{other}"),
        }
    }
}

fn unfit(backing: Backing) {
    let refused = |file: OwnedFd| match adopt(bytes(backing), file) {
        Err(PoolError::Lease(LeaseError::Unfit(unfit))) => unfit,
        other => panic!("{other:?}"),
    };
    // Not a file of any disk: where the root is in memory, as in an initramfs, files have seals.
    let plain = std::fs::File::open("/proc/version").unwrap();
    assert_eq!(refused(plain.into()), Unfit::NoMemoryFile);
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING);
    let unsealed = unsealed.unwrap();
    rustix::fs::ftruncate(&unsealed, bytes(backing) as u64).unwrap();
    assert_eq!(refused(unsealed), Unfit::NotSealed);
}

fn once(backing: Backing) {
    // SAFETY: the file is new, and no other process or mapping has it.
    let builder = unsafe { Pool::builder(bytes(backing)).adopt(file(backing).into_file()) };
    let again = builder.clone();
    builder.build().unwrap();
    assert!(matches!(again.build(), Err(PoolError::Taken)));
}
