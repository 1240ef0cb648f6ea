//! Control groups of clients, which a populating process joins.

use std::path::PathBuf;

use hugekit_lease::protocol::Payer;
use hugekit_machine::Root;
use hugekit_machine::cgroup::Cgroups;

use crate::connection::Connection;

/// The groups that a populating process joins, and the payer that the kernel then charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    /// Directories of control groups.
    pub(crate) groups: Vec<PathBuf>,
    pub(crate) payer: Payer,
}

impl Charged {
    pub(crate) fn to_the_broker() -> Self {
        Self { groups: Vec::new(), payer: Payer::Broker }
    }

    pub(crate) fn to_group(group: PathBuf) -> Self {
        Self { groups: vec![group], payer: Payer::Group }
    }

    /// Charges the client of a connection, if its groups can be found.
    pub(crate) fn to_client(root: &Root, connection: &Connection, controller: &str) -> Self {
        let (pid, uid) = (connection.pid(), connection.uid());
        let charged = Self::to_process(root, pid, uid, controller);
        if charged.payer == Payer::Broker {
            tracing::warn!(
                "memory for process {pid} of user {uid} is charged to the broker: the process has ended, or no mount here \
                 shows its control group that counts {controller}"
            );
        }
        charged
    }

    /// Charges the groups of a process of that user. The number may belong to another user's
    /// process by now.
    ///
    /// The populating process joins all groups of the client that may count or stop it. The client
    /// pays if the group of the controller that counts this memory is one of them.
    fn to_process(root: &Root, pid: u32, uid: u32, controller: &str) -> Self {
        let pid = pid.cast_signed();
        let groups = (owner(root, pid) == Some(uid)).then(|| Cgroups::of(root, pid).ok()).flatten();
        let Some(groups) = groups else { return Self::to_the_broker() };
        let counting = groups.directory(controller);
        let payer = if counting.is_some() { Payer::Client } else { Payer::Broker };
        let others = ["memory", "hugetlb"].map(|name| groups.directory(name));
        let found = [counting, groups.unified_directory()].into_iter().chain(others).flatten();
        let mut groups: Vec<PathBuf> = found.collect();
        groups.sort();
        groups.dedup();
        Self { groups, payer }
    }
}

/// Returns the effective user of a process.
fn owner(root: &Root, pid: i32) -> Option<u32> {
    let status = root.read(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn machine(cgroup: &str, mounts: &str) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for of in ["self", "7"] {
            fs::create_dir_all(folder.path().join("proc").join(of)).unwrap();
        }
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("proc/7/status", "Name:\tvm\nUid:\t1000\t1000\t1000\t1000\n");
        write("proc/7/cgroup", cgroup);
        write("proc/self/mountinfo", mounts);
        let root = Root::at(folder.path());
        (folder, root)
    }

    /// Returns the payer of memory of process 7, according to these files.
    fn charged(cgroup: &str, mounts: &str) -> (Vec<String>, Payer) {
        let (folder, root) = machine(cgroup, mounts);
        let Charged { groups, payer } = Charged::to_process(&root, 7, 1000, "memory");
        let below = |path: &PathBuf| {
            let path = path.strip_prefix(folder.path()).unwrap();
            format!("/{}", path.display()).trim_end_matches('/').to_owned()
        };
        (groups.iter().map(below).collect(), payer)
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        let found = charged("0::/user/vm\n", mounts);
        assert_eq!(found, (vec!["/sys/fs/cgroup/user/vm".to_owned()], Payer::Client));
        let mounts = "30 23 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n\
                      31 23 0:28 /outer /cg/mem rw - cgroup cgroup rw,memory\n\
                      32 23 0:29 / /cg/u rw shared:4 - cgroup2 cgroup2 rw";
        let found = charged("4:memory:/outer/vm\n3:cpu:/x\n0::/\n", mounts);
        assert_eq!(found, (vec!["/cg/mem/vm".to_owned(), "/cg/u".to_owned()], Payer::Client));
    }

    #[test]
    fn groups_of_a_process_of_another_user_or_out_of_sight_are_none() {
        let mounts = "31 23 0:28 /inner /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        let (_folder, root) = machine("0::/inner/vm\n", mounts);
        let payer = |pid, uid| Charged::to_process(&root, pid, uid, "memory").payer;
        assert_eq!(payer(7, 1000), Payer::Client);
        assert_eq!(payer(7, 0), Payer::Broker);
        assert_eq!(payer(8, 1000), Payer::Broker);
        assert_eq!(charged("0::/outer/vm\n", mounts), (vec![], Payer::Broker));
    }

    #[test]
    fn group_whose_name_begins_as_that_of_a_mount_is_not_below_it() {
        let mounts = "31 23 0:28 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(charged("0::/ab/vm\n", mounts), (vec![], Payer::Broker));
    }

    #[test]
    fn group_below_a_mount_with_a_space_is_found() {
        let mounts = r"31 23 0:28 /a\040b /my\040groups rw - cgroup2 cgroup2 rw";
        let found = charged("0::/a b/vm\n", mounts);
        assert_eq!(found, (vec!["/my groups/vm".to_owned()], Payer::Client));
    }

    #[test]
    fn groups_beside_a_hierarchy_that_is_not_mounted_are_found() {
        let listed = "4:memory:/vm\n3:hugetlb:/vm\n0::/vm\n";
        let mounts = "31 23 0:28 / /cg/mem rw - cgroup cgroup rw,memory";
        assert_eq!(charged(listed, mounts), (vec!["/cg/mem/vm".to_owned()], Payer::Client));
        // The client does not pay if the group that counts its memory is the one that is not found.
        let mounts = "31 23 0:28 / /cg/u rw - cgroup2 cgroup2 rw";
        assert_eq!(charged(listed, mounts), (vec!["/cg/u/vm".to_owned()], Payer::Broker));
    }
}
