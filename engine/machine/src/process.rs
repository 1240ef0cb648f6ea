//! Privileges of this process: identity, capabilities, system-call filter, namespaces.

use super::{Error, Root, text};

const CAP_SYS_PTRACE: u32 = 19;

/// The map of the first user namespace, which maps every user to itself. Any other namespace maps
/// fewer.
const EVERY_USER: &str = "0 0 4294967295";

/// Privileges of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The effective user.
    pub user: u32,
    /// The effective capabilities, one bit each.
    pub capabilities: u64,
    /// The active system-call filter.
    pub seccomp: Seccomp,
    /// True if capabilities count for the whole machine: false in a container's own user namespace.
    pub in_first_user_namespace: bool,
    /// True if this process gets transparent huge pages; false after `prctl(PR_SET_THP_DISABLE)`, which
    /// children inherit.
    pub thp_allowed: bool,
}

/// State of seccomp for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// No filter, or a kernel without seccomp.
    Off,
    /// Only `read`, `write` and `exit` are permitted.
    Strict,
    /// Filter programs decide about each system call.
    Filter,
}

impl Process {
    /// Reads `/proc/self/status` and `/proc/self/uid_map`.
    ///
    /// # Errors
    /// [`Error`] if the status cannot be read, or does not contain identity or capabilities.
    pub fn read(root: &Root) -> Result<Self, Error> {
        let user_map = root.read_if_present("/proc/self/uid_map")?;
        let in_first_user_namespace = user_map.is_none_or(|map| maps_every_user(&map));
        root.read_value("/proc/self/status", "Uid and CapEff", |status| {
            Some(Self {
                user: text::field(status, "Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()?,
                capabilities: u64::from_str_radix(text::field(status, "CapEff:")?, 16).ok()?,
                seccomp: seccomp(text::field(status, "Seccomp:")),
                in_first_user_namespace,
                thp_allowed: allows_thp(status),
            })
        })
    }

    /// Returns true if another process gets transparent huge pages; `None` if its status cannot be
    /// read.
    #[must_use]
    pub fn thp_allowed_of(root: &Root, pid: i32) -> Option<bool> {
        let status = root.read_if_present(format!("/proc/{pid}/status")).ok().flatten()?;
        Some(allows_thp(&status))
    }

    /// Returns true if the kernel treats this process as having `CAP_SYS_PTRACE`, which counts only
    /// in the first user namespace.
    pub fn may_trace(&self) -> bool {
        self.in_first_user_namespace && self.capabilities & (1 << CAP_SYS_PTRACE) != 0
    }
}

/// Returns true if transparent huge pages are permitted. The status of older kernels does not
/// contain this.
fn allows_thp(status: &str) -> bool {
    text::field(status, "THP_enabled:") != Some("0")
}

fn maps_every_user(map: &str) -> bool {
    map.split_ascii_whitespace().eq(EVERY_USER.split(' '))
}

fn seccomp(field: Option<&str>) -> Seccomp {
    match field {
        Some("1") => Seccomp::Strict,
        Some("2") => Seccomp::Filter,
        _ => Seccomp::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    fn process(capabilities: &str, seccomp: &str, map: &str) -> Process {
        let machine = Synthetic::new();
        let status =
            format!("Uid:\t1000\t1001\t0\t0\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}");
        machine.file("/proc/self/status", status).file("/proc/self/uid_map", map);
        Process::read(&machine.root()).unwrap()
    }

    #[test]
    fn status_of_two_users_counts_the_effective_one() {
        assert_eq!(process("0", "0", EVERY_USER).user, 1001);
    }

    #[test]
    fn trace_by_root_is_allowed_but_not_from_a_user_namespace() {
        let all = "000001ffffffffff";
        assert!(process(all, "0", "         0          0 4294967295").may_trace());
        assert!(!process(all, "0", "         0       1000          1").may_trace());
        assert!(!process("0000000000000000", "0", EVERY_USER).may_trace());
        assert!(process("0000000000080000", "0", EVERY_USER).may_trace());
    }

    #[test]
    fn status_with_filters_tells_them_apart() {
        assert_eq!(process("0", "0", EVERY_USER).seccomp, Seccomp::Off);
        assert_eq!(process("0", "1", EVERY_USER).seccomp, Seccomp::Strict);
        assert_eq!(process("0", "2", EVERY_USER).seccomp, Seccomp::Filter);
    }

    #[test]
    fn status_without_the_thp_field_allows_it() {
        assert!(process("0", "0", EVERY_USER).thp_allowed);
    }
}
