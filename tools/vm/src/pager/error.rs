//! Errors of the pager, and of one VM.

use std::io;
use std::path::PathBuf;

use hugekit_machine::available::Available;
use hugekit_machine::hugepages::Shortage;
use hugekit_sys::{ErrorKind, Remedy};

use crate::firecracker::handshake::HandshakeError;
use crate::pager::source::SourceError;
use crate::vmm::UnfitLayout;
use crate::vmm::userfaultfd::UnfitDescriptor;

/// The reason why a pager cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagerError {
    /// The memory file is not available.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The pager cannot listen at the socket.
    #[error("cannot listen at {}{}", socket.display(), Remedy(self.remedy()))]
    Socket {
        /// The socket, as the caller named it.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another pager listens at this socket.
    #[error("another pager listens at {}{}", socket.display(), Remedy(self.remedy()))]
    Running {
        /// The socket, as the caller named it.
        socket: PathBuf,
    },
    /// The lock of the socket belongs to another user.
    #[error("{} belongs to user {user}{}", lock.display(), Remedy(self.remedy()))]
    OtherUser {
        /// The path of the lock file.
        lock: PathBuf,
        /// The owner of the lock file.
        user: u32,
    },
    /// The folder for the state of VMs cannot be used.
    #[error("cannot use the state folder {}{}", folder.display(), Remedy(self.remedy()))]
    State {
        /// The path of the folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The number of bytes for each fault is not valid.
    #[error("{0} bytes around a fault: a power of two from the base page to 2 MiB is needed")]
    Around(u64),
    /// The system refused another call.
    #[error("the pager cannot run")]
    System(#[from] io::Error),
}

impl PagerError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Around(_) => ErrorKind::Invalid,
            Self::Running { .. } => ErrorKind::Conflict,
            _ => ErrorKind::Kernel,
        }
    }

    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Running { .. } => Some("stop that one, or listen at another socket"),
            Self::OtherUser { .. } => {
                Some("remove it if no pager of that user runs, or listen at another socket")
            }
            Self::Socket { .. } => Some("listen in a folder that this user may write to"),
            Self::State { .. } => Some("name a folder that this user owns by --state-dir"),
            _ => None,
        }
    }
}

/// The reason why a VM is not served. Its wait for memory was ended
/// ([`Ending`](crate::pager::Ending)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The process cannot be opened.
    #[error("its process cannot be told")]
    Process(#[source] io::Error),
    /// A checkpoint or another pager uses the VM's userfaultfd.
    #[error("a checkpoint or another pager uses its userfaultfd{}", Remedy(self.remedy()))]
    InUse,
    /// The VMM belongs to another user.
    #[error("it belongs to user {uid}{}", Remedy(self.remedy()))]
    User {
        /// The user of the VMM.
        uid: u32,
    },
    /// No complete message arrived.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// No userfaultfd arrived, or the userfaultfd of an earlier pager was not found.
    #[error("it has no userfaultfd that its memory is registered with")]
    NoUserfaultfd,
    /// The descriptor is not a userfaultfd, or has features that are not supported.
    #[error(transparent)]
    Descriptor(#[from] UnfitDescriptor),
    /// The regions are refused.
    #[error(transparent)]
    Layout(#[from] UnfitLayout),
    /// The memory is not registered with the descriptor.
    #[error("its userfaultfd does not serve its memory at {start:#x}")]
    NotRegistered {
        /// The first address of a region.
        start: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The record of the VM could not be written.
    #[error("its state cannot be written")]
    State(#[source] io::Error),
    /// The memory file of the VM is not available any more.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The VM had connected to an earlier pager, and its message was lost with that pager.
    #[error(
        "an earlier pager was killed before it had recorded this VM, whose {bytes} bytes of memory \
         cannot be distinguished{}",
        Remedy(self.remedy())
    )]
    Lost {
        /// Bytes of the VM's memory.
        bytes: u64,
    },
    /// The pager serves the highest permitted number of VMs already.
    #[error("{0} VMs are connected already, and there are descriptors for no more{remedy}", remedy = Remedy(self.remedy()))]
    TooMany(usize),
    /// No thread could be started for the VM.
    #[error("no thread serves it")]
    Thread(#[source] io::Error),
}

impl Refusal {
    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::InUse => "wait until the checkpoint has ended, or stop that pager".to_owned(),
            Self::User { uid } => format!("run the pager with --user {uid}"),
            Self::Lost { .. } => "restore it again".to_owned(),
            Self::TooMany(_) => {
                "raise the limit of open files (ulimit -n), end VMs, or serve others by another pager".to_owned()
            }
            _ => return None,
        })
    }
}

