//! Which processes are to be tended.

use std::path::PathBuf;

/// As the user has named them.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) pids: Vec<i32>,
    pub(super) names: Vec<String>,
    pub(super) groups: Vec<PathBuf>,
    /// The program that was started for it, which may start another one in its own place.
    pub(super) started: Option<i32>,
}

impl Wanted {
    /// Whether processes may come that are not there yet.
    pub(super) fn follows(&self) -> bool {
        !self.names.is_empty() || !self.groups.is_empty()
    }

    /// All that there are now, but this process.
    pub(super) fn now(&self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let named = self.pids.iter().copied().chain(self.started);
        named.chain(found(&self.names, &self.groups)).filter(|&pid| pid != own).collect()
    }
}

/// Processes of these names and control groups.
pub(super) fn found(names: &[String], groups: &[PathBuf]) -> Vec<i32> {
    let of_groups = groups.iter().flat_map(|group| {
        let processes = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        processes.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    });
    of_groups.chain(hugekit_tend::named(names)).collect()
}
