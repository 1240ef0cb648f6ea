//! The processes to tend.

use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

use hugekit_tend::forked_from;
use rustix::fs::statfs;

use crate::usage::Remedied;

/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of the kernel's `magic.h`.
const OF_GROUPS: [u32; 2] = [0x0027_e0eb, 0x6367_7270];

/// As the user has named them.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) pids: Vec<i32>,
    pub(super) names: Vec<OsString>,
    pub(super) groups: Vec<PathBuf>,
    /// The program that was started for it, which may start another one in its own place.
    pub(super) started: Option<i32>,
}

impl Wanted {
    /// Whether processes may come that are not there yet.
    pub(super) fn follows(&self) -> bool {
        !self.names.is_empty() || !self.groups.is_empty()
    }

    /// A folder that lies in no file system of control groups never becomes a group. One that does may come later: a
    /// service has a control group while it runs.
    ///
    /// # Errors
    /// A group is no folder of control groups, and cannot become one.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match self.groups.iter().find(|group| !may_be_a_group(group)) {
            None => Ok(()),
            Some(group) => Err(Remedied {
                message: format!("no such control group: {}", group.display()),
                remedy: "write a folder below /sys/fs/cgroup (the service may start later)"
                    .to_owned(),
            }
            .into()),
        }
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

    /// The names and groups without a process.
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

/// Whether it is a folder of control groups, or may be made in one.
fn may_be_a_group(path: &Path) -> bool {
    let Ok(path) = absolute(path) else { return false };
    let existing = path.ancestors().find(|folder| folder.exists());
    existing.is_some_and(|folder| {
        folder.is_dir() && statfs(folder).is_ok_and(|of| OF_GROUPS.contains(&(of.f_type as u32)))
    })
}

fn processes(group: &Path) -> std::io::Result<Vec<i32>> {
    let listed = std::fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(listed.lines().filter_map(|pid| pid.parse().ok()).collect())
}
