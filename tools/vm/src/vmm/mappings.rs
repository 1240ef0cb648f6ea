//! The mappings of a VMM.

use std::io;

use hugekit_machine::processes::{Mapping, ProcessFolder, each_mapping};

/// Returns all mappings of a process, ascending.
pub(crate) fn mappings_of(pid: i32) -> io::Result<Vec<Mapping>> {
    mappings_in(&ProcessFolder::open(pid)?.read("smaps")?)
}

/// Returns all mappings in the text of `smaps`.
pub(crate) fn mappings_in(smaps: &[u8]) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    each_mapping(smaps, |mapping| found.push(mapping.clone()))?;
    Ok(found)
}

/// Returns true if a userfaultfd handles first accesses to the mapping.
pub(crate) fn is_served(mapping: &Mapping) -> bool {
    mapping.has(&[b"um"])
}

/// Returns true if a userfaultfd handles writes to the mapping. Checkpoints use this, and pagers do
/// not.
pub(crate) fn is_protected(mapping: &Mapping) -> bool {
    mapping.has(&[b"uw"])
}

/// Returns true if the pages of the mapping are of hugetlbfs.
pub(crate) fn is_hugetlb(mapping: &Mapping) -> bool {
    mapping.has(&[b"ht"])
}
