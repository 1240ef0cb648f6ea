//! Control groups of other processes, as directories that a process can be placed in.

use std::path::PathBuf;

use hugekit_machine::Root;

/// The directories of the groups by which a process is charged for memory and for huge pages, if all of them can be
/// found. The process has to be of that user still: its number may be another's by now.
pub(crate) fn of_process(root: &Root, pid: u32, uid: u32) -> Option<Vec<PathBuf>> {
    let text = |file: &str| {
        // The name of a process may be any bytes.
        let bytes = std::fs::read(root.path(file)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let status = text(&format!("/proc/{pid}/status"))?;
    let owner = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if owner.split_ascii_whitespace().nth(1)?.parse() != Ok(uid) {
        return None;
    }
    let groups = text(&format!("/proc/{pid}/cgroup"))?;
    let mounts = text("/proc/self/mountinfo")?;
    let paths = groups.lines().filter_map(charging);
    let folders: Vec<_> =
        paths.map(|(controller, path)| folder(&mounts, controller, path)).collect::<Option<_>>()?;
    (!folders.is_empty()).then_some(folders)
}

/// The controller and the path of a line of `/proc/PID/cgroup`, if memory is charged by it: `""` for version 2.
fn charging(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let mut names = controllers.split(',');
    names.find(|name| ["", "memory", "hugetlb"].contains(name)).map(|name| (name, path))
}

/// The directory of a group below the mount that shows its hierarchy.
fn folder(mounts: &str, controller: &str, path: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (shown, at) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let is_it = match controller {
            "" => kind == "cgroup2",
            name => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        let below = path.strip_prefix(shown.trim_end_matches('/'))?;
        is_it.then(|| PathBuf::from(at).join(below.trim_start_matches('/')))
    })
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

    #[test]
    fn groups_of_both_versions_are_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        let (_folder, root) = machine("0::/user/vm\n", mounts);
        let found = of_process(&root, 7, 1000).unwrap();
        assert_eq!(found, [PathBuf::from("/sys/fs/cgroup/user/vm")]);
        let mounts = "30 23 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n\
                      31 23 0:28 /outer /cg/mem rw - cgroup cgroup rw,memory\n\
                      32 23 0:29 / /cg/u rw shared:4 - cgroup2 cgroup2 rw";
        let (_folder, root) = machine("4:memory:/outer/vm\n3:cpu:/x\n0::/\n", mounts);
        let found = of_process(&root, 7, 1000).unwrap();
        assert_eq!(found, [PathBuf::from("/cg/mem/vm"), PathBuf::from("/cg/u/")]);
    }

    #[test]
    fn groups_of_a_process_of_another_user_or_out_of_sight_are_none() {
        let mounts = "31 23 0:28 /inner /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        let (_folder, root) = machine("0::/inner/vm\n", mounts);
        assert!(of_process(&root, 7, 1000).is_some());
        assert_eq!(of_process(&root, 7, 0), None);
        assert_eq!(of_process(&root, 8, 1000), None);
        let (_folder, root) = machine("0::/outer/vm\n", mounts);
        assert_eq!(of_process(&root, 7, 1000), None);
    }
}
