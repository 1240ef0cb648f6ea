//! The `Display` of an error leaves its source out, so that a chain of errors says everything once.

use std::any::{type_name, type_name_of_val};
use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::time::Duration;

use hugekit::image::ImageError;
use hugekit::pool::FaultError;
use hugekit::region::ForkError;
use hugekit::snapshot::Unsuitable;
use hugekit::{
    ClearError, CopyError, HeapShortage, HintError, JobError, PoolError, PopulateError,
    RegionError, SnapshotError, error_chain, system_error,
};
use hugekit_lease::protocol::{Malformed, Refusal};
use hugekit_lease::{LeaseError, Unfit};
use hugekit_machine::hugepages::Shortage;
use hugekit_machine::mappings::MappedRange;
use hugekit_machine::userfaultfd::Obstacle;

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
        Sample::new(LeaseError::NoBroker { socket, unit: None, source: answer() }),
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
    let chain = format!("no room for the copies that writers make: mmap failed: {}", answer());
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

/// An error whose remedy is its own, not that of its source.
struct Remedied {
    kind: &'static str,
    error: Box<dyn Error + Send + Sync>,
    remedy: String,
}

/// The types differ, and each has its own `remedy()`.
macro_rules! remedied {
    ($($error:expr),+ $(,)?) => {
        vec![$({
            let error = $error;
            let remedy = error.remedy().unwrap_or_else(|| panic!("{error:?} has no remedy"));
            Remedied { kind: type_name_of_val(&error), error: Box::new(error), remedy }
        }),+]
    };
}

fn shortage() -> Shortage {
    Shortage { page_size: 2 << 20, wanted: 4, total: 1, free: 1, promised: 0, spare: Some(9) }
}

fn remedied_pools() -> Vec<Remedied> {
    let (source, path) = (answer, || "/proc/self/maps".into());
    remedied![
        PoolError::NotEnoughHugePages(shortage()),
        PoolError::NotEnoughMemory { wanted: 2, available: 1 },
        PoolError::OverGroupLimit { wanted: 2, limit: 1, used: 0, file: path() },
        PoolError::NoThp { reason: "never".to_owned() },
        PoolError::NoRoom { wanted: 2, free: 1, longest: 1 },
        PoolError::NoDescriptor(source()),
        PoolError::NotMapped { bytes: 1, source: source() },
        PoolError::Heap(HeapShortage),
        PoolError::Fault(FaultError::Blocked),
        FaultError::HandlerReplaced,
        FaultError::Blocked,
        FaultError::TooManyThreads { asked: 2, most: 1 },
        FaultError::NotStarted(source()),
        FaultError::NotPermitted {
            user_mode: true,
            obstacles: vec![Obstacle::Filter(None), Obstacle::Unprivileged],
            device: "closed".to_owned(),
        },
        PoolError::Lease(LeaseError::Pages(shortage())),
        LeaseError::NoBroker { socket: path(), unit: Some(1 << 30), source: source() },
        LeaseError::Untrusted { socket: path(), uid: 1 },
        LeaseError::Refused(Refusal::NoUnits),
        LeaseError::NoAnswer { socket: path(), within: Duration::from_secs(1) },
        LeaseError::Malformed(Malformed::Version { version: 9 }),
        LeaseError::Heap(HeapShortage),
    ]
}

fn remedied_regions() -> Vec<Remedied> {
    let mapping = MappedRange {
        addresses: 0..4096,
        is_readable: true,
        is_shared: true,
        inode: 0,
        name: String::new(),
    };
    remedied![
        ForkError::Mappings { needed: 2, left: 1, most: 1 },
        ForkError::NotMapped { mappings: 1, source: answer() },
        ForkError::Fault(FaultError::Blocked),
        ForkError::Heap(HeapShortage),
        SnapshotError::Fork(ForkError::Mappings { needed: 2, left: 1, most: 1 }),
        SnapshotError::Unsuitable { mapping, reason: Unsuitable::Shared },
        SnapshotError::Blocked { thread: 1 },
        SnapshotError::CowLimitExceeded { cap: 1, len: 2, available: 2 },
        SnapshotError::NoRoom { bytes: 2, source: answer() },
        SnapshotError::Heap(HeapShortage),
        ImageError::Nothing,
        ImageError::NoFile { nth: 0 },
        ImageError::NotSealed,
        ImageError::NoTmpfs,
        ImageError::Changed { nth: 0, had: 2, has: 1 },
        ImageError::TooLarge { most: 1 },
        ImageError::Populate(PopulateError::OutOfMemory),
        ImageError::Broker(LeaseError::Refused(Refusal::NoImage)),
        ImageError::Heap(HeapShortage),
    ]
}

fn all_remedied() -> Vec<Remedied> {
    remedied_pools().into_iter().chain(remedied_regions()).collect()
}

#[test]
fn message_ends_with_the_remedy_and_the_chain_leaves_it_out() {
    for Remedied { error, remedy, .. } in all_remedied() {
        let text = error.to_string();
        let (message, end) = text.split_once(" (remedy: ").unwrap_or_else(|| panic!("{text}"));
        assert_eq!(end, format!("{remedy})"));
        let chain = error_chain(&*error).to_string();
        assert!(chain.starts_with(message) && !chain.contains("remedy"), "{chain}");
        let whole = format!("{:#}", error_chain(&*error));
        assert!(whole.starts_with(&text), "{whole}");
    }
}

#[test]
fn every_public_error_with_a_remedy_has_a_sample() {
    let public = include_str!("../public-api.txt").lines();
    let kinds = public.filter_map(|line| line.split_once("::remedy: ")?.0.rsplit("::").next());
    let sampled: Vec<_> = all_remedied().iter().map(|remedied| remedied.kind).collect();
    let is_sampled = |kind: &&str| sampled.iter().any(|path| path.ends_with(&format!("::{kind}")));
    let (sampled, missing): (Vec<_>, Vec<_>) = kinds.partition(is_sampled);
    assert!(sampled.len() >= 5 && missing.is_empty(), "{missing:?}");
}

#[test]
fn anyhow_prints_every_remedy_once() {
    for Remedied { error, remedy, .. } in all_remedied() {
        let error = anyhow::Error::from_boxed(error);
        let once = |text: String| assert_eq!(text.matches(&remedy).count(), 1, "{text}");
        once(format!("{error:#}"));
        once(format!("{error:?}"));
        once(format!("{:#}", error.context("the outer error")));
    }
}

#[test]
fn anyhow_prints_the_remedy_of_a_source_once() {
    let remedy = shortage().remedy();
    let pool = || PoolError::NotEnoughHugePages(shortage());
    let errors: [anyhow::Error; 2] =
        [SnapshotError::Memory(pool()).into(), ForkError::Pool(pool()).into()];
    for error in errors {
        for text in [format!("{error:#}"), format!("{error:?}")] {
            assert_eq!(text.matches(&remedy).count(), 1, "{text}");
        }
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
