//! Reasons why a VM was not forked. After such an error, all started children have ended, and the
//! VM continues to run.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use hugekit_machine::available::Available;
use hugekit_machine::hugepages::Shortage;
use hugekit_sys::{ErrorKind, Remedy};

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::guard::MOST_STARTED;
use crate::devices::DeviceError;
use crate::vmm::ControlError;

/// The reason why there are no children.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The VM cannot be frozen, or its memory cannot be read.
    #[error(transparent)]
    Vm(#[from] CheckpointError),
    /// A request to the VMM failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The number of children is 0 or too high.
    #[error("{0} children: from 1 to {MOST_STARTED} can be forked at once")]
    Count(usize),
    /// The socket of a child exists.
    #[error("child {number}: {} exists already{}", socket.display(), Remedy(self.remedy()))]
    Exists {
        /// The number of the child, from 1 on.
        number: usize,
        /// The socket of the child's API or of its vsock.
        socket: PathBuf,
    },
    /// A device of the VM cannot be a device of a child.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The options set a field of the restore request that other options determine.
    #[error("the field {field} of the request follows from other options{}", Remedy(self.remedy()))]
    Field {
        /// The name of the field.
        field: &'static str,
    },
    /// A child was restored and never requested its memory.
    #[error("child {number} was restored and did not ask for its memory within {seconds} s")]
    NotConnected {
        /// The number of the child, from 1 on.
        number: usize,
        /// The time that this process waited, in seconds.
        seconds: u64,
    },
    /// A child's program cannot be started.
    #[error("child {number}: cannot start {program:?}")]
    Start {
        /// The number of the child, from 1 on.
        number: usize,
        /// The program.
        program: OsString,
        /// The system's answer.
        source: io::Error,
    },
    /// A child's program has ended.
    #[error("child {number}: its program ended before its API answered ({status}){}", Remedy(self.remedy()))]
    Ended {
        /// The number of the child, from 1 on.
        number: usize,
        /// The exit status.
        status: ExitStatus,
    },
    /// A child's API did not appear in time.
    #[error("child {number}: no API at {} after {seconds} s{}", api.display(), Remedy(self.remedy()))]
    Silent {
        /// The number of the child, from 1 on.
        number: usize,
        /// The socket of the API.
        api: PathBuf,
        /// The time that this process waited, in seconds.
        seconds: u64,
    },
    /// A child cannot be restored.
    #[error("child {number} cannot be restored{}", Remedy(self.remedy()))]
    Restore {
        /// The number of the child, from 1 on.
        number: usize,
        /// The reason.
        source: ControlError,
    },
    /// A child's memory cannot be supplied.
    #[error("a child has lost its memory: {0}")]
    Memory(String),
    /// The file is not the state of a VM.
    #[error("{} is not the state of a VM{}", path.display(), Remedy(self.remedy()))]
    State {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Memory is short.
    #[error(
        "not enough memory for {children} children: {needed} MiB needed, {available}{}",
        Remedy(self.remedy())
    )]
    NoMemory {
        /// The number of children.
        children: usize,
        /// MiB for the children, and for the copy from which they are restored.
        needed: u64,
        /// Memory that the machine and the control groups have left.
        available: Available,
    },
    /// There are not enough pages of hugetlbfs.
    #[error("not enough huge pages for {children} children")]
    NoHugePages {
        /// The number of children.
        children: usize,
        /// The shortage of pages for the memory of all children.
        source: Shortage,
    },
    /// The system refused a socket, a descriptor or a thread.
    #[error("cannot serve the memory of the children")]
    System(#[from] io::Error),
}

impl ForkError {
    /// Returns true if a VMM cannot map the memory of this snapshot from a file, so that clones
    /// need copies.
    #[must_use]
    pub fn needs_copies(&self) -> bool {
        matches!(self, Self::Restore { source, .. } if source.needs_copy())
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Vm(error) => error.kind(),
            Self::Control(error) => error.kind(),
            Self::State { .. }
            | Self::Count(_)
            | Self::Exists { .. }
            | Self::Device(_)
            | Self::Field { .. } => ErrorKind::Invalid,
            Self::NoMemory { .. } | Self::NoHugePages { .. } => ErrorKind::NoMemory,
            _ => ErrorKind::Kernel,
        }
    }

    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Vm(error) => error.remedy()?,
            Self::NoHugePages { source, .. } => return Some(source.remedy()),
            Self::Exists { .. } => "remove the socket, or name others",
            Self::Device(error) => error.remedy()?,
            Self::Field { field: "network_overrides" } => "name taps by --net DEVICE=tap{}",
            Self::Field { field: "vsock_override" } => "name sockets by --vsock vsock-{}.sock",
            Self::Field { .. } => "leave the field out",
            Self::State { .. } => {
                "name the file that a snapshot or a checkpoint wrote beside the memory"
            }
            Self::Ended { .. } | Self::Silent { .. } => {
                "the command must start Firecracker with --api-sock {api}"
            }
            Self::Restore { source, .. } if source.remedy().is_some() => source.remedy()?,
            Self::Restore { .. } => {
                "read the reason in the log of its VMM: let the command write one"
            }
            Self::NoMemory { available: Available { limit: Some(_), .. }, .. } => {
                "fork fewer children at once, raise the limit, or run the command in another control group"
            }
            Self::NoMemory { .. } => "fork fewer children at once",
            _ => return None,
        };
        Some(remedy.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_refused_fork_has_its_remedy_once() {
        let api = || PathBuf::from("/run/child.sock");
        let source = ControlError::State { state: "Not started".to_owned() };
        for error in [
            ForkError::Vm(CheckpointError::Restless),
            ForkError::Exists { number: 1, socket: api() },
            ForkError::Device(DeviceError::Replaced { device: "disk data (/d)".to_owned() }),
            ForkError::Field { field: "vsock_override" },
            ForkError::Field { field: "resume_vm" },
            ForkError::Ended { number: 1, status: ExitStatus::from_raw(0) },
            ForkError::Silent { number: 1, api: api(), seconds: 5 },
            ForkError::Restore { number: 1, source },
            ForkError::State { path: api(), source: io::ErrorKind::InvalidData.into() },
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }
}
