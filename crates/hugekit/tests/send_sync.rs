//! Which thread may have which public type: compiled, so that a field that changes it is noticed. A type that is new
//! needs a line here, which the test at the end looks for. Other crates of the library have no `unsafe impl` of `Send`
//! or `Sync`: the compiler derives theirs.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use hugekit::fault::{FaultMode, Serving};
use hugekit::lease::{Lease, LeaseError, MemoryFile, Peer, Unfit};
use hugekit::parallel::{
    Cancel, Done, Job, JobError, Limit, NodeMap, NodeMapError, Placement, Report, Threads,
};
use hugekit::pool::{
    Backing, BackingReport, Clearing, Fallback, FaultError, InheritedMemory, NodePolicy,
    PoolBuilder, Stats as PoolStats,
};
use hugekit::profile::{AlreadyInstalled, Band, Bands, CacheState, Choice};
use hugekit::region::{ForkBuilder, ForkError, PinnedRange, RegionBuilder};
use hugekit::snapshot::{
    Builder, Changes, Collapsed, Epoch, Granule, Reserve, Stats as SnapshotStats, Unsuitable, View,
};
use hugekit::{
    ClearError, CopyError, ErrorKind, HeapShortage, HintError, Operation, Pool, PoolError,
    PopulateError, PopulateOptions, Profile, Region, RegionError, Reuse, SharedRegion, Snapshot,
    SnapshotError,
};
use hugekit_bulk::arch::{ClearFn, CopyFn, Kind, Routine, Unfenced};
use hugekit_bulk::learning::{ChosenBy, Learned, Used};
use hugekit_bulk::sweep::{Extent, Order, Reach, Sweep};
use hugekit_lease::protocol::{Answer, Malformed, Payer, Refusal, Request, Row, Status};
use hugekit_machine::cgroup::{Cgroups, Cpuset, Layout, Limit as GroupLimit, MemoryLeft, Quota};
use hugekit_machine::cpu::{CpuModel, Vendor};
use hugekit_machine::hugepages::{NodePool, Pool as HugePages, Shortage};
use hugekit_machine::limits::Allowed;
use hugekit_machine::mappings::MappedRange;
use hugekit_machine::process::{Process, Seccomp};
use hugekit_machine::userfaultfd::{Features, Obstacle, Userfaultfd, Uses};
use hugekit_machine::{CacheSizes, CpuSet, Error, Memory, Node, ParseCpuSetError, Root, Topology};
use static_assertions::{assert_impl_all, assert_not_impl_any};

/// Any thread may have it, and several at a time may use it.
macro_rules! any_thread {
    ($($kind:ty),+ $(,)?) => { $(assert_impl_all!($kind: Send, Sync);)+ };
}

/// It stays with its thread.
macro_rules! its_thread {
    ($($kind:ty),+ $(,)?) => { $(assert_not_impl_any!($kind: Send, Sync);)+ };
}

// Memory, and what makes it.
any_thread!(Pool, PoolBuilder<'static>, BackingReport, Fallback, InheritedMemory, PoolStats);
any_thread!(Region, SharedRegion, PinnedRange, RegionBuilder<'static>);
any_thread!(ForkBuilder<'static>);
any_thread!(Snapshot, Builder, Changes, Epoch, Reserve, SnapshotStats, Collapsed);
any_thread!(View<&'static Snapshot>, View<Arc<Snapshot>>);
any_thread!(Lease, MemoryFile, Peer, Answer, Payer, Request, Row, Status);

// Work.
any_thread!(Operation<'static, ClearFn>, Operation<'static, CopyFn>, PopulateOptions<'static>);
any_thread!(Job<'static>, Cancel, Done, NodeMap, Placement, Report);
any_thread!(Routine<ClearFn>, Routine<CopyFn>, Sweep, Extent);
its_thread!(Unfenced);

// What is known.
any_thread!(Profile, Band<ClearFn>, Bands<ClearFn>, Choice<ClearFn>, Band<CopyFn>, Bands<CopyFn>);
any_thread!(Choice<CopyFn>, CpuModel, Learned, Used, Serving);
any_thread!(Cgroups, Cpuset, GroupLimit, Quota, HugePages, NodePool, Shortage, Allowed, Root);
any_thread!(MappedRange, Process, Userfaultfd, Features, CacheSizes, CpuSet, Memory, Node);
any_thread!(Topology);

// Choices and words.
any_thread!(Backing, Clearing, NodePolicy, FaultMode, Granule, Reuse, Threads, Limit, Order, Reach);
any_thread!(Kind, Vendor, ChosenBy, CacheState, Layout, Seccomp, Obstacle, Uses, ErrorKind);
any_thread!(MemoryLeft);

// Errors.
any_thread!(PoolError, FaultError, RegionError, ForkError, SnapshotError, Unsuitable, LeaseError);
any_thread!(Malformed, Refusal, Unfit, ClearError, CopyError, PopulateError, HintError);
any_thread!(JobError<PopulateError>, NodeMapError, AlreadyInstalled, Error, ParseCpuSetError);
any_thread!(HeapShortage);

// What an error or a snapshot is shared by decides.
its_thread!(JobError<Rc<()>>, View<Rc<Snapshot>>);

/// Only for tests of the library.
const INTERNAL: [&str; 4] = ["Call", "Plan", "Lasting", "Hit"];

#[test]
fn public_type_of_any_file_has_its_line_here() {
    let here = include_str!("send_sync.rs");
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut types = 0;
    while let Some(folder) = folders.pop() {
        for path in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().map(str::trim_start) {
                let declared = ["pub struct ", "pub enum ", "pub union "];
                let Some(rest) = declared.iter().find_map(|word| line.strip_prefix(word)) else {
                    continue;
                };
                let name: String = rest.chars().take_while(|&c| c.is_alphanumeric()).collect();
                let used = here.split(|c: char| !c.is_alphanumeric()).filter(|&word| word == name);
                let is_internal = INTERNAL.contains(&name.as_str());
                assert!(is_internal || used.count() > 1, "{name} of {}", path.display());
                types += 1;
            }
        }
    }
    assert!(types > 100, "{types} types were found");
}
