//! Why a VM has no children. All that were started have ended then, and the VM runs on.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use hugekit_sys::ErrorKind;

use crate::error::CheckpointError;
use crate::guard::MOST_STARTED;

/// Why there are no children.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The VM cannot be frozen, or its memory cannot be read.
    #[error(transparent)]
    Vm(#[from] CheckpointError),
    /// Too many children, or none.
    #[error("{0} children: from 1 to {MOST_STARTED} can be forked at once")]
    Count(usize),
    /// The socket of a child exists.
    #[error("child {number}: {api} exists already", api = api.display())]
    Exists {
        /// From 1 on.
        number: usize,
        /// The socket.
        api: PathBuf,
    },
    /// A child's program cannot be started.
    #[error("child {number}: cannot start {program:?}")]
    Start {
        /// From 1 on.
        number: usize,
        /// The program.
        program: OsString,
        /// The system's answer.
        source: io::Error,
    },
    /// A child's program has ended.
    #[error("child {number}: its program ended before its API answered ({status})")]
    Ended {
        /// From 1 on.
        number: usize,
        /// How.
        status: ExitStatus,
    },
    /// A child's API did not come.
    #[error("child {number}: no API at {api} after {seconds} s", api = api.display())]
    Silent {
        /// From 1 on.
        number: usize,
        /// The socket.
        api: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A child cannot be restored.
    #[error("child {number} cannot be restored")]
    Restore {
        /// From 1 on.
        number: usize,
        /// Why.
        source: CheckpointError,
    },
    /// A child's memory cannot be supplied.
    #[error("a child has lost its memory: {0}")]
    Memory(String),
    /// Memory is short.
    #[error(
        "not enough memory for {children} children: {needed} MiB needed, {available} MiB available"
    )]
    NoMemory {
        /// How many.
        children: usize,
        /// MiB for them, and for the copy that they are restored from.
        needed: u64,
        /// MiB that the kernel can supply.
        available: u64,
    },
    /// Pages of hugetlbfs are short.
    #[error("not enough 2 MiB pages for {children} children: {needed} needed, {free} free")]
    NoHugePages {
        /// How many.
        children: usize,
        /// For all of their memory.
        needed: u64,
        /// Free ones.
        free: u64,
    },
    /// The system refuses a socket, a descriptor or a thread.
    #[error("cannot serve the memory of the children")]
    System(#[from] io::Error),
}

impl ForkError {
    /// Its meaning for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Vm(error) => error.kind(),
            Self::Count(_) | Self::Exists { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Kernel,
        }
    }

    /// What its user can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Vm(CheckpointError::GaveBack | CheckpointError::Restless) => {
                Some("repeat the fork")
            }
            Self::Vm(error) => error.remedy(),
            Self::Exists { .. } => Some("remove the socket, or name others by --child-api"),
            Self::Ended { .. } | Self::Silent { .. } => {
                Some("the command must start Firecracker with --api-sock {api}")
            }
            Self::Restore { .. } => Some(
                "children use the network devices, sockets and disks of the VM, unless --load \
                 replaces them",
            ),
            Self::NoMemory { .. } => Some("fork fewer children at once"),
            Self::NoHugePages { .. } => {
                Some("reserve more 2 MiB pages (sysctl vm.nr_hugepages), or fork fewer children")
            }
            _ => None,
        }
    }
}
