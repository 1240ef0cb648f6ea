//! What cannot be allocated is an error in figures, and takes nothing.

use std::os::fd::AsRawFd;

use hugekit::pool::{Backing, PoolError};
use hugekit::{ClearError, Pool, Threads};
use hugekit_bulk::parallel::JobError;
use hugekit_machine::Root;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::backings::{Check, FOLIOS, builder, is_zero, unscrubbed};
use crate::child::in_a_child;
use crate::fixture::states;

fn region_of_a_full_pool_is_an_error_in_figures(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let regions: Vec<_> = (0..FOLIOS).map(|_| pool.region(page).unwrap()).collect();
    assert!(matches!(pool.region(1), Err(PoolError::NoRoom { free: 0, .. })));
    let apart: Vec<_> = regions.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
    match pool.region(2 * page) {
        Err(PoolError::NoRoom { wanted, free, longest }) => {
            assert_eq!((wanted, free, longest), (2 * page, FOLIOS / 2 * page, page));
        }
        other => panic!("{other:?}"),
    }
    drop(apart);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

fn region_on_nonsense_terms_is_refused_and_takes_nothing(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    assert!(matches!(pool.region(0), Err(PoolError::NoBytes)));
    assert!(matches!(pool.region(usize::MAX), Err(PoolError::TooLarge { .. })));
    let by_nobody = pool.region_builder(page).threads(Threads::Exactly(0)).build();
    assert!(matches!(by_nobody, Err(PoolError::Populate(JobError::NoThreads))));
    drop(pool.region(page).unwrap());
    let by_nobody = pool.region_builder(FOLIOS * page).threads(Threads::Exactly(0)).build();
    let no_threads = ClearError::Job(JobError::NoThreads);
    assert!(matches!(by_nobody, Err(PoolError::Clear(error)) if error == no_threads));
    assert_eq!(states(&pool), [FOLIOS - 1, 0, 0, 1]);
    let none = builder(backing, 0).build();
    assert!(matches!(none, Err(PoolError::NoBytes)));
    let nowhere = builder(backing, 1).ladder([]).build();
    assert!(matches!(nowhere, Err(PoolError::NoTiers)));
    let upside_down = builder(backing, 1).watermarks(2, 1).build();
    assert!(matches!(upside_down, Err(PoolError::Watermarks { low: 2, high: 1 })));
    assert!(matches!(
        Pool::builder(usize::MAX).backing(backing).strict(true).build(),
        Err(PoolError::TooLarge { .. })
    ));
}

fn build_beyond_the_machine_is_an_error_in_figures(backing: Backing) {
    let pool = Pool::builder(1 << 50).backing(backing).strict(true).build();
    match (pool.unwrap_err(), backing.is_reserved()) {
        (PoolError::NotEnoughHugePages(shortage), true) => {
            assert!(shortage.total < shortage.wanted);
        }
        (PoolError::NotEnoughMemory { wanted, available }, false) => {
            assert!(available < wanted as u64);
        }
        other => panic!("{other:?}"),
    }
}

/// Sets a limit of this process, which is therefore a child.
fn limit(resource: Resource, soft: Option<u64>) {
    let limits = getrlimit(resource);
    setrlimit(resource, Rlimit { current: soft, ..limits }).unwrap();
}

fn build_beyond_the_limit_of_descriptors_is_an_error(backing: Backing) {
    let code = in_a_child(|| {
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let root = Root::at("/nonexistent"); // Reading the machine would take a descriptor, too.
        let builder = Pool::builder(1).ladder([Backing::Base]).machine(root);
        limit(Resource::Nofile, Some(next));
        let refused = matches!(builder.build(), Err(PoolError::NoDescriptor(_)));
        limit(Resource::Nofile, Some(next + 20));
        i32::from(!refused || self::builder(backing, 1).build().is_err())
    });
    assert_eq!(code, 0);
}

fn region_beyond_the_limit_of_addresses_is_an_error_and_loses_nothing(backing: Backing) {
    let code = in_a_child(|| {
        let pool = unscrubbed(backing);
        drop(pool.region(1));
        let before = states(&pool);
        limit(Resource::As, Some(1 << 20));
        let refused = matches!(pool.region(1), Err(PoolError::NotMapped { .. }));
        limit(Resource::As, getrlimit(Resource::As).maximum);
        assert_eq!(before[3], 1);
        let mut after = states(&pool);
        after.swap(1, 3); // It was cleaned before it could not be mapped.
        i32::from(!refused || after != before || pool.region(1).is_err())
    });
    assert_eq!(code, 0);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    region_of_a_full_pool_is_an_error_in_figures,
    region_on_nonsense_terms_is_refused_and_takes_nothing,
    build_beyond_the_machine_is_an_error_in_figures,
    build_beyond_the_limit_of_descriptors_is_an_error,
    region_beyond_the_limit_of_addresses_is_an_error_and_loses_nothing,
];
