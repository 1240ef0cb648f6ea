//! Everything the doctor looks at, read once. A fact that cannot be read stays an error of its own.

use hugekit::machine::cgroup::{Cgroups, Cpuset, Layout, Limit, Quota};
use hugekit::machine::host::Host;
use hugekit::machine::hugepages::{self, Pool};
use hugekit::machine::limits::{self, Allowed, ResourceLimit};
use hugekit::machine::process::Process;
use hugekit::machine::thp::{self, Defrag, Khugepaged, PageSize, Setting, Shmem};
use hugekit::machine::userfaultfd::{self, Userfaultfd};
use hugekit::machine::{CacheSizes, Error, Memory, Root, Thp, Topology, cache, kvm};

type Fact<T> = Result<T, Error>;

pub(super) struct Facts {
    pub(super) host: Fact<Host>,
    pub(super) process: Fact<Process>,
    pub(super) caches: Fact<CacheSizes>,
    pub(super) topology: Fact<Topology>,
    pub(super) allowed: Fact<Allowed>,
    pub(super) memory: Fact<Memory>,
    pub(super) max_map_count: Fact<u64>,
    pub(super) locked_memory: Fact<ResourceLimit>,
    pub(super) groups: Groups,
    pub(super) pools: Fact<Vec<Pool>>,
    pub(super) thp: Fact<Thp>,
    pub(super) defrag: Fact<Setting<Defrag>>,
    pub(super) khugepaged: Fact<Khugepaged>,
    pub(super) shmem: Fact<Setting<Shmem>>,
    pub(super) page_sizes: Fact<Vec<PageSize>>,
    pub(super) userfaultfd: Fact<Userfaultfd>,
    pub(super) unprivileged_userfaultfd: Fact<bool>,
    pub(super) kvm: Fact<i32>,
}

/// What cgroups limit.
pub(super) struct Groups {
    pub(super) layout: Fact<Layout>,
    pub(super) cpu_quota: Fact<Option<Quota>>,
    pub(super) cpuset: Fact<Option<Cpuset>>,
    pub(super) memory: Fact<Option<Limit>>,
    /// For each size of huge pages in bytes: limits on use and on reservation.
    pub(super) hugetlb: Vec<(u64, Fact<Option<Limit>>)>,
}

impl Facts {
    pub(super) fn read(root: &Root) -> Self {
        let pools = hugepages::read(root);
        Self {
            host: Host::read(root),
            process: Process::read(root),
            caches: cache::read(root),
            topology: Topology::read(root),
            allowed: Allowed::read(root),
            memory: Memory::read(root),
            max_map_count: limits::max_map_count(root),
            locked_memory: limits::locked_memory(root),
            groups: Groups::read(root, pools.as_deref().unwrap_or_default()),
            pools,
            thp: Thp::read(root),
            defrag: thp::defrag(root),
            khugepaged: thp::khugepaged(root),
            shmem: thp::shmem(root),
            page_sizes: thp::page_sizes(root),
            userfaultfd: Userfaultfd::read(root),
            unprivileged_userfaultfd: userfaultfd::unprivileged(root),
            kvm: kvm::api_version(root),
        }
    }

    /// Whether not even the first files of `/proc` and `/sys` could be read.
    pub(super) fn nothing_is_known(&self) -> bool {
        self.host.is_err()
            && self.process.is_err()
            && self.memory.is_err()
            && self.topology.is_err()
    }

    /// Root of the machine, not of a user namespace.
    pub(super) fn is_root(&self) -> bool {
        let root = |process: &Process| process.user == 0 && process.in_first_user_namespace;
        self.process.as_ref().is_ok_and(root)
    }

    pub(super) fn user(&self) -> u32 {
        self.process.as_ref().map_or(0, |process| process.user)
    }

    pub(super) fn container(&self) -> Option<&str> {
        self.host.as_ref().ok()?.container.as_deref()
    }
}

impl Groups {
    fn read(root: &Root, pools: &[Pool]) -> Self {
        // Found anew for each line, so that each can say why it is not known.
        let groups = || Cgroups::read(root);
        let sizes = pools.iter().map(|pool| pool.page_size);
        let hugetlb = sizes.flat_map(|size| {
            let used = groups().and_then(|groups| groups.hugetlb(size));
            let reserved = groups().and_then(|groups| groups.hugetlb_reservation(size));
            [(size, used), (size, reserved)]
        });
        Self {
            layout: groups().map(|groups| groups.layout()),
            cpu_quota: groups().and_then(|groups| groups.cpu_quota()),
            cpuset: groups().and_then(|groups| groups.cpuset()),
            memory: groups().and_then(|groups| groups.memory()),
            hugetlb: hugetlb.collect(),
        }
    }
}
