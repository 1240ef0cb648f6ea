//! Machines that tests make up: the files of `/proc` and `/sys` that a kernel would show there.
//!
//! What hugekit decides, finds and prints is a function of the machine, and a test that runs on one machine
//! knows one. These differ in what has mattered: the length of a CPU's name, the size of its caches, the
//! number of nodes and CPUs, how much memory there is, which kinds of huge pages.

#![warn(missing_docs)]

mod files;
mod rates;

use std::io;

pub use self::files::Files;
pub use self::rates::{Of, Rates, Row, rates};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine, described.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The name of the machine.
    pub name: &'static str,
    /// The lines of `/proc/cpuinfo` that name the CPU.
    pub cpu: &'static str,
    /// First-level data cache of a CPU in bytes; 0 where the kernel describes no cache at all.
    pub l1d: u64,
    /// Second level.
    pub l2: u64,
    /// Last level, shared by [`Machine::llc_shared_by`] CPUs.
    pub llc: u64,
    /// CPUs that share the last level.
    pub llc_shared_by: u64,
    /// Nodes, each with as many CPUs and as much memory.
    pub nodes: u64,
    /// CPUs of all nodes.
    pub cpus: u64,
    /// Memory of all nodes in bytes.
    pub memory: u64,
    /// Bytes that one entry of the last table but one maps: the size of a transparent huge page.
    pub huge_page: u64,
    /// True if the kernel makes transparent huge pages.
    pub thp: bool,
    /// Reserved huge pages of 2 MiB, all free; `None` where the kernel has no hugetlb.
    pub reserved: Option<u64>,
}

const MILAN: &str = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763 64-Core Processor";
const GENOA: &str = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654 96-Core Processor";
const SKYLAKE: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz";
const NAMELESS: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor";
const LONG: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 173\nmodel name\t: Intel(R) Xeon(R) 6980P Engineering Sample with a Name that no Line of Eighty Columns was ever made to hold @ 2.00GHz";
const ARM: &str = "CPU implementer\t: 0x41\nCPU part\t: 0xd49";

const SMALL: Machine = Machine {
    name: "amd-small",
    cpu: MILAN,
    l1d: 32 * KIB,
    l2: 512 * KIB,
    llc: 32 * MIB,
    llc_shared_by: 1,
    nodes: 1,
    cpus: 1,
    memory: 512 * MIB,
    huge_page: 2 * MIB,
    thp: true,
    reserved: Some(0),
};

const ARM_SERVER: Machine = Machine {
    name: "arm",
    cpu: ARM,
    l1d: 64 * KIB,
    l2: MIB,
    llc_shared_by: 8,
    cpus: 8,
    memory: 16 * GIB,
    ..SMALL
};

/// All of them.
pub const MACHINES: [Machine; 11] = [
    SMALL,
    Machine { name: "amd-small-without-thp", thp: false, reserved: None, ..SMALL },
    Machine { name: "amd-milan", cpus: 2, llc_shared_by: 2, memory: 24 * GIB, ..SMALL },
    Machine {
        name: "amd-genoa",
        cpu: GENOA,
        l2: MIB,
        llc_shared_by: 16,
        nodes: 4,
        cpus: 128,
        memory: 768 * GIB,
        reserved: Some(2048),
        ..SMALL
    },
    Machine {
        name: "intel-16MiB",
        cpu: SKYLAKE,
        l2: MIB,
        llc: 16 * MIB,
        llc_shared_by: 8,
        cpus: 8,
        nodes: 2,
        memory: 64 * GIB,
        ..SMALL
    },
    Machine {
        name: "intel-480MiB",
        cpu: NAMELESS,
        l1d: 48 * KIB,
        l2: 2 * MIB,
        llc: 480 * MIB,
        llc_shared_by: 2,
        cpus: 2,
        memory: 24 * GIB,
        reserved: Some(1280),
        ..SMALL
    },
    Machine {
        name: "intel-long-name-512MiB",
        cpu: LONG,
        l1d: 48 * KIB,
        l2: 2 * MIB,
        llc: 512 * MIB,
        llc_shared_by: 128,
        cpus: 128,
        nodes: 2,
        memory: 1024 * GIB,
        ..SMALL
    },
    Machine {
        name: "intel-large-cache-small-memory",
        cpu: NAMELESS,
        l2: 2 * MIB,
        llc: 512 * MIB,
        ..SMALL
    },
    ARM_SERVER,
    Machine { name: "arm-64KiB-pages", huge_page: 512 * MIB, ..ARM_SERVER },
    Machine { name: "arm-without-caches", cpu: ARM, l1d: 0, cpus: 2, memory: 2 * GIB, ..SMALL },
];

