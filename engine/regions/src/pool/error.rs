//! Errors of a pool, with figures.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::{Fallback, FaultError};
use hugekit_bulk::parallel::JobError;
use hugekit_bulk::{ClearError, PopulateError};
use hugekit_lease::LeaseError;
use hugekit_machine::hugepages::Shortage;
use hugekit_machine::size::Size;
use hugekit_sys::headroom::HeapShortage;
use hugekit_sys::{ErrorKind, Remedy, error_chain};

/// An error of a pool, or of an allocation from a pool. After an error, the pool has back the
/// memory that the call had claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A pool or a region of 0 bytes was requested.
    #[error("0 bytes requested: the least is 1 byte")]
    NoBytes,
    /// The process does not have enough addresses for the requested bytes.
    #[error("{bytes} bytes, in pages of {}, are more than a process has addresses for", Size(*page_size).exact())]
    TooLarge {
        /// Bytes requested.
        bytes: usize,
        /// Bytes of a folio.
        page_size: usize,
    },
    /// The memory would come from a broker or from another process's file. Such memory cannot be
    /// inherited, because its owner may change before the children end.
    #[error("memory of a broker or of an adopted file cannot be inherited by forked children")]
    NotInherited,
    /// The list of backings is empty.
    #[error("no backing requested: name at least one")]
    NoTiers,
    /// The low watermark is above the high watermark.
    #[error("the low watermark ({low} bytes) is above the high one ({high} bytes)")]
    Watermarks {
        /// The low watermark in bytes.
        low: usize,
        /// The high watermark in bytes.
        high: usize,
    },
    /// None of the requested backings is available.
    #[error(
        "none of the requested backings is available:{}{}",
        Fallbacks(fallbacks),
        Remedy(remedy_of_first(fallbacks))
    )]
    NoBacking {
        /// Each backing, and the reason why it is not available.
        fallbacks: Vec<Fallback>,
    },
    /// The kernel has no huge pages of this size.
    #[error("this kernel has no huge pages of {}", Size(*page_size).exact())]
    NoHugePages {
        /// Bytes of a huge page.
        page_size: usize,
    },
    /// Too few huge pages are reserved on this machine, or other processes use them.
    #[error(transparent)]
    NotEnoughHugePages(Shortage),
    /// The machine has too little memory available.
    #[error(
        "not enough memory: {} requested, {} available{}",
        Size(*wanted).exact(), Size(rounded_down(*available)).exact(), Remedy(Some(NEED_LESS))
    )]
    NotEnoughMemory {
        /// Bytes requested.
        wanted: usize,
        /// Bytes available without swapping, by the kernel's estimate.
        available: u64,
    },
    /// A limit of the control group does not allow the memory.
    #[error(
        "not enough memory: {} requested, {} allows {}, {} used{}",
        Size(*wanted).exact(), file.display(), Size(*limit as usize).exact(), Size(*used as usize).exact(),
        Remedy(Some(raise(file)))
    )]
    OverGroupLimit {
        /// Bytes requested.
        wanted: usize,
        /// Bytes allowed.
        limit: u64,
        /// Bytes in use.
        used: u64,
        /// The file with the limit.
        file: PathBuf,
    },
    /// The kernel does not make transparent huge pages for shared memory.
    #[error("no transparent huge pages for shared memory: {reason}{}", Remedy(Some(ADVISE_SHMEM)))]
    NoThp {
        /// The failed attempt, and the kernel's answer.
        reason: String,
    },
    /// Memory of the pool could not be populated: a NUMA node or a control group has none left, or
    /// the number of threads is 0.
    #[error("the pool's memory could not be populated")]
    Populate(#[source] JobError<PopulateError>),
    /// Dirty memory could not be cleared: the number of threads is 0.
    #[error("the pool's memory could not be cleared")]
    Clear(#[source] ClearError),
    /// The pool has no contiguous free memory of this length.
    #[error(
        "no room in the pool: {} requested in one piece, {} free, {} of these in one piece{}",
        Size(*wanted).exact(), Size(*free).exact(), Size(*longest).exact(), Remedy(Some(MAKE_ROOM))
    )]
    NoRoom {
        /// Bytes requested, rounded up to whole folios.
        wanted: usize,
        /// Bytes that are free.
        free: usize,
        /// The longest contiguous part of the free bytes.
        longest: usize,
    },
    /// The process or the system has no file descriptor left.
    #[error("no file descriptor is left for the pool's memory{}", Remedy(Some(RAISE_DESCRIPTORS)))]
    NoDescriptor(#[source] io::Error),
    /// The process has no address or no mapping left, or another process took the huge pages at the
    /// same moment.
    #[error(
        "cannot map {}{}{}",
        Size(*bytes).exact(),
        if source.kind() == io::ErrorKind::OutOfMemory {
            " (huge pages were taken meanwhile, or the process has too many mappings or too few addresses)"
        } else {
            ""
        },
        Remedy(Some(RAISE_MAPPINGS))
    )]
    NotMapped {
        /// Bytes to map.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The node policy names a node that does not exist or may not be used.
    #[error("the kernel refuses the node policy")]
    NodePolicy(#[source] io::Error),
    /// The broker granted no lease, or the leased memory does not fit.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A pool was already made from the memory of this builder, or of a clone of it.
    #[error("a pool was already made from this memory")]
    Taken,
    /// Faults cannot be handled, so memory cannot be cleared at the first access.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// The kernel refused another system call.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process is a forked child; the pool belongs to the parent process.
    #[error("not available in a forked child: the pool belongs to the parent process")]
    Forked,
}

impl PoolError {
    /// Returns a step by which an administrator or the program can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NotEnoughHugePages(shortage) => shortage.remedy(),
            Self::NotEnoughMemory { .. } => NEED_LESS.to_owned(),
            Self::OverGroupLimit { file, .. } => raise(file),
            Self::NoThp { .. } => ADVISE_SHMEM.to_owned(),
            Self::NoDescriptor(_) => RAISE_DESCRIPTORS.to_owned(),
            Self::NotMapped { .. } => RAISE_MAPPINGS.to_owned(),
            Self::NoRoom { .. } => MAKE_ROOM.to_owned(),
            Self::Fault(error) => return error.remedy(),
            Self::Lease(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::NoBacking { fallbacks } => return remedy_of_first(fallbacks),
            _ => return None,
        })
    }
}

