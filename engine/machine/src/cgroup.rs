//! Limits of a process by cgroups, in version 1, in version 2 and in the hybrid of both.
//!
//! Three facts make this more than reading one file. Each controller may be in a hierarchy of its
//! own (version 1) or in the unified hierarchy, and a hybrid machine mixes them. The path in
//! `/proc/PID/cgroup` is relative to a mount that may show only a part of the hierarchy, as in a
//! container. And each limit between that mount and the process's group applies, so the lowest
//! limit is searched from the group upwards.
//!
//! Names of groups and mounts are bytes, not text.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{CpuSet, Error, Root, text};

/// Version 1 writes "no limit" as the largest number of whole pages. Any number of that size means
/// no limit.
const UNLIMITED: u64 = 1 << 60;

/// The link `/proc/PID/ns/cgroup` of a process that sees all groups (`PROC_CGROUP_INIT_INO` of the kernel).
const SEES_ALL_GROUPS: &str = "cgroup:[4026531835]";

/// The cgroups that a process is in.
#[derive(Clone, Debug)]
pub struct Cgroups {
    root: Root,
    groups: Vec<Group>,
    /// Groups in hierarchies that no mount of this process shows.
    hidden: Vec<Listed>,
}

/// The versions of cgroups that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// No version is mounted.
    None,
    /// Only version 1.
    V1,
    /// Only version 2.
    V2,
    /// Controllers in version 1, and a hierarchy of version 2.
    Hybrid,
}

/// A limit, and the file that contains it, in which it can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// Bytes that count against the limit, if the kernel reports them. Memory of the file cache
    /// does not count, because the kernel drops it before it refuses memory.
    pub used: Option<u64>,
    /// The path of the file.
    pub file: PathBuf,
}

impl GroupLimit {
    /// Returns the number of bytes that may still be used under the limit.
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used.unwrap_or(0))
    }
}

/// Memory that the groups of a process leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLeft {
    /// The limit that leaves the least.
    Limited(GroupLimit),
    /// No group limits it.
    Unlimited,
    /// There may be a limit that this process cannot read: the hierarchy is not mounted here, the
    /// group lies outside of the mounted part, or its files cannot be read.
    Unknown,
}

/// CPU time that a group may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Microseconds of CPU time per period.
    pub quota_us: u64,
    /// The period in microseconds.
    pub period_us: u64,
    /// The path of the file.
    pub file: PathBuf,
}

impl Quota {
    /// Returns the quota as a number of CPUs.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }
}

/// CPUs that a group leaves to its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpuset {
    /// The effective CPUs.
    pub cpus: CpuSet,
    /// The path of the file that requests CPUs.
    pub file: PathBuf,
}

/// A hierarchy, seen from this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// The controllers of a version 1 hierarchy; `None` for version 2.
    v1_controllers: Option<Vec<String>>,
    mount: PathBuf,
    /// The process's group below the mount.
    path: PathBuf,
    view: GroupView,
}

/// The part of the path from a group to the root that a mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupView {
    /// All of the path, as far as this process's cgroup namespace reaches.
    Whole,
    /// A part of the path: groups above the top of the mount are hidden.
    Part,
    /// The mount does not show the group (another cgroup namespace), but only limits above it.
    Outside,
}

impl Group {
    fn has(&self, controller: &str) -> bool {
        let listed = |names: &Vec<String>| names.iter().any(|name| name == controller);
        self.v1_controllers.as_ref().is_some_and(listed)
    }

    /// Returns the process's own group, if the mount shows it.
    fn directory(&self) -> Option<PathBuf> {
        (self.view != GroupView::Outside).then(|| self.mount.join(&self.path))
    }

    /// Returns the group and those above it, innermost first.
    fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.path.ancestors().map(|path| self.mount.join(path))
    }
}

impl Cgroups {
    /// Finds the groups of this process.
    ///
    /// # Errors
    /// [`Error`] if `/proc/self/cgroup` or `/proc/self/mountinfo` cannot be read. A kernel without
    /// cgroups has no such file, which is no error.
    pub fn read(root: &Root) -> Result<Self, Error> {
        Self::in_file(root, "/proc/self/cgroup")
    }

