//! Reasons why a VM was not saved. After such an error, the output is absent, and the VM continues
//! to run.

use std::io;
use std::path::PathBuf;

use crate::devices::DeviceError;
use crate::pager::UnfitDescriptor;
use crate::vmm::{ConfiguredMemory, ControlError};
use hugekit_delta::DeltaError;
use hugekit_machine::Root;
use hugekit_sys::{ErrorKind, Remedy};

/// The reason why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The process cannot be opened.
    #[error("process {pid} cannot be opened")]
    Process {
        /// The number of the process.
        pid: i32,
        /// The system's answer.
        source: io::Error,
    },
    /// The VMM has ended.
    #[error("the VMM {pid} has ended")]
    Ended {
        /// The number of the VMM's process.
        pid: i32,
    },
    /// A request to the VMM failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The descriptors of the VMM cannot be copied.
    #[error("the userfaultfd of VMM {pid} cannot be copied{}", Remedy(self.remedy()))]
    Rights {
        /// The number of the VMM's process.
        pid: i32,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no file that the VMM can write and this process can read.
    #[error("VMM {pid} can be given no file for its state{}", Remedy(self.remedy()))]
    Handover {
        /// The number of the VMM's process.
        pid: i32,
        /// The system's answer.
        source: io::Error,
    },
    /// The VMM has no userfaultfd.
    #[error("VMM {pid} has no userfaultfd: it was booted, or restored from a file{}", Remedy(self.remedy()))]
    NoUserfaultfd {
        /// The number of the VMM's process.
        pid: i32,
    },
    /// The userfaultfd of the VMM has features that are not supported.
    #[error(transparent)]
    Descriptor(#[from] UnfitDescriptor),
    /// Another process uses the userfaultfd.
    #[error("another checkpoint or a pager is using the userfaultfd of VMM {pid}{}", Remedy(self.remedy()))]
    InUse {
        /// The number of the VMM's process.
        pid: i32,
    },
    /// The memory of the VM is not complete.
    #[error(
        "memory of VMM {pid} is not complete: a pager supplies it, or has been ended{}",
        Remedy(self.remedy())
    )]
    Incomplete {
        /// The number of the VMM's process.
        pid: i32,
    },
    /// The VM's regions do not have as much memory as its configuration.
    #[error(
        "the regions that VMM {pid} was restored with have {regions} bytes, and its configuration has {memory}{}",
        Remedy(self.remedy())
    )]
    OtherSize {
        /// The number of the VMM's process.
        pid: i32,
        /// Bytes of the regions.
        regions: u64,
        /// The memory in the configuration.
        memory: ConfiguredMemory,
    },
    /// Guest memory is not found among the mappings.
    #[error(
        "{bytes} bytes of guest memory are not found among the mappings of VMM {pid}{}",
        Remedy(self.remedy())
    )]
    Layout {
        /// The number of the VMM's process.
        pid: i32,
        /// Bytes of the VM's memory.
        bytes: u64,
    },
    /// A delta cannot follow on an earlier checkpoint.
    #[error("cannot save a delta that follows on {}{}", path.display(), Remedy(self.remedy()))]
    Previous {
        /// The path of the folder, or of its delta.
        path: PathBuf,
        /// The reason.
        source: DeltaError,
    },
    /// The output exists.
    #[error("{} exists already{}", path.display(), Remedy(self.remedy()))]
    Exists {
        /// The path of the folder.
        path: PathBuf,
    },
    /// The output cannot be written.
    #[error("cannot write {path}", path = path.display())]
    Output {
        /// The path of the folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The guard process, which would clean up after this process, cannot be started.
    #[error("cannot start the guard process")]
    Guard(#[source] io::Error),
    /// The kernel refused to protect memory or to release it.
    #[error("the kernel refuses to {action} memory of the VM")]
    Kernel {
        /// The refused step.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Memory of the VM cannot be read.
    #[error("memory of the VM cannot be read at {address:#x}")]
    Memory {
        /// The address of the memory.
        address: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// There is not enough memory for the memory of the children.
    #[error("the memory of the VM cannot be kept for its children")]
    Preserve(#[source] io::Error),
    /// A disk cannot be copied.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Devices of the paused VM wrote to its memory at each attempt.
    #[error("devices of the paused VM did not stop to write to its memory{}", Remedy(self.remedy()))]
    Restless,
    /// This process was stopped.
    #[error(
        "this process was stopped while memory of the VM was protected, which was released for the VM to run on{}",
        Remedy(self.remedy())
    )]
    Stopped,
    /// The VM released memory in the middle of the copy.
    #[error("the VM gave memory back before it was copied{}", Remedy(self.remedy()))]
    GaveBack,
    /// The state file of the VMM is not complete.
    #[error("the VMM wrote a state file that is not complete")]
    StateFile,
}

impl CheckpointError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Control(error) => error.kind(),
            Self::Device(_) => ErrorKind::Invalid,
            Self::Exists { .. } | Self::Previous { .. } | Self::NoUserfaultfd { .. } => {
                ErrorKind::Invalid
            }
            Self::InUse { .. }
            | Self::Incomplete { .. }
            | Self::GaveBack
            | Self::Restless
            | Self::Stopped => ErrorKind::Conflict,
            _ => ErrorKind::Kernel,
        }
    }

    /// Returns true if the end of a VMM may be the reason.
    pub(crate) fn may_be_an_end(&self) -> bool {
        matches!(
            self,
            Self::Control(ControlError::NoAnswer { .. })
                | Self::Memory { .. }
                | Self::Kernel { .. }
                | Self::Ended { .. }
        )
    }

    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Device(error) => error.remedy(),
            Self::NoUserfaultfd { .. } => Some(
                "take a stock snapshot (PUT /snapshot/create), and restore the VM by hugekit pager",
            ),
            Self::InUse { .. } => Some(
                "wait until the other checkpoint has ended, or until the pager prints \"left to \
                 the kernel\"; a pager with --stay or --no-prefetch never leaves",
            ),
            Self::Incomplete { .. } => Some(
                "start the VM's pager again, without --stay and --no-prefetch, and wait until it \
                 prints \"left to the kernel\"",
            ),
            Self::Layout { .. } => Some(
                "take a stock snapshot, and restore the VM by hugekit pager: it keeps the regions, which cannot be told \
                 after another handler",
            ),
            Self::OtherSize { .. } => Some("take a stock snapshot"),
            Self::Previous { .. } => Some(
                "name the folders of earlier checkpoints of this VM, the full one first, or save \
                 all memory without --delta",
            ),
            Self::Exists { .. } => Some("name a folder that does not exist"),
            Self::Rights { .. } => Some(right_to_trace(&Root::default())),
            Self::Handover { .. } => Some(
                "run as root or as the VMM's user, and give the VMM a /dev/shm, /run or /tmp that its user may write to",
            ),
            Self::GaveBack | Self::Restless | Self::Stopped => Some("try again"),
            _ => None,
        }
    }
}