impl Machine {
    /// Its unused memory: seven eighths, less the reserved pages.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.memory / 8 * 7 - self.reserved.unwrap_or(0) * 2 * MIB
    }

    /// Writes its files.
    ///
    /// # Errors
    /// A folder or file cannot be written.
    pub fn files(&self) -> io::Result<Files> {
        let files = Files::new()?;
        let parts =
            [self.process(), self.processors(), self.nodes(), self.huge_pages(), self.thp()];
        parts.into_iter().flatten().try_for_each(|(path, text)| files.write(&path, &text))?;
        Ok(files)
    }

    /// The process, and what the kernel says of all of the machine.
    fn process(&self) -> Vec<(String, String)> {
        let (cpus, nodes) = (list(0, self.cpus), list(0, self.nodes));
        let block = |cpu| format!("processor\t: {cpu}\n{}\n", self.cpu);
        let status = format!(
            "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}"
        );
        let limits =
            "Max locked memory         8388608              8388608              bytes     ";
        let files = [
            ("proc/cpuinfo", (0..self.cpus).map(block).collect::<Vec<_>>().join("\n")),
            ("proc/meminfo", self.meminfo("", self.memory, self.available())),
            ("proc/sys/kernel/osrelease", "6.18.1".to_owned()),
            ("proc/sys/vm/max_map_count", "65530".to_owned()),
            ("proc/sys/vm/unprivileged_userfaultfd", "0".to_owned()),
            ("proc/self/status", status),
            ("proc/self/uid_map", "         0          0 4294967295".to_owned()),
            ("proc/self/limits", limits.to_owned()),
            ("proc/self/cgroup", "0::/".to_owned()),
            ("proc/self/mountinfo", String::new()),
            ("sys/devices/system/cpu/online", cpus),
            ("sys/devices/system/node/online", nodes),
        ];
        files.into_iter().map(|(path, text)| (path.to_owned(), text)).collect()
    }

    fn meminfo(&self, before: &str, total: u64, available: u64) -> String {
        let line = |key: &str, bytes: u64| format!("{before}{key}: {} kB", bytes / KIB);
        let reserved = self.reserved.unwrap_or(0) * 2 * MIB;
        [
            line("MemTotal", total),
            line("MemFree", available / 2),
            line("MemAvailable", available),
            line("SwapTotal", 0),
            line("Hugetlb", reserved),
        ]
        .join("\n")
    }

    fn processors(&self) -> Vec<(String, String)> {
        let caches = [
            ("1", "Data", self.l1d, 1),
            ("2", "Unified", self.l2, 1),
            ("3", "Unified", self.llc, self.llc_shared_by),
        ];
        let mut files = Vec::new();
        for cpu in 0..self.cpus {
            let caches = caches.iter().enumerate().filter(|_| self.l1d > 0);
            for (index, (level, kind, size, sharers)) in caches {
                let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
                let first = cpu / sharers * sharers;
                let shared = list(first, *sharers.min(&(self.cpus - first)));
                for (name, text) in [
                    ("level", (*level).to_owned()),
                    ("type", (*kind).to_owned()),
                    ("size", format!("{}K", size / KIB)),
                    ("shared_cpu_list", shared),
                ] {
                    files.push((format!("{folder}/{name}"), text));
                }
            }
        }
        files
    }

    fn nodes(&self) -> Vec<(String, String)> {
        let cpus = self.cpus / self.nodes;
        let of_node = |node: u64| {
            let folder = format!("sys/devices/system/node/node{node}");
            let (memory, available) = (self.memory / self.nodes, self.available() / self.nodes);
            let meminfo = self.meminfo(&format!("Node {node} "), memory, available);
            let distance = |to| if to == node { "10" } else { "20" };
            let distances: Vec<_> = (0..self.nodes).map(distance).collect();
            [
                (format!("{folder}/distance"), distances.join(" ")),
                (format!("{folder}/cpulist"), list(node * cpus, cpus)),
                (format!("{folder}/meminfo"), meminfo),
            ]
        };
        (0..self.nodes).flat_map(of_node).collect()
    }

    fn huge_pages(&self) -> Vec<(String, String)> {
        let Some(reserved) = self.reserved else { return Vec::new() };
        let mut files = Vec::new();
        for (kib, pages) in [(2048, reserved), (1 << 20, 0)] {
            let folder = format!("sys/kernel/mm/hugepages/hugepages-{kib}kB");
            let counts =
                [("nr", pages), ("free", pages), ("resv", 0), ("surplus", 0), ("nr_overcommit", 0)];
            files
                .extend(counts.map(|(name, count)| {
                    (format!("{folder}/{name}_hugepages"), count.to_string())
                }));
            for node in 0..self.nodes {
                let folder =
                    format!("sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB");
                let counts =
                    [("nr", pages / self.nodes), ("free", pages / self.nodes), ("surplus", 0)];
                files.extend(counts.map(|(name, count)| {
                    (format!("{folder}/{name}_hugepages"), count.to_string())
                }));
            }
        }
        files
    }

    fn thp(&self) -> Vec<(String, String)> {
        let size = self.huge_page.to_string();
        // Sizes below that of the last table but one are never given unless root says so.
        let smaller = "always inherit madvise [never]";
        let of_2mib =
            if self.huge_page == 2 * MIB { "always [inherit] madvise never" } else { smaller };
        let files: &[(&str, &str)] = match self.thp {
            false => &[],
            true => &[
                ("enabled", "always madvise [never]"),
                ("defrag", "always defer defer+madvise [madvise] never"),
                ("shmem_enabled", "always within_size advise [never] deny force"),
                ("hpage_pmd_size", &size),
                ("khugepaged/defrag", "1"),
                ("khugepaged/max_ptes_none", "511"),
                ("khugepaged/scan_sleep_millisecs", "10000"),
                ("hugepages-2048kB/enabled", of_2mib),
                ("hugepages-64kB/enabled", smaller),
            ],
        };
        let folder = "sys/kernel/mm/transparent_hugepage";
        files.iter().map(|(name, text)| (format!("{folder}/{name}"), (*text).to_owned())).collect()
    }
}

/// `count` numbers from the first on, as the kernel lists them.
fn list(first: u64, count: u64) -> String {
    match count {
        1 => first.to_string(),
        count => format!("{first}-{}", first + count - 1),
    }
}
