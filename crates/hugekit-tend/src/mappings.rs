//! Which of a process's mappings are worth a collapse, and why the others are not.

use std::ops::Range;

use hugekit::HUGE_PAGE_BYTES;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process, VmFlags};
use serde::Serialize;

use crate::error::TendError;

/// Why a mapping is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Excluded {
    /// Of a file, or shared: a fork copies no page table of it.
    SharedOrFile,
    /// Of reserved huge pages already.
    Hugetlb,
    /// Forks leave it out (`MADV_DONTFORK`).
    LeftOutOfForks,
    /// Its owner asked for small pages (`MADV_NOHUGEPAGE`).
    NoHugePages,
    /// Locked: to collapse it would move pages that its owner wants to stay.
    Locked,
    /// Of a device or the kernel.
    Special,
    /// Shared with another process since a fork, the other way round: with its parent, or with one of its own kind. A
    /// collapse would copy what they share.
    SharedSinceFork,
    /// Shorter than a huge page, or without 2 MiB that are aligned.
    TooShort,
}

/// Of a mapping's memory, one part in so many may be shared with another process: it grows by no more.
const SHARED: u64 = 10;

/// Private anonymous memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// On huge pages.
    pub huge: u64,
    /// All that is there.
    pub all: u64,
}

impl Extent {
    /// That of a process now, by `/proc/PID/smaps`.
    ///
    /// # Errors
    /// The process is gone, or its files may not be read.
    pub fn of(pid: i32) -> Result<Self, TendError> {
        let process = Process::new(pid).map_err(|error| TendError::of_reading(pid, error))?;
        Ok(Survey::of(&process)?.extent())
    }
}

/// What is there of a process's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Addresses of whole ranges of 2 MiB that are worth a look.
    pub(crate) tended: Vec<Range<u64>>,
    /// By reason, bytes that are there.
    pub(crate) excluded: Vec<(Excluded, u64)>,
    extent: Extent,
}

impl Survey {
    /// Reads `/proc/PID/smaps`.
    pub(crate) fn of(process: &Process) -> Result<Self, TendError> {
        let maps = process.smaps();
        let maps = maps.map_err(|error| TendError::of_reading(process.pid(), error))?;
        let mut survey = Self::default();
        maps.iter().for_each(|map| survey.add(map));
        Ok(survey)
    }

    /// Private anonymous memory of the whole process.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    fn add(&mut self, map: &MemoryMap) {
        let figure = |name| map.extension.map.get(name).copied().unwrap_or(0);
        let (anonymous, huge) = (figure("Anonymous"), figure("AnonHugePages"));
        self.extent.huge += huge;
        self.extent.all += anonymous;
        match excluded(map) {
            Some(reason) if anonymous > 0 => {
                match self.excluded.iter_mut().find(|(other, _)| *other == reason) {
                    Some((_, bytes)) => *bytes += anonymous,
                    None => self.excluded.push((reason, anonymous)),
                }
            }
            Some(_) => {}
            // All of it is on huge pages already.
            None if huge >= anonymous => {}
            None => self.tended.push(whole_of(map)),
        }
    }
}

/// The aligned ranges of 2 MiB within a mapping.
fn whole_of(map: &MemoryMap) -> Range<u64> {
    let huge = HUGE_PAGE_BYTES as u64;
    let (start, end) = map.address;
    start.next_multiple_of(huge)..end / huge * huge
}

fn is_shared(map: &MemoryMap) -> bool {
    let figure = |name| map.extension.map.get(name).copied().unwrap_or(0);
    let shared = figure("Shared_Clean") + figure("Shared_Dirty");
    shared > figure("Anonymous") / SHARED
}

fn excluded(map: &MemoryMap) -> Option<Excluded> {
    let flags = map.extension.vm_flags;
    let is_private = map.perms.contains(MMPermissions::PRIVATE);
    let is_special = matches!(
        map.pathname,
        MMapPath::Vdso | MMapPath::Vvar | MMapPath::Vsyscall | MMapPath::Vsys(_)
    );
    if flags.contains(VmFlags::HT) {
        Some(Excluded::Hugetlb)
    } else if !is_private || map.inode != 0 {
        Some(Excluded::SharedOrFile)
    } else if is_special || flags.intersects(VmFlags::IO | VmFlags::PF | VmFlags::MM) {
        Some(Excluded::Special)
    } else if flags.contains(VmFlags::DC) {
        Some(Excluded::LeftOutOfForks)
    } else if flags.contains(VmFlags::LO) {
        Some(Excluded::Locked)
    } else if flags.contains(VmFlags::NH) {
        Some(Excluded::NoHugePages)
    } else if whole_of(map).is_empty() {
        Some(Excluded::TooShort)
    } else if is_shared(map) {
        Some(Excluded::SharedSinceFork)
    } else {
        None
    }
}
