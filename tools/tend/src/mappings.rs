//! The mappings of a process: those to collapse, and the reasons why the others are left as they
//! are.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufReader;
use std::ops::Range;

use hugekit::HUGE_PAGE_BYTES;
use rustix::param::page_size;
use serde::Serialize;

use crate::error::TendError;
use hugekit_machine::processes::ProcessFolder;
use hugekit_machine::processes::{Mapping, each_mapping};

/// The reason why a mapping is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Excluded {
    /// The mapping maps a file or shared memory. A fork copies no page table of such a mapping.
    SharedOrFile,
    /// The mapping is on reserved huge pages already.
    Hugetlb,
    /// Forks leave the mapping out (`MADV_DONTFORK`).
    LeftOutOfForks,
    /// The process requested small pages (`MADV_NOHUGEPAGE`).
    NoHugePages,
    /// The mapping is locked. A collapse would move pages that the process wants to stay.
    Locked,
    /// The process handles faults of the mapping itself (`userfaultfd`). A hole is data that has
    /// not arrived yet.
    Userfaultfd,
    /// The mapping is memory of a device or of the kernel.
    Special,
    /// The memory is shared with another process since a fork of its parent or of a sibling. A
    /// collapse would copy the shared memory.
    SharedSinceFork,
    /// The memory is shared with another process, and marked as mergeable: it was shared by a fork,
    /// or the kernel has merged equal pages (KSM). A collapse would copy the shared memory.
    SharedOrMerged,
    /// The process has freed the memory lazily (`MADV_FREE`). A collapse would make it ordinary
    /// memory again.
    LazilyFreed,
    /// The mapping is much longer than its pages in memory, as reservations are. A dense range in
    /// it is unlikely.
    TooSparse,
    /// The mapping contains no aligned 2 MiB.
    TooShort,
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SharedOrFile => {
                "of files or shared mappings: forks do not copy their page tables"
            }
            Self::Hugetlb => "on reserved huge pages",
            Self::LeftOutOfForks => "not in forks (MADV_DONTFORK)",
            Self::NoHugePages => "on small pages at its owner's request (MADV_NOHUGEPAGE)",
            Self::Locked => "locked (mlock)",
            Self::Userfaultfd => "with faults that its owner handles (userfaultfd)",
            Self::Special => "of a device or the kernel",
            Self::SharedSinceFork => "shared with another process since a fork",
            Self::SharedOrMerged => {
                "shared with another process: equal pages that were merged (KSM), or since a fork"
            }
            Self::LazilyFreed => "freed lazily by its owner (MADV_FREE)",
            Self::TooSparse => "in mappings that are nearly empty",
            Self::TooShort => "in mappings without a whole aligned 2 MiB",
        })
    }
}

/// The fraction of a mapping, 1/10, that may be shared with another process. The process grows by
/// no more than this fraction.
const SHARED: u64 = 10;

/// The fraction of a mapping, 1/4096, that must be populated, because reading terabytes of address
/// space lasts long.
const SPARSE: u64 = 4096;

/// Private anonymous memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// Bytes on huge pages.
    pub huge: u64,
    /// Bytes in memory.
    pub all: u64,
    /// Bytes of page tables beyond those that the memory would need without holes. A fork copies
    /// these tables, too. They remain where a process has released memory.
    pub spare_tables: u64,
}

impl Extent {
    /// Surveys a process by `/proc/PID/smaps`.
    ///
    /// # Errors
    /// [`TendError`] if the process has ended, or if its files may not be read.
    pub fn of(pid: i32) -> Result<Self, TendError> {
        let folder = ProcessFolder::open(pid).map_err(|error| TendError::of_reading(pid, error))?;
        Ok(Survey::of(&folder)?.extent())
    }
}

/// The memory of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Addresses of whole ranges of 2 MiB that are worth an inspection.
    pub(crate) tended: Vec<Range<u64>>,
    /// The ranges among these whose mappings have lazily freed pages.
    pub(crate) partly_freed: Vec<Range<u64>>,
    /// Addresses of whole ranges in mappings that are all on huge pages.
    pub(crate) huge: Vec<Range<u64>>,
    /// Bytes that are there in the mappings of these, of small pages.
    pub(crate) small: u64,
    /// Bytes of tended mappings that are swapped out.
    pub(crate) swapped: u64,
    excluded: BTreeMap<Excluded, u64>,
    extent: Extent,
    /// Bytes of the process in memory, of files, too.
    resident: u64,
    mappings: u64,
}

