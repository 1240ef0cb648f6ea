//! The mappings of a VMM.

use std::io;

use hugekit_machine::processes::{Mapping, ProcessFolder, each_mapping};

/// All of a process, ascending.
pub(crate) fn mappings_of(pid: i32) -> io::Result<Vec<Mapping>> {
    mappings_in(&ProcessFolder::open(pid)?.read("smaps")?)
}

/// All in the text of `smaps`.
pub(crate) fn mappings_in(smaps: &[u8]) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    each_mapping(smaps, |mapping| found.push(mapping.clone()))?;
    Ok(found)
}

/// Returns whether a userfaultfd serves first accesses there.
pub(crate) fn is_served(mapping: &Mapping) -> bool {
    mapping.has(&[b"um"])
}

/// Returns whether a userfaultfd serves writes there. A checkpoint asks for that, and no pager does.
pub(crate) fn is_protected(mapping: &Mapping) -> bool {
    mapping.has(&[b"uw"])
}

/// Returns whether its pages are of hugetlbfs.
pub(crate) fn is_hugetlb(mapping: &Mapping) -> bool {
    mapping.has(&[b"ht"])
}
