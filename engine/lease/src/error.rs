//! Errors of leases, with figures.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::protocol::{Malformed, Refusal};
use hugekit_bulk::PopulateError;
use hugekit_bulk::parallel::JobError;
use hugekit_machine::hugepages::Shortage;
use hugekit_machine::size::Size;
use hugekit_machine::{Root, hugepages};
use hugekit_sys::backing::Backing;
use hugekit_sys::headroom::HeapShortage;
use hugekit_sys::{ErrorKind, Remedy};

/// An error of requesting a lease, or of making a file of memory. After an error nothing is
/// allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// No broker listens at the socket, or this process may not connect to it.
    #[error(
        "{} {}{}",
        if is_denied(source) { "this process may not connect to" } else { "no broker listens at" },
        socket.display(), Remedy(self.remedy())
    )]
    NoBroker {
        /// The socket.
        socket: PathBuf,
        /// Bytes of the requested lease, if the request was for a lease.
        unit: Option<u64>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program at the socket belongs to another user, who could write to the memory that it
    /// leases.
    #[error(
        "the program at {} belongs to user {uid}, not to root or the user of this process{}",
        socket.display(), Remedy(Some(START_AS_ROOT))
    )]
    Untrusted {
        /// The path of the socket.
        socket: PathBuf,
        /// The user of the program.
        uid: u32,
    },
    /// The broker refuses the request.
    #[error("the broker refuses: {0}{remedy}", remedy = Remedy(.0.remedy()))]
    Refused(Refusal),
    /// The broker did not answer in time: it was stopped, or it does not respond.
    #[error(
        "the broker at {} has not answered for {:.0}s{}",
        socket.display(), within.as_secs_f64(), Remedy(Some(SEE_PROCESS))
    )]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
        /// The time that the client waited.
        within: Duration,
    },
    /// The broker ended the connection without an answer.
    #[error("the broker ended the connection without an answer")]
    HungUp,
    /// The answer is invalid.
    #[error("the broker answered by {0}{remedy}", remedy = Remedy(one_version(.0)))]
    Malformed(Malformed),
    /// The answer does not fit the request, or its descriptor does not fit the answer.
    #[error("the broker's answer does not fit the request: {0}")]
    Unasked(&'static str),
    /// The file cannot be adopted.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The kernel has no huge pages of this size.
    #[error("this kernel has no huge pages of {}", Size(*page_size).exact())]
    NoHugePages {
        /// Bytes of a huge page.
        page_size: usize,
    },
    /// Too few huge pages are free.
    #[error(transparent)]
    Pages(Shortage),
    /// The memory could not be populated.
    #[error("the memory could not be populated")]
    Populate(#[from] JobError<PopulateError>),
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
}

/// The reason why a file cannot be adopted as memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The file is not a sealable file of memory, but a file on a disk, a pipe, or a file of a
    /// mounted file system.
    #[error("the descriptor is of no file that memfd_create(2) has made")]
    NoMemoryFile,
    /// The folder is not in a file system of memory.
    #[error("the folder is in no hugetlbfs and no tmpfs")]
    NoMemoryFolder,
    /// Another process may change the length of the file, so accesses could end in SIGBUS.
    #[error("the file is not sealed against shrinking and growing")]
    NotSealed,
    /// The descriptor does not permit writing.
    #[error("the file cannot be written: it is sealed against that, or open for reading only")]
    ReadOnly,
    /// The length of the file is 0, or not a multiple of its page size.
    #[error("{bytes} bytes are not one or more whole pages of {}", Size(*page_size).exact())]
    Length {
        /// The length of the file in bytes.
        bytes: u64,
        /// Bytes of a page of the file.
        page_size: usize,
    },
    /// The file does not have the requested length.
    #[error("the file has {}, but {} were asked for", Size(*bytes).exact(), Size(*wanted).exact())]
    Other {
        /// The length of the file in bytes.
        bytes: usize,
        /// Bytes requested.
        wanted: usize,
    },
    /// This library does not know the page size of the file.
    #[error("the file's huge pages are of {page_size} bytes, neither of 2 MiB nor of 1 GiB")]
    PageSize {
        /// Bytes of a page of the file.
        page_size: u64,
    },
    /// Fewer bytes are populated than the broker announced.
    #[error("of {} only {} are populated", Size(*bytes).exact(), Size(*present as usize).exact())]
    NotPopulated {
        /// The length of the file in bytes.
        bytes: usize,
        /// Bytes of the file that are populated.
        present: u64,
    },
}

