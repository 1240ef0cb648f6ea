//! Another machine's `/proc` and `/sys`: text that a container, a hypervisor or a copy of a support case made.
//!
//! An input is a tree of files, in plain text: a line `== /PATH` begins each.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path};

use hugekit_doctor::examine;
use hugekit_machine::cgroup::Cgroups;
use hugekit_machine::{Root, mappings, threads};
use tempfile::TempDir;

/// Files of one tree, and bytes of one path.
const MOST_FILES: usize = 100;
const MOST_PATH: usize = 200;

/// The doctor says something or nothing of it, in whole lines of text, and the library's own questions are answered.
pub(crate) fn run(bytes: &[u8]) {
    let Some((folder, root)) = tree(bytes) else { return };
    if let Some(report) = examine(&root) {
        serde_json::to_string(&report).expect("a report can be written");
    }
    ask(&root);
    drop(folder);
}

/// Files that the library reads besides.
fn ask(root: &Root) {
    if let Ok(groups) = Cgroups::read(root) {
        let _ = (groups.layout(), groups.cpu_quota(), groups.cpuset());
        if let Ok(Some(limit)) = groups.memory() {
            assert!(limit.used.is_none_or(|used| limit.left() <= limit.bytes.max(used)));
        }
        let _ = (groups.hugetlb(2 << 20), groups.hugetlb_reservation(2 << 20));
    }
    if let Ok(ranges) = mappings::read(root) {
        let _ = mappings::mergeable(root, &(0..usize::MAX));
        assert!(ranges.iter().all(|range| range.addresses.start <= range.addresses.end));
    }
    for thread in threads::ids(root).unwrap_or_default() {
        let _ = (threads::blocks(root, thread, 7), threads::progress(root, thread));
    }
}

/// The tree as files, if it is one.
fn tree(bytes: &[u8]) -> Option<(TempDir, Root)> {
    let folder = tempfile::tempdir().expect("a folder for the tree");
    let mut known = BTreeSet::new();
    let text = bytes.strip_prefix(b"== ")?;
    let mut rest = Some(text);
    while let Some(text) = rest {
        let end = text.windows(4).position(|four| four == b"\n== ");
        let (file, behind) = match end {
            Some(end) => (&text[..=end], Some(&text[end + 4..])),
            None => (text, None),
        };
        let line = file.iter().position(|&byte| byte == b'\n').unwrap_or(file.len());
        let path = std::str::from_utf8(&file[..line]).ok()?;
        if known.len() == MOST_FILES || !is_harmless(path) {
            return None;
        }
        if known.insert(path) {
            write(folder.path(), path, file.get(line + 1..).unwrap_or_default());
        }
        rest = behind;
    }
    let root = Root::at(folder.path());
    Some((folder, root))
}

/// A path that stays below the root and can be a file's.
fn is_harmless(path: &str) -> bool {
    path.len() <= MOST_PATH
        && path.starts_with('/')
        && path.len() > 1
        && !path.contains('\0')
        && Path::new(path).components().skip(1).all(|part| matches!(part, Component::Normal(_)))
}

/// Writes a file. If a file and a folder have the same name, the first of them stays.
fn write(root: &Path, path: &str, content: &[u8]) {
    let path = root.join(&path[1..]);
    let folder = path.parent().expect("it is below the root");
    if fs::create_dir_all(folder).is_ok() {
        let _ = fs::write(path, content);
    }
}
