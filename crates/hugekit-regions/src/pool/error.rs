//! What can go wrong with a pool, in figures.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::{Fallback, FaultError};
use hugekit_bulk::parallel::JobError;
use hugekit_bulk::{ClearError, PopulateError};
use hugekit_lease::LeaseError;
use hugekit_machine::hugepages::Shortage;
use hugekit_sys::headroom::HeapShortage;
use hugekit_sys::size::Size;
use hugekit_sys::{ErrorKind, error_chain};

/// Why a pool could not be made, or could not do what was asked. Nothing was taken then: memory that
/// a failed call had claimed is back in the pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A pool or a region of no bytes was asked for.
    #[error("no bytes were asked for")]
    NoBytes,
    /// More bytes were asked for than there are addresses.
    #[error("{bytes} bytes, in pages of {}, are more than a process has addresses for", Size(*page_size))]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of a folio.
        page_size: usize,
    },
    /// Memory that another process has made was to be kept in forked children: it may have another owner before they
    /// end.
    #[error("memory of a broker, or of a file that was adopted, cannot be kept in forked children")]
    NotInherited,
    /// The ladder is empty.
    #[error("no backing was asked for: the ladder is empty")]
    NoTiers,
    /// The watermarks make no sense.
    #[error(
        "scrubbing from {low} up to {high} clean bytes makes no sense: the low watermark is above the high one"
    )]
    Watermarks {
        /// The low watermark in bytes.
        low: usize,
        /// The high watermark in bytes.
        high: usize,
    },
    /// None of the tiers could be taken.
    #[error("none of the backings asked for can be had:{}", Fallbacks(fallbacks))]
    NoBacking {
        /// Each tier and why not.
        fallbacks: Vec<Fallback>,
    },
    /// The kernel has no pages of this size.
    #[error("this kernel has no huge pages of {}", Size(*page_size))]
    NoHugePages {
        /// In bytes.
        page_size: usize,
    },
    /// Too few huge pages are reserved on this machine, or other processes have them.
    #[error(transparent)]
    NotEnoughHugePages(Shortage),
    /// The machine has not so much memory left.
    #[error("needs {} of memory, {} are available", Size(*wanted), Size(*available as usize))]
    NotEnoughMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that the kernel says can be had without swapping.
        available: u64,
    },
    /// A limit of the control group does not allow it.
    #[error(
        "needs {}, but {} allows {} and {} are used",
        Size(*wanted), file.display(), Size(*limit as usize), Size(*used as usize)
    )]
    OverGroupLimit {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes allowed.
        limit: u64,
        /// Bytes used already.
        used: u64,
        /// The file that holds the limit.
        file: PathBuf,
    },
    /// The kernel does not make transparent huge pages for shared memory.
    #[error("no transparent huge pages for shared memory: {reason}")]
    NoThp {
        /// What was tried and what the kernel said.
        reason: String,
    },
    /// Memory that was promised could not be populated: a node or a control group had none left, or
    /// no thread was asked for.
    #[error("the pool's memory could not be populated")]
    Populate(#[source] JobError<PopulateError>),
    /// Dirty memory could not be cleared: no thread was asked for.
    #[error("the pool's memory could not be cleared")]
    Clear(#[source] ClearError),
    /// The pool has no contiguous run so long.
    #[error(
        "needs {} in one piece; {} are free, {} of them in one piece",
        Size(*wanted), Size(*free), Size(*longest)
    )]
    NoRoom {
        /// Bytes asked for, rounded up to whole folios.
        wanted: usize,
        /// Bytes that no thread uses.
        free: usize,
        /// Of these, the longest contiguous run.
        longest: usize,
    },
    /// The process or the system has no descriptor left.
    #[error("no file descriptor is left for the pool's memory")]
    NoDescriptor(#[source] io::Error),
    /// The process has no address or no mapping left, or another process took the huge pages at that moment.
    #[error(
        "cannot map {}{}",
        Size(*bytes),
        if source.kind() == io::ErrorKind::OutOfMemory {
            " (huge pages were taken meanwhile, or the process has too many mappings or too few addresses)"
        } else {
            ""
        }
    )]
    NotMapped {
        /// Bytes that were to be mapped.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The node policy names a node that does not exist or may not be used.
    #[error("the kernel refuses the node policy")]
    NodePolicy(#[source] io::Error),
    /// No lease could be had, or what was given does not fit.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A pool was already made of what this builder, or a clone of it, was given.
    #[error("a pool was already made of the memory that was given")]
    Taken,
    /// Faults cannot be served, so that nothing can be cleared at the first access.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// Any other refusal of the kernel.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// This process was forked from the pool's, which alone has its memory.
    #[error("the pool belongs to the process that this one was forked from")]
    Forked,
}

impl PoolError {
    /// What an administrator or the caller can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NotEnoughHugePages(shortage) => shortage.remedy(),
            Self::OverGroupLimit { file, .. } => format!("raise {}", file.display()),
            Self::NoThp { .. } => {
                "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled".to_owned()
            }
            Self::NoDescriptor(_) => "raise the limit: ulimit -n".to_owned(),
            Self::NotMapped { .. } => "raise vm.max_map_count or ulimit -v".to_owned(),
            Self::NoRoom { .. } => {
                "drop regions, ask for smaller ones or for a larger pool".to_owned()
            }
            Self::Fault(error) => return error.remedy(),
            Self::Lease(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::NoBacking { fallbacks } => {
                return fallbacks.first().and_then(|fallback| fallback.reason.remedy());
            }
            _ => return None,
        })
    }
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
    /// What it means for a program. Of several backings that could not be had, the last one's.
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
        assert_eq!(PoolError::NoBacking { fallbacks }.remedy().unwrap(), expected);
    }
}