const NEED_LESS: &str = "make a smaller pool, or end programs that use memory";
const ADVISE_SHMEM: &str = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
const RAISE_DESCRIPTORS: &str = "raise the limit: ulimit -n";
const RAISE_MAPPINGS: &str = "raise vm.max_map_count or ulimit -v";
const MAKE_ROOM: &str = "drop regions, or make smaller regions or a larger pool";

/// Returns the kernel's estimate of available memory in whole MiB, as nobody reads 19655020 KiB.
fn rounded_down(available: u64) -> usize {
    let mib = 1 << 20;
    if available < mib { available as usize } else { (available / mib * mib) as usize }
}

fn raise(limit: &Path) -> String {
    format!("raise {}", limit.display())
}

fn remedy_of_first(fallbacks: &[Fallback]) -> Option<String> {
    fallbacks.first().and_then(|fallback| fallback.reason.remedy())
}

struct Fallbacks<'a>(&'a [Fallback]);

impl fmt::Display for Fallbacks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, Fallback { backing, reason })| {
            let separator = if index == 0 { "" } else { ";" };
            write!(f, "{separator} {backing}: {}", error_chain(reason))
        })
    }
}

impl PoolError {
    /// Returns the kind of the error. For [`NoBacking`](Self::NoBacking), returns the kind of the
    /// last backing's reason.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoBytes
            | Self::TooLarge { .. }
            | Self::NotInherited
            | Self::NoTiers
            | Self::Watermarks { .. } => ErrorKind::Invalid,
            Self::NoBacking { fallbacks } => {
                fallbacks.last().map_or(ErrorKind::Unsupported, |fallback| fallback.reason.kind())
            }
            Self::NotEnoughHugePages(_)
            | Self::NotEnoughMemory { .. }
            | Self::OverGroupLimit { .. }
            | Self::NoRoom { .. }
            | Self::Heap(_) => ErrorKind::NoMemory,
            Self::NotMapped { source, .. } => source.kind().into(),
            Self::NoHugePages { .. } | Self::NoThp { .. } => ErrorKind::Unsupported,
            Self::Populate(error) => error.kind(),
            Self::Clear(error) => error.kind(),
            Self::NodePolicy(source) if source.kind() == io::ErrorKind::InvalidInput => {
                ErrorKind::Invalid
            }
            Self::NodePolicy(source) => source.kind().into(),
            Self::Fault(error) => error.kind(),
            Self::Lease(error) => error.kind(),
            Self::Taken => ErrorKind::Invalid,
            Self::NoDescriptor(source) | Self::Kernel { source, .. } => source.kind().into(),
            Self::Forked => ErrorKind::Forked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Backing;
    use hugekit_sys::HUGE_PAGE_BYTES;

    #[test]
    fn remedy_for_missing_huge_pages_reserves_them_on_top() {
        let shortage = PoolError::NotEnoughHugePages(Shortage {
            page_size: HUGE_PAGE_BYTES,
            wanted: 512,
            total: 100,
            free: 20,
            promised: 8,
            spare: Some(500),
        });
        let expected = "echo 600 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        assert_eq!(shortage.remedy().unwrap(), expected);
        let fallbacks = vec![Fallback { backing: Backing::Hugetlb2M, reason: shortage }];
        let error = PoolError::NoBacking { fallbacks };
        assert_eq!(error.remedy().unwrap(), expected);
        assert_eq!(error.to_string().matches(expected).count(), 1, "{error}");
    }
}
