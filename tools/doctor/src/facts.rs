//! Everything the doctor looks at, read once. A fact that cannot be read stays an error of its own.

pub(crate) mod host;
mod hypervisor;
mod kvm;
pub(crate) mod locked;
pub(crate) mod pool_pages;
pub(crate) mod thp;

use hugekit_machine::cgroup::{Cgroups, Cpuset, GroupLimit, Layout, Quota};
use hugekit_machine::hugepages::{self, HugePagePool};
use hugekit_machine::limits::{self, Allowed};
use hugekit_machine::process::Process;
use hugekit_machine::userfaultfd::{self, Userfaultfd};
use hugekit_machine::{CacheSizes, Error, Memory, Root, Topology, cache};

use self::host::Host;
use self::locked::ResourceLimit;
use self::pool_pages::PoolPages;
use self::thp::{Defrag, Khugepaged, PageSize, Setting, Shmem, Thp};

type Fact<T> = Result<T, Error>;

pub(crate) struct Facts {
    pub(crate) host: Fact<Host>,
    pub(crate) process: Fact<Process>,
    pub(crate) caches: Fact<CacheSizes>,
    pub(crate) topology: Fact<Topology>,
    pub(crate) allowed: Fact<Allowed>,
    pub(crate) memory: Fact<Memory>,
    pub(crate) max_map_count: Fact<u64>,
    pub(crate) locked_memory: Fact<ResourceLimit>,
    pub(crate) groups: Groups,
    pub(crate) pools: Fact<Vec<HugePagePool>>,
    pub(crate) thp: Fact<Thp>,
    pub(crate) defrag: Fact<Setting<Defrag>>,
    pub(crate) khugepaged: Fact<Khugepaged>,
    pub(crate) shmem: Fact<Setting<Shmem>>,
    /// `None` for a machine that is described by files.
    pub(crate) pool_pages: Option<PoolPages>,
    pub(crate) page_sizes: Fact<Vec<PageSize>>,
    pub(crate) userfaultfd: Fact<Userfaultfd>,
    pub(crate) unprivileged_userfaultfd: Fact<bool>,
    pub(crate) kvm: Fact<i32>,
}

/// The limits of control groups.
pub(crate) struct Groups {
    pub(crate) layout: Fact<Layout>,
    pub(crate) cpu_quota: Fact<Option<Quota>>,
    pub(crate) cpuset: Fact<Option<Cpuset>>,
    pub(crate) memory: Fact<Option<GroupLimit>>,
    /// For each size of huge pages in bytes: limits on use and on reservation.
    pub(crate) hugetlb: Vec<(u64, Fact<Option<GroupLimit>>)>,
}

impl Facts {
    pub(crate) fn read(root: &Root) -> Self {
        let pools = hugepages::read(root);
        Self {
            host: Host::read(root),
            process: Process::read(root),
            caches: cache::read(root),
            topology: Topology::read(root),
            allowed: Allowed::read(root),
            memory: Memory::read(root),
            max_map_count: limits::max_map_count(root),
            locked_memory: locked::locked_memory(root),
            groups: Groups::read(root, pools.as_deref().unwrap_or_default()),
            pools,
            thp: Thp::read(root),
            defrag: thp::defrag(root),
            khugepaged: thp::khugepaged(root),
            shmem: thp::shmem(root),
            pool_pages: PoolPages::of_pool(root),
            page_sizes: thp::page_sizes(root),
            userfaultfd: Userfaultfd::read(root),
            unprivileged_userfaultfd: userfaultfd::unprivileged(root),
            kvm: kvm::api_version(root),
        }
    }

    /// Returns true if not even the first files of `/proc` and `/sys` could be read.
    pub(crate) fn nothing_is_known(&self) -> bool {
        self.host.is_err()
            && self.process.is_err()
            && self.memory.is_err()
            && self.topology.is_err()
    }

    /// Root of the machine, not of a user namespace.
    pub(crate) fn is_root(&self) -> bool {
        let root = |process: &Process| process.user == 0 && process.in_first_user_namespace;
        self.process.as_ref().is_ok_and(root)
    }

    pub(crate) fn user(&self) -> u32 {
        self.process.as_ref().map_or(0, |process| process.user)
    }

    pub(crate) fn container(&self) -> Option<&str> {
        self.host.as_ref().ok()?.container.as_deref()
    }
}

impl Groups {
    fn read(root: &Root, pools: &[HugePagePool]) -> Self {
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

/// Returns the rest of the line that starts with `key`, as in `Seccomp: 2`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}
