//! The `Display` of an error leaves its source out, so that a chain of errors says everything once.

use std::any::type_name;
use std::collections::BTreeSet;
use std::error::Error;
use std::io;

use hugekit::image::ImageError;
use hugekit::pool::FaultError;
use hugekit::region::ForkError;
use hugekit::{
    ClearError, CopyError, HeapShortage, HintError, JobError, PoolError, PopulateError,
    RegionError, SnapshotError, error_chain, system_error,
};
use hugekit_lease::{LeaseError, Unfit};

/// An error that has a source, or is one that is passed on.
struct Sample {
    /// Such as `PoolError::Kernel`.
    variant: String,
    error: Box<dyn Error>,
}

impl Sample {
    fn new<E: Error + 'static>(error: E) -> Self {
        let kind = type_name::<E>().rsplit("::").next().unwrap();
        let debug = format!("{error:?}");
        let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        Self { variant: format!("{kind}::{variant}"), error: Box::new(error) }
    }
}

fn answer() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

fn hint() -> HintError {
    HintError::TargetOutside { target: 2, len: 1 }
}

fn fault() -> FaultError {
    FaultError::Kernel { call: "userfaultfd", source: answer() }
}

fn pool() -> PoolError {
    PoolError::Kernel { call: "mmap", source: answer() }
}

fn of_jobs() -> Vec<Sample> {
    vec![
        Sample::new(ClearError::Hint(hint())),
        Sample::new(ClearError::Job(JobError::NoThreads)),
        Sample::new(CopyError::Hint(hint())),
        Sample::new(CopyError::Job(JobError::NoThreads)),
    ]
}

fn of_pools() -> Vec<Sample> {
    let socket = "/run/broker".into();
    let path = "/proc/self/maps".into();
    vec![
        Sample::new(hugekit_machine::Error::Unreadable { path, source: answer() }),
        Sample::new(FaultError::NotStarted(answer())),
        Sample::new(fault()),
        Sample::new(LeaseError::NoBroker { socket, source: answer() }),
        Sample::new(LeaseError::Unfit(Unfit::NotSealed)),
        Sample::new(LeaseError::Populate(JobError::NoThreads)),
        Sample::new(LeaseError::Heap(HeapShortage)),
        Sample::new(LeaseError::Kernel { call: "mmap", source: answer() }),
        Sample::new(PoolError::Populate(JobError::NoThreads)),
        Sample::new(PoolError::Clear(ClearError::Hint(hint()))),
        Sample::new(PoolError::NoDescriptor(answer())),
        Sample::new(PoolError::NotMapped { bytes: 1, source: answer() }),
        Sample::new(PoolError::NodePolicy(answer())),
        Sample::new(PoolError::Lease(LeaseError::Kernel { call: "mmap", source: answer() })),
        Sample::new(PoolError::Fault(fault())),
        Sample::new(PoolError::Heap(HeapShortage)),
        Sample::new(pool()),
    ]
}

fn of_regions() -> Vec<Sample> {
    vec![
        Sample::new(RegionError::Populate(JobError::NoThreads)),
        Sample::new(RegionError::Clear(ClearError::Hint(hint()))),
        Sample::new(RegionError::Copy(PopulateError::OutOfMemory)),
        Sample::new(RegionError::Heap(HeapShortage)),
        Sample::new(ForkError::Pool(pool())),
        Sample::new(ForkError::Fault(fault())),
        Sample::new(ForkError::NotMapped { mappings: 1, source: answer() }),
        Sample::new(ForkError::NotReady(JobError::NoThreads)),
        Sample::new(ForkError::Copy(PopulateError::OutOfMemory)),
        Sample::new(ForkError::Kept(answer())),
        Sample::new(ForkError::Heap(HeapShortage)),
        Sample::new(ForkError::Kernel { call: "mmap", source: answer() }),
    ]
}

fn of_snapshots() -> Vec<Sample> {
    let path = "/proc/self/maps".into();
    let machine = hugekit_machine::Error::Unreadable { path, source: answer() };
    vec![
        Sample::new(SnapshotError::Fault(fault())),
        Sample::new(SnapshotError::Memory(pool())),
        Sample::new(SnapshotError::Fork(ForkError::Pool(pool()))),
        Sample::new(SnapshotError::Machine(machine)),
        Sample::new(SnapshotError::NotStarted(answer())),
        Sample::new(SnapshotError::Heap(HeapShortage)),
        Sample::new(SnapshotError::Kernel { call: "mmap", source: answer() }),
        Sample::new(SnapshotError::NoRoom { bytes: 1, source: answer() }),
        Sample::new(SnapshotError::Write { written: 0, source: answer() }),
    ]
}

fn of_images() -> Vec<Sample> {
    vec![
        Sample::new(ImageError::Read { nth: 0, at: 0, source: answer() }),
        Sample::new(ImageError::Populate(PopulateError::OutOfMemory)),
        Sample::new(ImageError::Broker(LeaseError::Kernel { call: "mmap", source: answer() })),
        Sample::new(ImageError::Heap(HeapShortage)),
        Sample::new(ImageError::Kernel { call: "mmap", source: answer() }),
    ]
}

fn samples() -> impl Iterator<Item = Sample> {
    [of_jobs(), of_pools(), of_regions(), of_snapshots(), of_images()].into_iter().flatten()
}

#[test]
fn no_error_prints_its_source() {
    for Sample { variant, error } in samples() {
        let mut error = &*error;
        while let Some(source) = error.source() {
            let (text, source_text) = (error.to_string(), source.to_string());
            assert!(!text.contains(&source_text), "{variant}: {text}");
            error = source;
        }
    }
}

#[test]
fn chain_prints_every_source_once() {
    let error = SnapshotError::Fork(ForkError::Pool(pool()));
    let chain = format!("no room for the fork's copies: mmap failed: {}", answer());
    assert_eq!(error_chain(&error).to_string(), chain);
}

#[test]
fn number_of_the_system_error_is_kept() {
    let of_kernel = |sample: &Sample| format!("{:?}", sample.error).contains("Os { code");
    let of_kernel: Vec<_> = samples().filter(of_kernel).collect();
    assert!(of_kernel.len() > 15, "{}", of_kernel.len());
    for Sample { variant, error } in of_kernel {
        assert_eq!(system_error(&*error), Some(libc::ENOMEM), "{variant}");
    }
}

/// The list of public items shows which variants have a source.
#[test]
fn every_public_error_with_a_source_has_a_sample() {
    let has_source =
        |line: &&str| ["#[from]", "#[source]", "source: "].iter().any(|mark| line.contains(mark));
    let variant = |line: &'static str| {
        let mut path = line.split(": ").next()?.rsplit("::");
        let (variant, kind) = (path.next()?, path.next()?);
        kind.ends_with("Error").then(|| format!("{kind}::{variant}"))
    };
    let public = include_str!("../public-api.txt").lines().filter(has_source).filter_map(variant);
    let sampled: BTreeSet<_> = samples().map(|sample| sample.variant).collect();
    let missing: Vec<_> = public.filter(|variant| !sampled.contains(variant)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
