//! Which thread may have which public type: compiled, so that a field that changes it is noticed. A type that is new
//! in the interface needs a line here, which the test at the end looks for.

use std::rc::Rc;
use std::sync::Arc;

use hugekit::fault::{FaultMode, Serving};
use hugekit::image::{Image, ImageBuilder, ImageError, ImageRange, Misfit, PrivateMapping};
use hugekit::pool::{
    Backing, BackingReport, Clearing, Fallback, FaultError, InheritedMemory, NodePolicy,
    PoolBuilder, PoolStats,
};
use hugekit::region::{ForkBuilder, ForkError, PinnedRange, RegionBuilder};
use hugekit::snapshot::{
    Builder, Changes, Collapsed, Epoch, Granule, KeptMemory, Reserve, SnapshotReader,
    SnapshotStats, StagedMemory, Staging, Unsuitable, View,
};
use hugekit::{
    ClearError, CopyError, ErrorKind, HeapShortage, HintError, Operation, Pool, PoolError,
    PopulateError, PopulateOptions, Profile, Region, RegionError, Reuse, SharedRegion, Snapshot,
    SnapshotError,
};
use hugekit_bulk::arch::{ClearFn, CopyFn, Kind, Routine, Unfenced};
use hugekit_bulk::learning::{ChosenBy, Learned, Used};
use hugekit_bulk::parallel::{
    Cancel, Done, Job, JobError, Limit, NodeMap, NodeMapError, Placement, Report, Threads,
};
use hugekit_bulk::profile::{AlreadyInstalled, Band, Bands, CacheState, Choice};
use hugekit_bulk::sweep::{Order, Reach, Sweep, SweepExtent};
use hugekit_lease::protocol::{Answer, LeaseRow, Malformed, Payer, Refusal, Request, Status};
use hugekit_lease::{Lease, LeaseError, MemoryFile, Peer, Unfit};
use hugekit_machine::cgroup::{Cgroups, Cpuset, GroupLimit, Layout, MemoryLeft, Quota};
use hugekit_machine::cpu::{CpuModel, Vendor};
use hugekit_machine::hugepages::{HugePagePool, NodePool, Shortage};
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
any_thread!(Staging, StagedMemory, KeptMemory);
any_thread!(View<&'static Snapshot>, View<Arc<Snapshot>>, SnapshotReader<'static>);
any_thread!(Image, ImageBuilder<'static>, PrivateMapping, ImageRange);
any_thread!(Lease, MemoryFile, Peer, Answer, Payer, Request, LeaseRow, Status);

// Work.
any_thread!(Operation<'static, ClearFn>, Operation<'static, CopyFn>, PopulateOptions<'static>);
any_thread!(Job<'static>, Cancel, Done, NodeMap, Placement, Report);
any_thread!(Routine<ClearFn>, Routine<CopyFn>, Sweep, SweepExtent);
its_thread!(Unfenced);

// What is known.
any_thread!(Profile, Band<ClearFn>, Bands<ClearFn>, Choice<ClearFn>, Band<CopyFn>, Bands<CopyFn>);
any_thread!(Choice<CopyFn>, CpuModel, Learned, Used, Serving);
any_thread!(Cgroups, Cpuset, GroupLimit, Quota, HugePagePool, NodePool, Shortage, Allowed, Root);
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
any_thread!(HeapShortage, ImageError, Misfit);

// What an error or a snapshot is shared by decides.
its_thread!(JobError<Rc<()>>, View<Rc<Snapshot>>);

/// Names that are no types of their own: aliases, traits, constants.
const OTHERS: [&str; 7] =
    ["ClearOptions", "CopyOptions", "Progress", "Method", "Holder", "HUGE", "PAGE"];

#[test]
fn every_public_type_has_its_line_here() {
    let (here, face) = (include_str!("send_sync.rs"), include_str!("../src/lib.rs"));
    let words = |text: &'static str| text.split(|c: char| !c.is_alphanumeric());
    let exported = face.split("pub use ").skip(1).filter_map(|item| item.split(';').next());
    let mut types = 0;
    for name in exported.flat_map(words).filter(|name| name.starts_with(char::is_uppercase)) {
        let is_other = OTHERS.contains(&name) || name.to_uppercase() == name;
        assert!(is_other || words(here).filter(|&word| word == name).count() > 1, "{name}");
        types += 1;
    }
    assert!(types > 50, "{types} types were found");
}