impl Survey {
    /// Reads `/proc/PID/smaps`.
    pub(crate) fn of(folder: &ProcessFolder) -> Result<Self, TendError> {
        let mut survey = Self::default();
        let smaps = folder.file("smaps");
        let read = smaps.and_then(|file| {
            each_mapping(BufReader::with_capacity(READ_BYTES, file), |map| survey.add(map))
        });
        read.map_err(|error| TendError::of_reading(folder.pid(), error))?;
        survey.extent.spare_tables = survey.spare_tables(folder)?;
        Ok(survey)
    }

    /// Returns the bytes of all page tables, minus the tables that the present pages need: of
    /// private memory, of files and of shared memory. Each huge page has a table in reserve for its
    /// split.
    fn spare_tables(&self, folder: &ProcessFolder) -> Result<u64, TendError> {
        let unread = |error| TendError::of_reading(folder.pid(), error);
        let tables = folder.status("VmPTE").map_err(unread)?.unwrap_or(0) as u64 * 1024;
        let needed = (self.resident - self.extent.huge).div_ceil(HUGE_PAGE_BYTES as u64)
            + self.extent.huge / HUGE_PAGE_BYTES as u64;
        Ok(tables.saturating_sub((needed + self.mappings) * page_size() as u64))
    }

    /// Returns the private anonymous memory of the whole process.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Removes memory that is lazily freed, or that may be.
    pub(crate) fn leave_out_freed(&mut self, bytes: u64) {
        if bytes > 0 {
            *self.excluded.entry(Excluded::LazilyFreed).or_insert(0) += bytes;
        }
    }

    /// Returns the bytes in memory of excluded mappings, by reason.
    pub(crate) fn excluded(&self) -> Vec<(Excluded, u64)> {
        self.excluded.iter().map(|(&reason, &bytes)| (reason, bytes)).collect()
    }

    fn add(&mut self, map: &Mapping) {
        self.mappings += 1;
        self.resident += map.resident.max(map.huge);
        self.extent.huge += map.huge;
        self.extent.all += map.anonymous;
        match excluded(map) {
            Some(reason) if map.anonymous > map.huge => {
                *self.excluded.entry(reason).or_insert(0) += map.anonymous - map.huge;
            }
            Some(_) => {}
            None => {
                self.swapped += map.swapped;
                if map.anonymous <= map.huge {
                    self.huge.push(whole_of(map));
                } else {
                    self.small += map.anonymous - map.huge;
                    self.tended.push(whole_of(map));
                    if map.lazily_freed > 0 {
                        self.partly_freed.push(whole_of(map));
                    }
                }
            }
        }
    }
}

/// Bytes of one read of `smaps`. The kernel holds the process's memory map while it fills a
/// reader's buffer.
const READ_BYTES: usize = 16 << 10;

/// Returns the aligned ranges of 2 MiB within a mapping.
fn whole_of(map: &Mapping) -> Range<u64> {
    let huge = HUGE_PAGE_BYTES as u64;
    let Range { start, end } = map.addresses;
    start.next_multiple_of(huge)..end / huge * huge
}

/// Returns the reason why a mapping is excluded; `None` if it is not. proc(5) explains the flags of
/// `VmFlags` in smaps.
fn excluded(map: &Mapping) -> Option<Excluded> {
    if map.has(&[b"ht"]) {
        Some(Excluded::Hugetlb)
    } else if !map.is_private || map.inode != 0 {
        Some(Excluded::SharedOrFile)
    } else if map.is_kernels || map.has(&[b"io", b"pf", b"mm"]) {
        Some(Excluded::Special)
    } else if map.has(&[b"dc"]) {
        Some(Excluded::LeftOutOfForks)
    } else if map.has(&[b"lo"]) {
        Some(Excluded::Locked)
    } else if map.has(&[b"um", b"uw", b"ui"]) {
        Some(Excluded::Userfaultfd)
    } else if map.has(&[b"nh"]) {
        Some(Excluded::NoHugePages)
    } else if whole_of(map).is_empty() {
        Some(Excluded::TooShort)
    } else if (map.addresses.end - map.addresses.start) / SPARSE > map.anonymous {
        Some(Excluded::TooSparse)
    } else if map.shared > map.anonymous / SHARED {
        Some(if map.has(&[b"mg"]) { Excluded::SharedOrMerged } else { Excluded::SharedSinceFork })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_shared_memory_is_no_guess() {
        const MIB: u64 = 1 << 20;
        let mut map = Mapping {
            addresses: 0..64 * MIB,
            is_private: true,
            anonymous: 64 * MIB,
            shared: 32 * MIB,
            ..Mapping::default()
        };
        assert_eq!(excluded(&map), Some(Excluded::SharedSinceFork));
        map.flags = vec![*b"rd", *b"mg"];
        assert_eq!(excluded(&map), Some(Excluded::SharedOrMerged));
        map.shared = MIB;
        assert_eq!(excluded(&map), None);
    }
}
