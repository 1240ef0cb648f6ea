//! The processes to tend.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

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

fn processes(group: &Path) -> std::io::Result<Vec<i32>> {
    let listed = std::fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(listed.lines().filter_map(|pid| pid.parse().ok()).collect())
}