/// A failure of a served VM.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// A page cannot be read. The VM's access to the page fails.
    #[error("accesses to memory of the VM fail")]
    Source(#[from] SourceError),
    /// No memory is free for a page of the VM.
    #[error("no memory for a page at {address:#x} after {seconds} s; accesses to it fail{}", Remedy(self.remedy()))]
    NoMemory {
        /// The address of the page.
        address: u64,
        /// The seconds in which the pager tried to supply the page.
        seconds: u64,
        /// True if the page is of hugetlbfs, and the kernel's pool has free pages.
        is_hugetlb: bool,
    },
    /// No page of hugetlbfs is free for a page of the VM.
    #[error("no free 2 MiB page at {address:#x} after {seconds} s; accesses to it fail")]
    NoHugePages {
        /// The address of the page.
        address: u64,
        /// The seconds in which the pager tried to supply the page.
        seconds: u64,
        /// The shortage of pages for all of the VM's memory.
        source: Shortage,
    },
    /// The kernel refused to supply a page.
    #[error("the kernel refuses a page at {address:#x}")]
    Kernel {
        /// The address of the page.
        address: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The working set cannot be written or read.
    #[error("the working set {path} is not used{}", Remedy(self.remedy()), path = path.display())]
    WorkingSet {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Memory is short, and is kept for pages that the VM touches. So no memory is read ahead.
    #[error("nothing more is read ahead: {0}; the VM needs the pager until it ends{remedy}", remedy = Remedy(self.remedy()))]
    NotAhead(Available),
    /// A bug in the pager itself.
    #[error("the pager has made a mistake, and its VMM was ended{}", Remedy(self.remedy()))]
    Mistake,
    /// No thread could be started, or its messages cannot be read.
    #[error("the thread of the VM cannot go on")]
    Thread(#[source] io::Error),
}

impl VmError {
    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NoMemory { is_hugetlb: true, .. } => {
                "raise hugetlb.2MB.max of the pager's control group: the kernel counts these pages for the pager"
                    .to_owned()
            }
            Self::NoMemory { .. } => {
                "free memory, or raise the limit of the VM's control group".to_owned()
            }
            Self::NoHugePages { source, .. } => source.remedy(),
            Self::NotAhead(_) => {
                "free memory, or raise the limit of the VM's control group above the size of the VM"
                    .to_owned()
            }
            Self::Mistake => "report what the log says before this line".to_owned(),
            Self::WorkingSet { .. } => {
                "name another file by --working-set; until then each pager records its own set"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use hugekit_sys::error_chain;
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    fn refused() -> io::Error {
        io::ErrorKind::PermissionDenied.into()
    }

    #[test]
    fn chain_of_a_pager_that_cannot_start_has_its_remedy_once() {
        let (socket, folder) = (PathBuf::from("/run/pager.sock"), PathBuf::from("/run/states"));
        for error in [
            PagerError::Running { socket: socket.clone() },
            PagerError::Socket { socket, source: refused() },
            PagerError::State { folder, source: refused() },
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }

    #[test]
    fn chain_of_a_refusal_has_its_remedy_once() {
        for error in [
            Refusal::InUse,
            Refusal::User { uid: 1000 },
            Refusal::Lost { bytes: 1 << 30 },
            Refusal::TooMany(1024),
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }

    #[test]
    fn chain_of_a_shortage_has_its_figures_and_its_remedy_once() {
        let source = Shortage {
            page_size: 2 << 20,
            wanted: 4,
            total: 1,
            free: 1,
            promised: 0,
            spare: Some(9),
        };
        let error = VmError::NoHugePages { address: 0x1000, seconds: 5, source };
        let chain = format!("{:#}", error_chain(&error));
        assert!(
            chain.contains("needs 4 huge pages of 2 MiB") && chain.contains("echo 4 > "),
            "{chain}"
        );
        let no_memory = |is_hugetlb| VmError::NoMemory { address: 0x1000, seconds: 30, is_hugetlb };
        assert!(no_memory(true).remedy().unwrap().contains("the pager's control group"));
        for error in [error, no_memory(true), no_memory(false)] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }
}