    /// Finds the groups of another process.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn of(root: &Root, pid: i32) -> Result<Self, Error> {
        Self::in_file(root, &format!("/proc/{pid}/cgroup"))
    }

    fn in_file(root: &Root, file: &str) -> Result<Self, Error> {
        let listed = root.bytes_if_present(file)?.unwrap_or_default();
        let mounts = root.bytes_if_present("/proc/self/mountinfo")?.unwrap_or_default();
        let mounts: Vec<Mount> = lines(&mounts).filter_map(Mount::parse).collect();
        let listed: Vec<Listed> = lines(&listed).filter_map(Listed::parse).collect();
        let groups = listed.iter().filter_map(|listed| listed.shown_by(&mounts)).collect();
        let is_hidden = |listed: &&Listed| listed.shown_by(&mounts).is_none();
        let hidden = listed.iter().filter(is_hidden).cloned().collect();
        Ok(Self { root: root.clone(), groups, hidden })
    }

    /// Returns the mounted versions.
    pub fn layout(&self) -> Layout {
        let v1 = self.groups.iter().any(|group| group.v1_controllers.is_some());
        let v2 = self.groups.iter().any(|group| group.v1_controllers.is_none());
        match (v1, v2) {
            (false, false) => Layout::None,
            (true, false) => Layout::V1,
            (false, true) => Layout::V2,
            (true, true) => Layout::Hybrid,
        }
    }

    /// Returns the directory of the process's group in the hierarchy with this controller, or in
    /// the hierarchy of version 2 if no other has the controller. `None` if no mount here shows the
    /// group.
    #[must_use]
    pub fn directory(&self, controller: &str) -> Option<PathBuf> {
        if self.hidden.iter().any(|listed| listed.has(controller)) {
            return None;
        }
        self.group_of(controller)?.directory().map(|path| self.root.path(path))
    }

    /// Returns the directory of the process's group in the hierarchy of version 2. `None` if no
    /// mount here shows the group.
    #[must_use]
    pub fn unified_directory(&self) -> Option<PathBuf> {
        let unified = self.groups.iter().find(|group| group.v1_controllers.is_none());
        unified?.directory().map(|path| self.root.path(path))
    }

    /// Returns the lowest CPU quota.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read or understood.
    pub fn cpu_quota(&self) -> Result<Option<Quota>, Error> {
        let Some(group) = self.group_of("cpu") else { return Ok(None) };
        let mut tightest: Option<Quota> = None;
        for directory in group.directories() {
            let quota = match group.v1_controllers {
                Some(_) => self.quota_v1(&directory)?,
                None => self.quota_v2(&directory)?,
            };
            let tighter = |best: &Quota| quota.as_ref().is_some_and(|new| new.cpus() < best.cpus());
            if tightest.as_ref().is_none_or(tighter) {
                tightest = quota.or(tightest);
            }
        }
        Ok(tightest)
    }

    /// Returns the memory limit that leaves the least.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read or understood.
    pub fn memory(&self) -> Result<Option<GroupLimit>, Error> {
        let v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes");
        let v2 = ("memory.max", "memory.current");
        self.tightest("memory", v1, v2)
    }

    /// Returns the memory that the process may still use before a limit refuses it or slows the
    /// process. In version 1: the limits on memory and on memory with swap. In version 2:
    /// `memory.max` and `memory.high`.
    pub fn memory_left(&self) -> MemoryLeft {
        let is_of_memory = |listed: &Listed| listed.has("memory");
        if self.hidden.iter().any(is_of_memory) {
            return MemoryLeft::Unknown;
        }
        let Some(group) = self.group_of("memory") else { return self.left_without_a_group() };
        if group.view == GroupView::Outside {
            return MemoryLeft::Unknown;
        }
        let files: [(&str, &str); 2] = match group.v1_controllers {
            Some(_) => [
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
            ],
            None => [("memory.max", "memory.current"), ("memory.high", "memory.current")],
        };
        let (mut is_answered, mut tightest) = (false, None::<GroupLimit>);
        for directory in group.directories() {
            for (limit, used) in files {
                is_answered |= self.root.exists(directory.join(limit));
                match self.limit(&directory, limit, used) {
                    Err(_) | Ok(Some(GroupLimit { used: None, .. })) => return MemoryLeft::Unknown,
                    Ok(found) => {
                        tightest = tightest.into_iter().chain(found).min_by_key(GroupLimit::left);
                    }
                }
            }
        }
        let is_known = is_answered || (group.view == GroupView::Whole && self.sees_all_groups());
        tightest.map_or(
            if is_known { MemoryLeft::Unlimited } else { MemoryLeft::Unknown },
            MemoryLeft::Limited,
        )
    }

    /// Returns the memory left if no hierarchy is mounted, or if the kernel has no groups. The root
    /// of all groups has no limit.
    fn left_without_a_group(&self) -> MemoryLeft {
        let is_at_the_root = |listed: &Listed| listed.path == Path::new("/");
        if self.hidden.is_empty()
            || (self.sees_all_groups() && self.hidden.iter().all(is_at_the_root))
        {
            MemoryLeft::Unlimited
        } else {
            MemoryLeft::Unknown
        }
    }

    fn sees_all_groups(&self) -> bool {
        self.root.link("/proc/self/ns/cgroup").as_deref() == Some(SEES_ALL_GROUPS)
    }

    /// Returns the limit on huge pages of one size that leaves the least, in bytes.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read or understood.
    pub fn hugetlb(&self, page_size: u64) -> Result<Option<GroupLimit>, Error> {
        self.hugetlb_files(&hugetlb_name(page_size))
    }

    /// Returns the limit on *reserving* huge pages of one size (mapping them, touched or not) that
    /// leaves the least, in bytes.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read or understood.
    pub fn hugetlb_reservation(&self, page_size: u64) -> Result<Option<GroupLimit>, Error> {
        self.hugetlb_files(&format!("{}.rsvd", hugetlb_name(page_size)))
    }

    /// Returns the CPUs that the cpuset of this process leaves.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read or understood.
    pub fn cpuset(&self) -> Result<Option<Cpuset>, Error> {
        let Some(group) = self.group_of("cpuset") else { return Ok(None) };
        for directory in group.directories() {
            for name in ["cpuset.cpus.effective", "cpuset.effective_cpus"] {
                let effective = directory.join(name);
                if self.root.exists(&effective) {
                    let parse = |text: &str| text.parse().ok();
                    let cpus = self.root.read_value(effective, "a list of CPUs", parse)?;
                    let file = self.root.path(directory.join("cpuset.cpus"));
                    return Ok(Some(Cpuset { cpus, file }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the group of a controller. Version 1 owns each controller that it has mounted; all
    /// others belong to version 2.
    fn group_of(&self, controller: &str) -> Option<&Group> {
        let v2 = || self.groups.iter().find(|group| group.v1_controllers.is_none());
        self.groups.iter().find(|group| group.has(controller)).or_else(v2)
    }

    fn hugetlb_files(&self, prefix: &str) -> Result<Option<GroupLimit>, Error> {
        let name = |suffix| format!("hugetlb.{prefix}.{suffix}");
        let v1 = (name("limit_in_bytes"), name("usage_in_bytes"));
        let v2 = (name("max"), name("current"));
        self.tightest("hugetlb", (&v1.0, &v1.1), (&v2.0, &v2.1))
    }

    fn tightest(
        &self,
        controller: &str,
        v1: (&str, &str),
        v2: (&str, &str),
    ) -> Result<Option<GroupLimit>, Error> {
        let Some(group) = self.group_of(controller) else { return Ok(None) };
        let (limit, used) = if group.v1_controllers.is_some() { v1 } else { v2 };
        let limits: Result<Vec<_>, _> =
            group.directories().map(|directory| self.limit(&directory, limit, used)).collect();
        Ok(limits?.into_iter().flatten().min_by_key(GroupLimit::left))
    }

    fn limit(
        &self,
        directory: &Path,
        limit: &str,
        used: &str,
    ) -> Result<Option<GroupLimit>, Error> {
        let file = directory.join(limit);
        let Some(text) = self.root.read_if_present(&file)? else { return Ok(None) };
        let bytes = match text.trim() {
            "max" => return Ok(None),
            number => number.parse::<u64>(),
        };
        let path = self.root.path(&file);
        let bytes = bytes.map_err(|_| Error::malformed(path.clone(), "bytes or max", &text))?;
        if bytes >= UNLIMITED {
            return Ok(None);
        }
        let used = self.root.read_number(directory.join(used)).ok();
        let used = used.map(|used| used.saturating_sub(self.file_cache(directory)));
        Ok(Some(GroupLimit { bytes, used, file: path }))
    }

    /// Returns the number of bytes of a group's file cache, including the groups below it; 0 for a
    /// controller without this number.
    fn file_cache(&self, directory: &Path) -> u64 {
        let stat = self.root.read(directory.join("memory.stat")).unwrap_or_default();
        let value = |key: &str| -> Option<u64> { text::field(&stat, key)?.trim().parse().ok() };
        // Version 1 counts the group alone under the plain names.
        let bytes =
            |name: &str| value(&format!("total_{name} ")).or_else(|| value(&format!("{name} ")));
        bytes("active_file").unwrap_or(0) + bytes("inactive_file").unwrap_or(0)
    }

    fn quota_v1(&self, directory: &Path) -> Result<Option<Quota>, Error> {
        let file = directory.join("cpu.cfs_quota_us");
        let Some(quota) = self.root.read_if_present(&file)? else { return Ok(None) };
        let period_us = self.root.read_number(directory.join("cpu.cfs_period_us"))?;
        let file = self.root.path(file);
        match quota.trim().parse::<i64>() {
            Ok(quota) if quota < 0 => Ok(None),
            Ok(quota) => Ok(Some(Quota { quota_us: quota.unsigned_abs(), period_us, file })),
            Err(_) => Err(Error::malformed(file, "microseconds or -1", &quota)),
        }
    }

    fn quota_v2(&self, directory: &Path) -> Result<Option<Quota>, Error> {
        let file = directory.join("cpu.max");
        let Some(text) = self.root.read_if_present(&file)? else { return Ok(None) };
        let file = self.root.path(file);
        let malformed = || Error::malformed(file.clone(), "a quota and a period", &text);
        let (quota, period) = text.trim().split_once(' ').ok_or_else(malformed)?;
        if quota == "max" {
            return Ok(None);
        }
        let number = |word: &str| word.parse::<u64>().map_err(|_| malformed());
        Ok(Some(Quota { quota_us: number(quota)?, period_us: number(period)?, file: file.clone() }))
    }
}

/// Returns the kernel's name for a huge-page size in cgroup files: `64KB`, `2MB`, `1GB`.
fn hugetlb_name(page_size: u64) -> String {
    match page_size {
        size if size >= 1 << 30 => format!("{}GB", size >> 30),
        size if size >= 1 << 20 => format!("{}MB", size >> 20),
        size => format!("{}KB", size >> 10),
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

fn words(bytes: &[u8], between: u8) -> impl Iterator<Item = &[u8]> {
    bytes.split(move |&byte| byte == between)
}

fn strings(bytes: &[u8]) -> Vec<String> {
    words(bytes, b',').map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// A line of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    /// The controllers of a version 1 hierarchy; `None` for version 2.
    v1_controllers: Option<Vec<String>>,
    path: PathBuf,
}

impl Listed {
    /// Parses `NUMBER:CONTROLLERS:PATH`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let v1_controllers = (!controllers.is_empty()).then(|| strings(controllers));
        Some(Self { v1_controllers, path: PathBuf::from(OsStr::from_bytes(path)) })
    }

    fn has(&self, controller: &str) -> bool {
        let named = |names: &Vec<String>| names.iter().any(|name| name == controller);
        self.v1_controllers.as_ref().is_some_and(named)
    }

    /// Returns the group below the mount that shows its hierarchy.
    fn shown_by(&self, mounts: &[Mount]) -> Option<Group> {
        let controllers = self.v1_controllers.as_deref();
        let candidates = || mounts.iter().filter(|mount| mount.shows(controllers));
        let below = |mount: &Mount| self.path.strip_prefix(&mount.top).ok().map(Path::to_owned);
        let is_above = |path: &Path| path.components().any(|part| part.as_os_str() == "..");
        let reaches = candidates().find_map(|mount| Some((mount, below(mount)?)));
        let (mount, path, view) = match reaches {
            Some((mount, path)) if !is_above(&path) => {
                let is_whole = mount.top == Path::new("/");
                (mount, path, if is_whole { GroupView::Whole } else { GroupView::Part })
            }
            // A mount that does not reach the group (another cgroup namespace) still shows limits above it.
            _ => (candidates().next()?, PathBuf::new(), GroupView::Outside),
        };
        let v1_controllers = self.v1_controllers.clone();
        Some(Group { v1_controllers, mount: mount.point.clone(), path, view })
    }
}

/// A mounted hierarchy.
struct Mount {
    /// The group that appears at the mount point.
    top: PathBuf,
    point: PathBuf,
    /// The controllers of version 1 among other options; `None` for version 2.
    v1_options: Option<Vec<String>>,
}

impl Mount {
    /// Parses a line of `mountinfo` (see proc(5)). `None` for anything except a cgroup mount.
    fn parse(line: &[u8]) -> Option<Self> {
        let dash = line.windows(3).position(|three| three == b" - ")?;
        let mut system = words(&line[dash + 3..], b' ');
        let v1_options = match system.next()? {
            b"cgroup" => Some(strings(system.nth(1)?)),
            b"cgroup2" => None,
            _ => return None,
        };
        let mut mount = words(&line[..dash], b' ').skip(3).map(unescape);
        Some(Self { top: mount.next()?, point: mount.next()?, v1_options })
    }

    fn shows(&self, v1_controllers: Option<&[String]>) -> bool {
        match (&self.v1_options, v1_controllers) {
            (Some(options), Some(controllers)) => {
                controllers.iter().all(|name| options.contains(name))
            }
            (None, None) => true,
            _ => false,
        }
    }
}

/// Decodes a path of `mountinfo`, which writes spaces and similar characters as three octal digits
/// after a backslash.
fn unescape(word: &[u8]) -> PathBuf {
    let octal = |digits: &[u8]| {
        digits.iter().try_fold(0u8, |value, digit| {
            let digit = digit.checked_sub(b'0').filter(|&digit| digit < 8)?;
            value.checked_mul(8)?.checked_add(digit)
        })
    };
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = behind.get(..3).filter(|_| first == b'\\').and_then(octal);
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &behind[3..] } else { behind };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    const CGROUP: &str = "/sys/fs/cgroup";

    fn mount_line(top: &str, point: &str, kind: &str, options: &str) -> String {
        format!("31 23 0:28 {top} {point} rw,relatime shared:4 - {kind} {kind} {options}")
    }

    fn v2(own: &str) -> Synthetic {
        let machine = Synthetic::new();
        machine.file("/proc/self/cgroup", format!("0::{own}"));
        machine.file("/proc/self/mountinfo", mount_line("/", CGROUP, "cgroup2", "rw"));
        machine
    }

    fn hybrid(own: &str) -> Synthetic {
        let machine = Synthetic::new();
        machine.file("/proc/self/cgroup", format!("4:memory:{own}\n1:cpu,cpuacct:{own}\n0::/"));
        let lines = [
            mount_line("/", "/sys/fs/cgroup/memory", "cgroup", "rw,memory"),
            mount_line("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"),
            mount_line("/", "/sys/fs/cgroup/unified", "cgroup2", "rw"),
        ];
        machine.file("/proc/self/mountinfo", lines.join("\n"));
        machine
    }

    fn read(machine: &Synthetic) -> Cgroups {
        Cgroups::read(&machine.root()).unwrap()
    }

    #[test]
    fn limits_of_version_2_are_the_tightest_on_the_way_up() {
        let machine = v2("/user.slice/job");
        let memory = |max, current| [("memory.max", max), ("memory.current", current)];
        machine.files("/sys/fs/cgroup/user.slice", &memory("4096", "1024"));
        machine.files("/sys/fs/cgroup/user.slice/job", &memory("max", "512"));
        let cgroups = read(&machine);
        assert_eq!(cgroups.layout(), Layout::V2);
        let limit = cgroups.memory().unwrap().unwrap();
        assert_eq!((limit.bytes, limit.used), (4096, Some(1024)));
        assert_eq!(limit.file, machine.root().path("/sys/fs/cgroup/user.slice/memory.max"));
    }

    #[test]
    fn limits_of_version_2_on_cpus_are_quota_and_cpuset() {
        let machine = v2("/a/b");
        machine.file("/sys/fs/cgroup/a/cpu.max", "150000 100000");
        machine.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000");
        machine.file("/sys/fs/cgroup/a/cpuset.cpus.effective", "0-2");
        let cgroups = read(&machine);
        assert_eq!(cgroups.cpu_quota().unwrap().unwrap().cpus(), 1.5);
        assert_eq!(cgroups.cpuset().unwrap().unwrap().cpus.to_string(), "0-2");
    }

    #[test]
    fn memory_left_beside_file_cache_is_the_least_of_the_groups() {
        let machine = v2("/a/b");
        let limits = |group: &str, max: &str, current: &str, stat: &str| {
            let files = [("memory.max", max), ("memory.current", current), ("memory.stat", stat)];
            machine.files(&format!("/sys/fs/cgroup/a{group}"), &files);
        };
        limits(
            "",
            "9000",
            "8500",
            "anon 500\nactive_file 10\ninactive_file 490\nx_inactive_file 9",
        );
        limits("/b", "5000", "1000", "inactive_file 100\ntotal_inactive_file 200");
        let limit = read(&machine).memory().unwrap().unwrap();
        assert_eq!((limit.bytes, limit.used, limit.left()), (9000, Some(8000), 1000));
        limits("", "9000", "100", "");
        let limit = read(&machine).memory().unwrap().unwrap();
        assert_eq!((limit.bytes, limit.used, limit.left()), (5000, Some(800), 4200));
    }

    #[test]
    fn limits_of_version_2_on_hugetlb_are_per_size() {
        let machine = v2("/a");
        machine.files(
            "/sys/fs/cgroup/a",
            &[
                ("hugetlb.2MB.max", "0"),
                ("hugetlb.1GB.max", "max"),
                ("hugetlb.2MB.rsvd.max", "4194304"),
            ],
        );
        let cgroups = read(&machine);
        assert_eq!(cgroups.hugetlb(2 << 20).unwrap().unwrap().bytes, 0);
        assert_eq!(cgroups.hugetlb(1 << 30).unwrap(), None);
        assert_eq!(cgroups.hugetlb_reservation(2 << 20).unwrap().unwrap().bytes, 4 << 20);
    }

    #[test]
    fn limits_of_hybrid_controllers_are_those_of_version_1() {
        let machine = hybrid("/job");
        machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        machine.file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8192");
        let cpu = |quota| [("cpu.cfs_quota_us", quota), ("cpu.cfs_period_us", "100000")];
        machine.files("/sys/fs/cgroup/cpu,cpuacct", &cpu("-1"));
        machine.files("/sys/fs/cgroup/cpu,cpuacct/job", &cpu("50000"));
        let cgroups = read(&machine);
        assert_eq!(cgroups.layout(), Layout::Hybrid);
        assert_eq!(cgroups.memory().unwrap().unwrap().bytes, 8192);
        assert_eq!(cgroups.cpu_quota().unwrap().unwrap().cpus(), 0.5);
        assert_eq!(cgroups.hugetlb(2 << 20).unwrap(), None);
    }

    #[test]
    fn limits_of_version_1_unset_are_none() {
        let machine = hybrid("/");
        machine.file("/proc/self/cgroup", "4:memory:/");
        machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        let cgroups = read(&machine);
        assert_eq!(cgroups.layout(), Layout::V1);
        assert_eq!(cgroups.memory().unwrap(), None);
        assert_eq!(cgroups.cpu_quota().unwrap(), None);
        assert_eq!(cgroups.cpuset().unwrap(), None);
    }

    fn left(machine: &Synthetic) -> Option<u64> {
        match Cgroups::of(&machine.root(), 7).unwrap().memory_left() {
            MemoryLeft::Limited(limit) => Some(limit.left()),
            MemoryLeft::Unlimited => Some(u64::MAX),
            MemoryLeft::Unknown => None,
        }
    }

    /// Returns a machine on which process 7 is in these groups.
    fn of_seven(groups: &str, mounts: &[String]) -> Synthetic {
        let machine = Synthetic::new();
        machine.file("/proc/7/cgroup", groups);
        machine.file("/proc/self/mountinfo", mounts.join("\n"));
        machine
    }

    const MEMORY: &str = "/sys/fs/cgroup/memory";

    fn v1_mounts(top: &str) -> [String; 2] {
        [
            mount_line(top, MEMORY, "cgroup", "rw,memory"),
            mount_line("/", "/sys/fs/cgroup/unified", "cgroup2", "rw"),
        ]
    }

    #[test]
    fn memory_left_in_version_1_counts_parents_and_swap() {
        let machine = of_seven("4:memory:/a/b\n0::/\n", &v1_mounts("/"));
        let group = |name: &str, limit, used, memsw_limit, memsw_used| {
            let files = [
                ("memory.limit_in_bytes", limit),
                ("memory.usage_in_bytes", used),
                ("memory.memsw.limit_in_bytes", memsw_limit),
                ("memory.memsw.usage_in_bytes", memsw_used),
            ];
            machine.files(&format!("{MEMORY}{name}"), &files);
        };
        let none = "9223372036854771712";
        group("", none, "9000", none, "9000");
        group("/a", none, "900", none, "900");
        group("/a/b", none, "900", none, "900");
        assert_eq!(left(&machine), Some(u64::MAX));
        group("/a/b", "1000", "900", none, "900");
        assert_eq!(left(&machine), Some(100));
        group("/a", "950", "900", none, "900");
        assert_eq!(left(&machine), Some(50));
        group("/a", "950", "900", "960", "940");
        assert_eq!(left(&machine), Some(20));
    }

    #[test]
    fn memory_left_in_version_2_counts_what_is_slowed() {
        let machine = of_seven("0::/a\n", &[mount_line("/", CGROUP, "cgroup2", "rw")]);
        let files = [("memory.max", "1000"), ("memory.high", "700"), ("memory.current", "600")];
        machine.files("/sys/fs/cgroup/a", &files);
        assert_eq!(left(&machine), Some(100));
        machine.file("/sys/fs/cgroup/a/memory.high", "max");
        assert_eq!(left(&machine), Some(400));
    }

    #[test]
    fn memory_left_is_unknown_when_a_limit_may_be_hidden() {
        let unified = || mount_line("/", "/sys/fs/cgroup/unified", "cgroup2", "rw");
        let hidden = of_seven("4:memory:/a\n0::/\n", &[unified()]);
        assert_eq!(left(&hidden), None, "the controller is of version 1, and mounted elsewhere");
        let outside = of_seven("4:memory:/b\n0::/\n", &v1_mounts("/a"));
        outside.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(left(&outside), None, "the mount shows another part of the hierarchy");
        let above = of_seven("0::/../b\n", &[mount_line("/", CGROUP, "cgroup2", "rw")]);
        above.file("/sys/fs/cgroup/memory.max", "max");
        assert_eq!(left(&above), None, "the group is above this process's namespace");
        let garbage = of_seven("4:memory:/a\n", &v1_mounts("/"));
        garbage.file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "plenty");
        assert_eq!(left(&garbage), None, "the file cannot be understood");
        let unused = of_seven("4:memory:/a\n", &v1_mounts("/"));
        unused.file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000");
        assert_eq!(left(&unused), None, "the use cannot be read");
        let unmounted = of_seven("0::/a\n", &[]);
        assert_eq!(left(&unmounted), None, "no hierarchy is mounted");
        let inner = of_seven("0::/\n", &[]);
        assert_eq!(left(&inner), None, "the root of this namespace need not be the machine's");
    }

    #[test]
    fn memory_left_is_unlimited_when_no_group_limits_it() {
        assert_eq!(left(&of_seven("", &[])), Some(u64::MAX), "a kernel without groups");
        let at_the_root = of_seven("0::/\n", &[mount_line("/", CGROUP, "cgroup2", "rw")]);
        assert_eq!(left(&at_the_root), None);
        at_the_root.link("/proc/self/ns/cgroup", SEES_ALL_GROUPS);
        assert_eq!(left(&at_the_root), Some(u64::MAX));
        let in_a_container = of_seven("0::/\n", &[mount_line("/", CGROUP, "cgroup2", "rw")]);
        in_a_container.file("/sys/fs/cgroup/memory.max", "max");
        assert_eq!(left(&in_a_container), Some(u64::MAX));
    }

    #[test]
    fn memory_left_is_found_below_names_that_are_not_utf_8() {
        let machine = Synthetic::new();
        machine.bytes("/proc/7/cgroup", b"4:memory:/\xff\xfe\n");
        let other = b"1 1 0:1 / /\xff rw - tmpfs x rw\n";
        let mount = b"1 1 0:1 / /gr\xe9\\040\\377 rw - cgroup cgroup rw,memory\n";
        machine.bytes("/proc/self/mountinfo", &[&other[..], mount].concat());
        let group = Path::new(OsStr::from_bytes(b"/gr\xe9 \xff/\xff\xfe"));
        machine.bytes(group.join("memory.limit_in_bytes"), b"1000");
        machine.bytes(group.join("memory.usage_in_bytes"), b"900");
        assert_eq!(left(&machine), Some(100));
    }

    #[test]
    fn limits_in_a_container_are_of_its_part_of_the_hierarchy() {
        let machine = v2("/docker/1234/inner");
        machine.file("/proc/self/mountinfo", mount_line("/docker/1234", CGROUP, "cgroup2", "ro"));
        machine.file("/sys/fs/cgroup/memory.max", "8192");
        machine.file("/sys/fs/cgroup/inner/memory.max", "4096");
        assert_eq!(read(&machine).memory().unwrap().unwrap().bytes, 4096);
    }

    #[test]
    fn limits_of_a_group_outside_the_mount_are_those_of_its_top() {
        let machine = v2("/../outside");
        machine.file("/proc/self/mountinfo", mount_line("/docker/1234", CGROUP, "cgroup2", "ro"));
        machine.file("/sys/fs/cgroup/memory.max", "8192");
        assert_eq!(read(&machine).memory().unwrap().unwrap().bytes, 8192);
    }

    #[test]
    fn limits_below_a_mount_with_spaces_are_read() {
        let machine = v2("/");
        machine.file("/proc/self/mountinfo", mount_line("/", r"/my\040groups", "cgroup2", "rw"));
        machine.file("/my groups/memory.max", "8192");
        assert_eq!(read(&machine).memory().unwrap().unwrap().bytes, 8192);
    }

    #[test]
    fn limits_without_cgroups_are_none() {
        let cgroups = read(&Synthetic::new());
        assert_eq!(cgroups.layout(), Layout::None);
        assert_eq!(cgroups.memory().unwrap(), None);
    }

    #[test]
    fn limits_of_garbage_are_an_error_that_names_it() {
        let machine = v2("/");
        machine.file("/sys/fs/cgroup/memory.max", "plenty");
        machine.file("/sys/fs/cgroup/cpu.max", "1");
        let cgroups = read(&machine);
        assert!(cgroups.memory().unwrap_err().to_string().contains("memory.max"));
        assert!(cgroups.cpu_quota().unwrap_err().to_string().contains("cpu.max"));
    }

    #[test]
    fn hugetlb_names_of_sizes_are_the_kernels() {
        let names: Vec<String> = [64 << 10, 2 << 20, 512 << 20, 16 << 30].map(hugetlb_name).into();
        assert_eq!(names, ["64KB", "2MB", "512MB", "16GB"]);
    }
}
