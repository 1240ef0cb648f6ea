//! Why a VM is not restored.

use std::io;
use std::path::PathBuf;

use hugekit_image::ImageError;
use hugekit_sys::{ErrorKind, Remedy};

pub use crate::cloud_hypervisor::layout::UnfitMemory;

/// The reason why a VM is not restored. Its VMM has no VM then, and may be asked again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A file of the snapshot cannot be read.
    #[error("{path} cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the snapshot is longer than any that Cloud Hypervisor writes.
    #[error("{path} has {bytes} bytes, and at most {most} are read", path = path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A file of the snapshot is not as Cloud Hypervisor writes it.
    #[error("{path} is no file of a snapshot of Cloud Hypervisor", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// The snapshot has memory that cannot be restored in this way.
    #[error(transparent)]
    Memory(#[from] UnfitMemory),
    /// The memory cannot be made, or the image is not available.
    #[error("the memory cannot be made ready")]
    Image(#[from] ImageError),
    /// The API does not answer.
    #[error("the API of the VMM at {} does not answer{}", socket.display(), Remedy(self.remedy()))]
    Api {
        /// Its socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The VMM has refused to receive a VM.
    #[error("the VMM answers {status} to {request}: {answer}{}", Remedy(self.remedy()))]
    Refused {
        /// The request.
        request: &'static str,
        /// The status of HTTP.
        status: u16,
        /// Its words.
        answer: String,
    },
    /// The connection to the VMM broke while the VM was sent.
    #[error("the VMM does not take the VM's {what}")]
    Broken {
        /// The part of the VM that was sent.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The VMM has refused a part of the VM.
    #[error("the VMM refuses the VM's {what}: {answer}{}", Remedy(self.remedy()))]
    Rejected {
        /// The part of the VM that was sent.
        what: &'static str,
        /// The words of its API.
        answer: String,
    },
}

impl RestoreError {
    /// The kind of the error, for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLong { .. } | Self::Format { .. } => ErrorKind::Invalid,
            Self::Memory(UnfitMemory::Image { .. }) => ErrorKind::Invalid,
            Self::Memory(_) => ErrorKind::Unsupported,
            Self::Image(error) => error.kind(),
            Self::Refused { .. } | Self::Rejected { .. } => ErrorKind::Conflict,
            Self::Read { source, .. } | Self::Api { source, .. } | Self::Broken { source, .. } => {
                source.kind().into()
            }
        }
    }

    /// Returns what its user can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Memory(error) => return error.remedy().map(str::to_owned),
            Self::Image(error) => return error.remedy(),
            Self::Api { socket, .. } => {
                format!("start one: cloud-hypervisor --api-socket {}", socket.display())
            }
            Self::Refused { .. } => "use a VMM that has no VM".to_owned(),
            Self::Rejected { .. } => {
                "restore by the version of Cloud Hypervisor that made the snapshot".to_owned()
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_refused_restore_has_its_remedy_once() {
        let answer = || "no".to_owned();
        let socket = || PathBuf::from("/run/vmm.sock");
        for error in [
            RestoreError::Memory(UnfitMemory::Missing { gpa: 0, size: 4096 }),
            RestoreError::Memory(UnfitMemory::VirtioMem { gpa: 0, size: 4096 }),
            RestoreError::Memory(UnfitMemory::Hotplug),
            RestoreError::Memory(UnfitMemory::Image { image: 1, snapshot: 2 }),
            RestoreError::Image(ImageError::Nothing),
            RestoreError::Api { socket: socket(), source: io::ErrorKind::NotFound.into() },
            RestoreError::Refused { request: "vm.receive", status: 500, answer: answer() },
            RestoreError::Rejected { what: "state", answer: answer() },
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }
}
