//! The processes to tend.

use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

use hugekit_machine::{Root, processes};
use hugekit_tend::{TendError, forked_from};
use rustix::fs::statfs;

use hugekit_terminal::outcome::Remedied;

/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of the kernel's `magic.h`.
const OF_GROUPS: [u32; 2] = [0x0027_e0eb, 0x6367_7270];

/// The processes that the user has named.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) pids: Vec<i32>,
    pub(super) names: Vec<OsString>,
    pub(super) groups: Vec<PathBuf>,
    /// The program that was started for it, which may start another one in its own place.
    pub(super) started: Option<i32>,
}

impl Wanted {
    /// Returns true if processes may come that are not there yet.
    pub(super) fn follows(&self) -> bool {
        !self.names.is_empty() || !self.groups.is_empty()
    }

    /// A folder that lies in no file system of control groups never becomes a group. One that does may come later: a
    /// service has a control group while it runs.
    ///
    /// # Errors
    /// A group is no folder of control groups, and cannot become one. With `once`, it is none now.
    pub(super) fn check(&self, once: bool) -> anyhow::Result<()> {
        for group in &self.groups {
            if let Some(wrong) = UnfitGroup::of(group, once) {
                return Err(Remedied {
                    message: format!("no such control group: {}{}", group.display(), wrong.why()),
                    remedy: wrong.remedy(once, &std::fs::read_to_string("/proc/mounts")?),
                }
                .into());
            }
        }
        Ok(())
    }

    /// # Errors
    /// The process, which is named by its number, was forked by another one that is not named.
    pub(super) fn check_parent(&self, pid: i32) -> anyhow::Result<()> {
        match forked_from(pid).filter(|parent| !self.pids.contains(parent)) {
            None => Ok(()),
            Some(parent) => Err(Remedied {
                message: format!("process {pid} is a child of {parent} (forked to save?)"),
                remedy: format!("give {parent}"),
            }
            .into()),
        }
    }

    /// All that exist now, except this process.
    pub(super) fn now(&self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let named = self.pids.iter().copied().chain(self.started);
        named.chain(find_processes(&self.names, &self.groups)).filter(|&pid| pid != own).collect()
    }

    /// Returns the names and groups without a process.
    pub(super) fn unmatched(&self) -> String {
        let names = self.names.iter().filter(|name| hugekit_tend::named(&[name]).is_empty());
        let names = names.map(|name| format!("no process is named {}", name.to_string_lossy()));
        let groups = self.groups.iter().filter_map(|group| {
            let reason = match processes(group) {
                Ok(processes) if !processes.is_empty() => return None,
                Ok(_) => "has no process".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            };
            Some(format!("{} {reason}", group.display()))
        });
        names.chain(groups).collect::<Vec<_>>().join(", ")
    }
}

/// Processes of these names and control groups.
pub(super) fn find_processes(names: &[OsString], groups: &[PathBuf]) -> Vec<i32> {
    let of_groups = groups.iter().flat_map(|group| processes(group).unwrap_or_default());
    of_groups.chain(hugekit_tend::named(names)).collect()
}

/// The reason why a path cannot be tended as a control group.
#[derive(Debug, PartialEq)]
enum UnfitGroup {
    /// There is no such folder, where there could be one.
    Missing,
    NoFolder,
    /// This folder lies in another file system.
    Elsewhere(PathBuf),
}

impl UnfitGroup {
    /// Nothing of a folder of control groups. One that may be made in one is only missing `once`.
    fn of(path: &Path, once: bool) -> Option<Self> {
        let path = absolute(path).unwrap_or_else(|_| path.to_owned());
        let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let is_of_groups = statfs(existing).is_ok_and(|of| OF_GROUPS.contains(&(of.f_type as u32)));
        if !is_of_groups {
            Some(Self::Elsewhere(existing.to_owned()))
        } else if !existing.is_dir() {
            Some(Self::NoFolder)
        } else {
            (once && existing != path).then_some(Self::Missing)
        }
    }

    fn why(&self) -> String {
        match self {
            Self::Missing => String::new(),
            Self::NoFolder => ": it is no folder".to_owned(),
            Self::Elsewhere(folder) => {
                format!(": {} is in no file system of control groups", folder.display())
            }
        }
    }

    fn remedy(&self, once: bool, mounts: &str) -> String {
        let later = if once { "" } else { " (the service may start later)" };
        match (self, mount_of_groups(mounts)) {
            (Self::Missing, _) => "correct the name, or start its service first: --once does not \
                wait (`systemctl show -p ControlGroup SERVICE` prints the name)"
                .to_owned(),
            (_, Some(mount)) => {
                format!("write a folder below {mount}, where control groups are mounted{later}")
            }
            (_, None) => "no control groups are mounted: write --name or a PID".to_owned(),
        }
    }
}

/// Returns the folder at which control groups are mounted: version 2 if it is there.
fn mount_of_groups(mounts: &str) -> Option<&str> {
    let of = |kind: &str| {
        let mut mounts = mounts.lines().map(|line| line.split(' ').skip(1));
        mounts.find_map(|mut fields| {
            let mount = fields.next()?;
            (fields.next()? == kind).then_some(mount)
        })
    };
    of("cgroup2").or_else(|| of("cgroup"))
}

/// Returns the process that has the lock by which a second tender notices the first, if the kernel
/// shows it here.
pub(super) fn tender_of(error: &TendError) -> Option<u32> {
    let TendError::Taken { pid } = *error else { return None };
    let pages = rustix::fs::stat(format!("/proc/{pid}/pagemap")).ok()?;
    processes::holder_of_lock(&Root::default(), pages.st_dev, pages.st_ino)
}

fn processes(group: &Path) -> std::io::Result<Vec<i32>> {
    let listed = std::fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(listed.lines().filter_map(|pid| pid.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "cgroup /sys/fs/cgroup/pids cgroup rw 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn remedy_names_the_place_where_groups_are_mounted() {
        let elsewhere = UnfitGroup::Elsewhere("/tmp".into());
        let remedy = elsewhere.remedy(false, HYBRID);
        assert!(remedy.starts_with("write a folder below /sys/fs/cgroup/unified, "), "{remedy}");
        assert!(remedy.ends_with("(the service may start later)"), "{remedy}");
        assert!(!elsewhere.remedy(true, HYBRID).contains("later"), "--once does not wait");
        let without = elsewhere.remedy(false, "proc /proc proc rw 0 0\n");
        assert!(without.contains("write --name or a PID"), "{without}");
        let old = elsewhere.remedy(true, &HYBRID.replace("cgroup2 rw", "tmpfs rw"));
        assert!(old.contains("below /sys/fs/cgroup/pids, "), "{old}");
    }
}
