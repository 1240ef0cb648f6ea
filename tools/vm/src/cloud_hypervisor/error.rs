//! Errors of a restore of a VM of Cloud Hypervisor.

use std::io;
use std::path::{Path, PathBuf};

use hugekit_image::ImageError;
use hugekit_sys::{ErrorKind, Remedy};

pub use crate::cloud_hypervisor::layout::UnfitMemory;
use crate::devices::DeviceError;

/// The reason why a VM is not restored. After such an error, the VMM has no VM, and a restore can
/// be repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A file of the snapshot cannot be read.
    #[error("{path} cannot be read", path = path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the snapshot is longer than any file of Cloud Hypervisor.
    #[error("{path} has {bytes} bytes, and at most {most} are read", path = path.display())]
    TooLong {
        /// The path of the file.
        path: PathBuf,
        /// The length of the file in bytes.
        bytes: u64,
        /// The highest accepted length in bytes.
        most: u64,
    },
    /// A file of the snapshot does not have the format of Cloud Hypervisor.
    #[error("{path} is no file of a snapshot of Cloud Hypervisor", path = path.display())]
    Format {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// The snapshot has memory that cannot be restored by this call.
    #[error(transparent)]
    Memory(#[from] UnfitMemory),
    /// A device of the VM belongs to another VM, or is missing.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The memory cannot be made, or the image is not available.
    #[error("the memory cannot be made ready")]
    Image(#[from] ImageError),
    /// The API does not answer.
    #[error("the API of the VMM at {} does not answer{}", socket.display(), Remedy(self.remedy()))]
    Api {
        /// The socket of the API.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The VMM is in a PID namespace that this process does not see. So the VMM cannot get an
    /// image.
    #[error("the VMM is in a PID namespace that is not seen from here, and cannot be given an image{}", Remedy(self.remedy()))]
    Unseen,
    /// This process and the VMM have no common folder.
    #[error("the VMM cannot listen for the VM in {}{}", folder.display(), Remedy(self.remedy()))]
    Place {
        /// The path of the folder for the VMM.
        folder: PathBuf,
        /// The system's error, or the message of the VMM's API.
        source: io::Error,
    },
    /// The VMM listens for a VM at a path that this process does not reach. The VMM waits there.
    #[error("the VMM listens for the VM at {}, which is not found here{}", path.display(), Remedy(self.remedy()))]
    Unreachable {
        /// The path of the socket for the VMM.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The VMM refused to receive a VM.
    #[error("the VMM answers {status} to {request}: {answer}{}", Remedy(self.remedy()))]
    Refused {
        /// The request.
        request: &'static str,
        /// The HTTP status.
        status: u16,
        /// The VMM's message.
        answer: String,
    },
    /// The connection to the VMM failed while the VM was sent.
    #[error("the VMM does not take the VM's {what}")]
    Broken {
        /// The part of the VM that was sent.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The VMM refused a part of the VM.
    #[error("the VMM refuses the VM's {what}: {answer}{}", Remedy(self.remedy()))]
    Rejected {
        /// The part of the VM that was sent.
        what: &'static str,
        /// The message of the VMM's API.
        answer: String,
    },
}

impl RestoreError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLong { .. } | Self::Format { .. } | Self::Device(_) => ErrorKind::Invalid,
            Self::Memory(error) => error.kind(),
            Self::Unseen => ErrorKind::Unsupported,
            Self::Image(error) => error.kind(),
            Self::Refused { .. } | Self::Rejected { .. } => ErrorKind::Conflict,
            Self::Read { source, .. }
            | Self::Api { source, .. }
            | Self::Place { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Broken { source, .. } => source.kind().into(),
        }
    }

    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Memory(error) => return error.remedy().map(str::to_owned),
            Self::Image(error) => return error.remedy(),
            Self::Device(error) => return error.remedy().map(str::to_owned),
            Self::Api { socket, source } => of_api(socket, source)?,
            Self::Unseen => {
                "run hugekit restore in the PID namespace of the VMM or in one above it, or without \
                 an image"
                    .to_owned()
            }
            Self::Place { .. } => {
                "let the user of the VMM write to the folder of its API socket, and run hugekit \
                 restore as this user or as root"
                    .to_owned()
            }
            Self::Unreachable { .. } => {
                "end the VMM, which waits there, and start it with an --api-socket of its own in a \
                 folder that both reach by the same path"
                    .to_owned()
            }
            Self::Refused { status, answer, .. } => of_refusal(*status, answer).to_owned(),
            Self::Rejected { .. } => {
                "read the reason in the log of the VMM (--log-file FILE -v). A snapshot of another \
                 version is restored by that version"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

/// Returns the remedy for an API that does not answer.
fn of_api(socket: &Path, source: &io::Error) -> Option<String> {
    let start = || format!("start one: cloud-hypervisor --api-socket {}", socket.display());
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Some(start()),
        io::ErrorKind::PermissionDenied => {
            Some("run hugekit restore as the user of the VMM, or as root".to_owned())
        }
        io::ErrorKind::InvalidData => Some("name the API socket of a Cloud Hypervisor".to_owned()),
        io::ErrorKind::TimedOut | io::ErrorKind::UnexpectedEof => {
            Some("read its log, end it and start another one".to_owned())
        }
        _ => None,
    }
}

/// Returns the remedy for a VMM that does not listen for a VM, according to its message.
fn of_refusal(status: u16, answer: &str) -> &'static str {
    let names = |words: &[&str]| words.iter().any(|words| answer.contains(words));
    if names(&["already created", "ongoing migration"]) {
        "use a VMM that has no VM"
    } else if status == 404 || status == 405 {
        "use Cloud Hypervisor 53 or later"
    } else {
        "read the reason in the log of the VMM (--log-file FILE -v)"
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
            RestoreError::Memory(UnfitMemory::Sharers { devices: "fs" }),
            RestoreError::Memory(UnfitMemory::Landlock),
            RestoreError::Memory(UnfitMemory::Short { has: 1, needs: 2 }),
            RestoreError::Memory(UnfitMemory::InFile { zone: "m".to_owned(), file: socket() }),
            RestoreError::Place { folder: socket(), source: io::ErrorKind::NotFound.into() },
            RestoreError::Unreachable { path: socket(), source: io::ErrorKind::NotFound.into() },
            RestoreError::Device(DeviceError::Replaced { device: "disk _disk0 (/d)".to_owned() }),
            RestoreError::Image(ImageError::Nothing),
            RestoreError::Unseen,
            RestoreError::Api { socket: socket(), source: io::ErrorKind::NotFound.into() },
            RestoreError::Refused { request: "vm.receive", status: 500, answer: answer() },
            RestoreError::Rejected { what: "state", answer: answer() },
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }

    #[test]
    fn remedy_fits_the_words_of_the_vmm() {
        let refused = |status, answer: &str| {
            let answer = answer.to_owned();
            RestoreError::Refused { request: "vm.receive", status, answer }.remedy().unwrap()
        };
        assert!(refused(500, "when a VM is already created").contains("has no VM"));
        assert!(refused(404, "").contains("53"));
        assert!(refused(500, "Cannot allocate memory").contains("log"));
        let api = |kind: io::ErrorKind| {
            RestoreError::Api { socket: PathBuf::from("/run/s"), source: kind.into() }.remedy()
        };
        assert!(api(io::ErrorKind::NotFound).unwrap().contains("start one"));
        assert!(api(io::ErrorKind::PermissionDenied).unwrap().contains("user of the VMM"));
        assert!(api(io::ErrorKind::TimedOut).unwrap().contains("end it"));
    }
}
