//! What goes wrong, for the pager and for one VM.

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
    /// The socket cannot be listened at.
    #[error("cannot listen at {}{}", socket.display(), Remedy(self.remedy()))]
    Socket {
        /// The socket as the caller named it.
        socket: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another pager listens at this socket.
    #[error("another pager listens at {}{}", socket.display(), Remedy(self.remedy()))]
    Running {
        /// The socket as the caller named it.
        socket: PathBuf,
    },
    /// The socket's lock is another user's.
    #[error("{} belongs to user {user}{}", lock.display(), Remedy(self.remedy()))]
    OtherUser {
        /// The file.
        lock: PathBuf,
        /// Its owner.
        user: u32,
    },
    /// The folder of states cannot be used.
    #[error("cannot use the state folder {}{}", folder.display(), Remedy(self.remedy()))]
    State {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A fault cannot bring in so much.
    #[error("{0} bytes around a fault: a power of two from the base page to 2 MiB is needed")]
    Around(u64),
    /// The system has refused something else.
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

    /// Returns a step for the user, if there is one.
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

/// The reason why a VM is not served. Its wait for memory was ended ([`Ending`](crate::pager::Ending)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The process cannot be held.
    #[error("its process cannot be told")]
    Process(#[source] io::Error),
    /// A checkpoint or another pager uses the VM's userfaultfd.
    #[error("a checkpoint or another pager uses its userfaultfd{}", Remedy(self.remedy()))]
    InUse,
    /// Another user's.
    #[error("it belongs to user {uid}{}", Remedy(self.remedy()))]
    User {
        /// Whose it is.
        uid: u32,
    },
    /// No whole message came.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// No userfaultfd came, or an earlier pager's was not found.
    #[error("it has no userfaultfd that its memory is registered with")]
    NoUserfaultfd,
    /// The descriptor is none of userfaultfd's, or one that is not understood.
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
    /// Nothing could be remembered of it.
    #[error("its state cannot be written")]
    State(#[source] io::Error),
    /// Its memory file is gone.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// It had connected to an earlier pager, and its message was lost with that one.
    #[error(
        "an earlier pager was killed before it had recorded this VM, whose {bytes} bytes of memory \
         cannot be distinguished{}",
        Remedy(self.remedy())
    )]
    Lost {
        /// Bytes of its memory.
        bytes: u64,
    },
    /// Too many are served already.
    #[error("{0} VMs are connected already, and there are descriptors for no more{remedy}", remedy = Remedy(self.remedy()))]
    TooMany(usize),
    /// No thread could be started for it.
    #[error("no thread serves it")]
    Thread(#[source] io::Error),
}

impl Refusal {
    /// Returns a step for the user, if there is one.
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

/// A failure of a VM that is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// A page cannot be read: the VM's access to it fails.
    #[error("accesses to memory of the VM fail")]
    Source(#[from] SourceError),
    /// No memory is free for a page of the VM.
    #[error("no memory for a page at {address:#x} after {seconds} s; accesses to it fail{}", Remedy(self.remedy()))]
    NoMemory {
        /// The address of the page.
        address: u64,
        /// Seconds in which it was tried.
        seconds: u64,
        /// True if it is a page of hugetlbfs, of which the pool has some left.
        is_hugetlb: bool,
    },
    /// No page of hugetlbfs is free for a page of the VM.
    #[error("no free 2 MiB page at {address:#x} after {seconds} s; accesses to it fail")]
    NoHugePages {
        /// The address of the page.
        address: u64,
        /// Seconds in which it was tried.
        seconds: u64,
        /// Pages for all of the VM's memory.
        source: Shortage,
    },
    /// The kernel has refused to supply a page.
    #[error("the kernel refuses a page at {address:#x}")]
    Kernel {
        /// The address of the page.
        address: u64,
        /// Its answer.
        source: io::Error,
    },
    /// The working set cannot be written or read.
    #[error("the working set {path} is not used{}", Remedy(self.remedy()), path = path.display())]
    WorkingSet {
        /// Its file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Memory is short, and is kept for what the VM touches.
    #[error("nothing more is read ahead: {0}; the VM needs the pager until it ends{remedy}", remedy = Remedy(self.remedy()))]
    NotAhead(Available),
    /// A mistake in the pager itself.
    #[error("the pager has made a mistake, and its VMM was ended{}", Remedy(self.remedy()))]
    Mistake,
    /// No thread could be started, or its messages cannot be read.
    #[error("the thread of the VM cannot go on")]
    Thread(#[source] io::Error),
}

impl VmError {
    /// Returns a step for the user, if there is one.
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