/// Returns the users that may inspect the descriptors of a VMM. With Yama, a user may only inspect
/// child processes.
fn right_to_trace(root: &Root) -> &'static str {
    let scope = root.read_if_present("/proc/sys/kernel/yama/ptrace_scope").ok().flatten();
    match scope.as_deref().map(str::trim) {
        None | Some("0") => "run as the VMM's user, or with CAP_SYS_PTRACE",
        Some("3") => {
            "kernel.yama.ptrace_scope is 3, so that no process may until the machine is started again"
        }
        Some(_) => {
            "run with CAP_SYS_PTRACE, as root has it: kernel.yama.ptrace_scope keeps users from their own processes"
        }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_refused_checkpoint_has_its_remedy_once() {
        let path = || PathBuf::from("/saves/1");
        for error in [
            CheckpointError::NoUserfaultfd { pid: 1 },
            CheckpointError::InUse { pid: 1 },
            CheckpointError::Incomplete { pid: 1 },
            CheckpointError::Layout { pid: 1, bytes: 1 << 30 },
            CheckpointError::OtherSize {
                pid: 1,
                regions: 1 << 30,
                memory: ConfiguredMemory { bytes: 1 << 30, pluggable: 4096 },
            },
            CheckpointError::Previous { path: path(), source: DeltaError::NoDelta },
            CheckpointError::Exists { path: path() },
            CheckpointError::Rights { pid: 1, source: io::ErrorKind::PermissionDenied.into() },
            CheckpointError::GaveBack,
            CheckpointError::Restless,
            CheckpointError::Stopped,
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }

    #[test]
    fn remedy_of_missing_rights_is_one_that_works_under_yama() {
        let remedy = |scope: Option<&str>| {
            let machine = Files::new().unwrap();
            if let Some(scope) = scope {
                machine.file("/proc/sys/kernel/yama/ptrace_scope", scope);
            }
            right_to_trace(&Root::at(machine.path()))
        };
        assert!(remedy(None).starts_with("run as the VMM's user"));
        assert_eq!(remedy(Some("0\n")), remedy(None));
        assert!(remedy(Some("1\n")).starts_with("run with CAP_SYS_PTRACE"));
        assert!(remedy(Some("3\n")).contains("no process may"));
    }
}
