//! The file system of an open file.

use std::os::fd::{AsFd, AsRawFd};

use hugekit_machine::Root;

/// Returns its name, such as `ext4` or `fuse.sshfs`, as `/proc/self/mountinfo` has it.
pub(crate) fn name_of(root: &Root, file: impl AsFd) -> String {
    let number = file.as_fd().as_raw_fd();
    let named = || {
        let about = root.read(format!("/proc/self/fdinfo/{number}")).ok()?;
        let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
        let mounts = root.read("/proc/self/mountinfo").ok()?;
        let is_its = |line: &&str| line.split(' ').next() == Some(id);
        let (_, kind) = mounts.lines().find(is_its)?.split_once(" - ")?;
        Some(kind.split(' ').next()?.to_owned())
    };
    named().unwrap_or_else(|| "the file system".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn file_system_is_named_by_its_mount() {
        assert_eq!(name_of(&Root::default(), File::open("/proc/self/stat").unwrap()), "proc");
        let nowhere = tempfile::tempdir().unwrap();
        let root = Root::at(nowhere.path());
        assert_eq!(name_of(&root, File::open("/dev/null").unwrap()), "the file system");
    }
}