const START_AS_ROOT: &str = "start a broker as root or as this user";
const SEE_PROCESS: &str = "see whether the broker is stopped (state T) or hangs: \
                           ps -C hugekit -o pid,state,args; or systemctl status hugekit-broker";

const PERMIT: &str = "a broker of root serves all users; a security profile such as AppArmor's has to \
                      permit the socket";

fn is_denied(source: &io::Error) -> bool {
    source.kind() == io::ErrorKind::PermissionDenied
}

/// The socket at which a broker of root listens by default.
const OF_ROOT: &str = "/run/hugekit/broker.sock";

/// Returns the command that starts a broker for the request.
fn start(socket: &Path, unit: Option<u64>) -> String {
    let unit = unit
        .map_or_else(|| " [--unit SIZE]".to_owned(), |bytes| format!(" --unit {}", option(bytes)));
    let at = match socket == Path::new(OF_ROOT) {
        true => String::new(),
        false => format!(" --socket {}", socket.display()),
    };
    format!("start one: hugekit broker{unit}{at}")
}

/// Returns a size as an option has it: without a space.
fn option(bytes: u64) -> String {
    let size = Size::from(bytes).exact().to_string();
    size.replace(" bytes", "").replace(' ', "")
}

fn one_version(malformed: &Malformed) -> Option<&'static str> {
    matches!(malformed, Malformed::Version { .. })
        .then_some("use a client and a broker of one version of hugekit")
}

impl LeaseError {
    /// Returns a step by which an administrator or the program can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NoBroker { source, .. } if is_denied(source) => PERMIT.to_owned(),
            Self::NoBroker { socket, unit, .. } => start(socket, *unit),
            Self::Untrusted { .. } => START_AS_ROOT.to_owned(),
            Self::Refused(refusal) => return refusal.remedy(),
            Self::NoAnswer { .. } => SEE_PROCESS.to_owned(),
            Self::Malformed(malformed) => return one_version(malformed).map(str::to_owned),
            Self::Pages(shortage) => shortage.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::Kernel { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => {
                    "make the folder; a hugetlbfs is mounted by: mount -t hugetlbfs none FOLDER"
                        .to_owned()
                }
                io::ErrorKind::AlreadyExists => {
                    "remove that file, or choose another path".to_owned()
                }
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Returns the shortage of huge pages in figures, if there is one.
pub(super) fn shortage(root: &Root, backing: Backing, bytes: usize) -> Option<LeaseError> {
    let page_size = backing.page_size() as u64;
    let pool = hugepages::read_size(root, page_size).ok().filter(|_| backing.is_reserved())?;
    Shortage::of(root, &pool, bytes as u64 / page_size).map(LeaseError::Pages)
}

impl Unfit {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::PageSize { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }
}

impl LeaseError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoBroker { source, .. } => match source.kind().into() {
                ErrorKind::NotPermitted => ErrorKind::NotPermitted,
                _ => ErrorKind::Unsupported,
            },
            Self::Untrusted { .. } => ErrorKind::NotPermitted,
            Self::Refused(refusal) => refusal.kind(),
            Self::NoAnswer { .. } | Self::HungUp | Self::Unasked(_) => ErrorKind::Conflict,
            Self::Malformed(malformed) => malformed.kind(),
            Self::Unfit(unfit) => unfit.kind(),
            Self::NoHugePages { .. } => ErrorKind::Unsupported,
            Self::Pages(_) | Self::Heap(_) => ErrorKind::NoMemory,
            Self::Populate(error) => error.kind(),
            Self::Kernel { source, .. } => source.kind().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_without_a_broker_starts_one_for_the_request() {
        let remedy = |socket: &str, unit| {
            let source = io::ErrorKind::NotFound.into();
            LeaseError::NoBroker { socket: socket.into(), unit, source }.remedy().unwrap()
        };
        assert_eq!(remedy(OF_ROOT, Some(4 << 30)), "start one: hugekit broker --unit 4GiB");
        assert_eq!(remedy("/a", Some(5)), "start one: hugekit broker --unit 5 --socket /a");
        assert_eq!(remedy(OF_ROOT, None), "start one: hugekit broker [--unit SIZE]");
    }

    #[test]
    fn socket_that_may_not_be_used_is_no_broker_that_is_missing() {
        let (socket, source) = (OF_ROOT.into(), io::ErrorKind::PermissionDenied.into());
        let said = LeaseError::NoBroker { socket, unit: None, source }.to_string();
        assert!(
            said.starts_with("this process may not connect to /run/hugekit/broker.sock"),
            "{said}"
        );
        assert!(!said.contains("start one") && said.contains("AppArmor"), "{said}");
    }
}
