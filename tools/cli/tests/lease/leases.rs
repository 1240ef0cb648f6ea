//! What a client gets.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use hugekit::pool::{Backing, Pool, PoolError};
use hugekit_lease::MemoryFile;

use super::daemon::{Daemon, PATIENCE};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("a_lease_is_zeroes_of_one_length", zeroes),
    ("what_was_leased_is_never_leased_again", never_again),
    ("the_broker_keeps_nothing_of_what_is_leased", nothing_kept),
    ("a_pool_is_made_of_a_lease", pool),
    ("a_client_that_waits_is_served_when_a_unit_is_ready", waits),
    ("every_client_that_waits_is_served", all_served),
];

fn zeroes(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let lease = daemon.ask(Duration::ZERO).unwrap();
    assert_eq!(lease.bytes(), UNIT);
    let mut file = fs::File::from(lease.into_file());
    let found = file.metadata().unwrap();
    assert_eq!((found.len(), found.blocks() * 512), (UNIT as u64, UNIT as u64));
    assert_eq!(found.mode() & 0o777, 0o600);
    for len in [0, 2 * UNIT as u64] {
        assert!(file.set_len(len).is_err());
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == UNIT && bytes.iter().all(|&byte| byte == 0));
}

fn never_again(backing: Backing) {
    let daemon = Daemon::new(backing, 2, &[]);
    let mut seen = Vec::new();
    for _ in 0..8 {
        let lease = daemon.ask(PATIENCE).unwrap();
        let pool = Pool::builder(UNIT).lease(lease).build().unwrap();
        let mut region = pool.region(UNIT).unwrap();
        assert!(region.iter().all(|&byte| byte == 0));
        region.fill(7);
        seen.push(region);
    }
    drop(seen);
    daemon.until(|status| status.leases == 0 && status.ready == 2);
    for _ in 0..4 {
        let pool = Pool::builder(UNIT).broker(daemon.socket()).build().unwrap();
        assert!(pool.region(UNIT).unwrap().iter().all(|&byte| byte == 0));
    }
}

fn nothing_kept(backing: Backing) {
    let daemon = Daemon::new(backing, 2, &[]);
    let is_unit = |link: &String| link.contains("hugekit:lease");
    let kept = || daemon.descriptors().iter().filter(|link| is_unit(link)).count();
    assert_eq!(kept(), 2);
    let leases: Vec<_> = (0..3).map(|_| daemon.ask(PATIENCE).unwrap()).collect();
    daemon.until(|status| status.ready == 2 && status.filling == 0);
    assert_eq!(kept(), 2);
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    assert!(!maps.contains("hugekit:lease"), "{maps}");
    drop(leases);
}

fn pool(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let builder = Pool::builder(UNIT).broker(daemon.socket());
    let pool = builder.build().unwrap();
    assert_eq!(pool.backing().is_reserved(), backing.is_reserved());
    assert_eq!(pool.stats().unwrap().clean * pool.page_size(), UNIT);
    let mut region = pool.region(UNIT).unwrap();
    assert!(region.iter().all(|&byte| byte == 0));
    region[UNIT - 1] = 7;
    drop(region);
    assert!(pool.region(UNIT).unwrap().iter().all(|&byte| byte == 0));
    // Another build is another lease.
    let other = builder.build().unwrap();
    assert!(other.region(UNIT).unwrap().iter().all(|&byte| byte == 0));
    let wrong = Pool::builder(UNIT / 2).broker(daemon.socket()).build();
    assert!(matches!(wrong, Err(PoolError::Lease(_))));
    drop((pool, other));
    daemon.until(|status| status.leases == 0);
    // A lease that was taken out of its pool's hands is a file like any other.
    let mut file = fs::File::from(daemon.ask(PATIENCE).unwrap().into_file());
    file.seek(SeekFrom::Start(5)).unwrap();
    if !backing.is_reserved() {
        file.write_all(&[1]).unwrap();
    }
    MemoryFile::check(file.into()).unwrap();
}

fn waits(backing: Backing) {
    let daemon = Daemon::new(backing, 0, &[]);
    for _ in 0..3 {
        let lease = daemon.ask(PATIENCE).unwrap();
        assert_eq!(lease.bytes(), UNIT);
    }
}

fn all_served(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    std::thread::scope(|scope| {
        let asks: Vec<_> =
            (0..6).map(|_| scope.spawn(|| daemon.ask(PATIENCE).unwrap().bytes())).collect();
        for ask in asks {
            assert_eq!(ask.join().unwrap(), UNIT);
        }
    });
    daemon.until(|status| status.leases == 0 && status.given == 6);
}
