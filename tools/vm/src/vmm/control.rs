//! Requests that a checkpoint or a fork makes to a VMM. A VMM that is to be saved or forked implements [`Control`].

use std::fmt::{self, Debug};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hugekit_sys::{ErrorKind, seqpacket};
use serde_json::{Map, Value};

use crate::api::{self, Answer, connect};
use crate::devices::{Device, OwnDevices};

/// A running VM, by the API of its VMM.
pub(crate) trait Control: Debug + Send + Sync {
    /// Returns the socket of the API.
    fn socket(&self) -> &Path;

    /// Returns whether the VM runs; an error if it has no state in which it can be saved.
    fn is_running(&self) -> Result<bool, ControlError>;

    /// Returns the memory that the VM was configured with.
    fn memory(&self) -> Result<ConfiguredMemory, ControlError>;

    /// Returns the sizes of the regions, by offset, that a VM with so much memory may have: one list for each version
    /// of the VMM. They are needed for a VM whose layout nobody has kept.
    fn region_sizes(&self, bytes: u64) -> Vec<Vec<u64>>;

    /// Returns the devices of the VM that use a part of the host; none of a VMM that does not say
    /// so.
    fn devices(&self) -> Result<Vec<Device>, ControlError>;

    /// Has a disk of a paused VM be in another file, which is as the one before.
    fn set_disk(&self, id: &str, file: &Path) -> Result<(), ControlError>;

    fn pause(&self) -> Result<(), ControlError>;

    /// Returns the text of the request that resumes the VM: the guard sends it, too, which cannot
    /// make one.
    fn resume_text(&self) -> &'static str;

    /// Asks for the state of the devices alone. The VMM may answer with an error after it has written the state.
    fn send_save_state(&self, state: &Path) -> Result<Request, ControlError>;

    /// Asks for the state and the memory.
    fn send_save_all(&self, state: &Path, memory: &Path) -> Result<Request, ControlError>;

    /// Returns whether these bytes are a state as a whole.
    fn is_whole_state(&self, state: &[u8]) -> bool;

    /// Restores a VM, which stays paused.
    fn load(&self, from: &Load<'_>) -> Result<(), ControlError>;

    /// Has the VM run.
    fn send_resume(&self) -> Result<Request, ControlError> {
        Request::new("resume".to_owned(), api::send_text(self.socket(), self.resume_text()))
    }

    /// Returns the process that listens at the socket.
    fn listener(&self) -> Result<i32, ControlError> {
        let peer = || Ok(seqpacket::peer(connect(self.socket())?)?.pid);
        peer().map_err(|source| {
            let request = format!("connect to {}", self.socket().display());
            ControlError::NoAnswer { request, source }
        })
    }
}

/// A VM to be restored.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    /// The file of its devices' state.
    pub(crate) state: &'a Path,
    pub(crate) memory: LoadMemory<'a>,
    /// Devices in the place of those in the state. Disks come later: [`Control::set_disk`].
    pub(crate) own: &'a OwnDevices,
    /// Other fields of the request, in the words of the VMM.
    pub(crate) others: &'a Map<String, Value>,
}

/// A way to the memory of a VM that is restored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadMemory<'a> {
    /// The socket at which it is supplied.
    Supplied(&'a Path),
    /// A file that the VMM maps privately.
    Mapped(&'a Path),
}

/// The memory of a VM by its configuration, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfiguredMemory {
    /// Memory that the VM has from its start.
    pub bytes: u64,
    /// Memory that can be plugged in: a snapshot has room for all of it.
    pub pluggable: u64,
}

impl ConfiguredMemory {
    pub(crate) fn all(self) -> u64 {
        self.bytes + self.pluggable
    }
}

impl fmt::Display for ConfiguredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)?;
        if self.pluggable > 0 {
            write!(f, " and {} bytes that can be plugged in", self.pluggable)?;
        }
        Ok(())
    }
}

/// Words of Firecracker for memory that it cannot map from a file.
pub(crate) const NO_MAPPING: &str = "hugetlbfs backed snapshot by mapping the memory file";

/// The reason why a request to a VMM failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No answer came.
    #[error("the VMM did not answer to {request:?}")]
    NoAnswer {
        /// The request.
        request: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The VMM has refused a request.
    #[error("the VMM refused {request:?}: {status}: {answer}")]
    Refused {
        /// The request.
        request: String,
        /// The HTTP status.
        status: u16,
        /// The VMM's words.
        answer: String,
        /// A step for the user, if these words are known.
        remedy: Option<&'static str>,
    },
    /// The VM was not started.
    #[error("the VM's state is {state:?}: only a VM that was started can be saved")]
    State {
        /// The state in the VMM's words.
        state: String,
    },
    /// The API belongs to another process.
    #[error("the API is that of process {found}, not of VMM {pid}")]
    OtherVmm {
        /// The VMM's process.
        pid: i32,
        /// The process that listens.
        found: i32,
    },
}

impl ControlError {
    pub(crate) fn refused(request: String, answer: &Answer) -> Self {
        Self::Refused { request, status: answer.status, answer: answer.body.clone(), remedy: None }
    }

    /// Returns whether the VMM has refused to map the memory of a VM from a file.
    pub(crate) fn needs_copy(&self) -> bool {
        matches!(self, Self::Refused { answer, .. } if answer.contains(NO_MAPPING))
    }

    /// Returns a step for the user, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Refused { remedy, .. } => *remedy,
            _ => None,
        }
    }

    /// Its meaning for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::State { .. } | Self::OtherVmm { .. } => ErrorKind::Invalid,
            Self::NoAnswer { .. } | Self::Refused { .. } => ErrorKind::Kernel,
        }
    }
}

/// A request that was sent. Other work can go on until its answer has come.
#[derive(Debug)]
pub(crate) struct Request {
    words: String,
    sent: api::Pending,
}

impl Request {
    /// `words` name it in errors.
    pub(crate) fn new(words: String, sent: io::Result<api::Pending>) -> Result<Self, ControlError> {
        match sent {
            Ok(sent) => Ok(Self { words, sent }),
            Err(source) => Err(ControlError::NoAnswer { request: words, source }),
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.sent.as_fd()
    }

    /// Returns the answer, if all of it has come.
    pub(crate) fn answer(&mut self) -> Result<Option<Answer>, ControlError> {
        let answer = self.sent.answer();
        answer.map_err(|source| ControlError::NoAnswer { request: self.words.clone(), source })
    }

    /// Waits for the answer, whatever it is.
    pub(crate) fn wait(self) -> Result<Answer, ControlError> {
        let Self { words, sent } = self;
        sent.wait().map_err(|source| ControlError::NoAnswer { request: words, source })
    }

    /// Waits for an answer of success.
    pub(crate) fn succeed(self) -> Result<Answer, ControlError> {
        let request = self.words.clone();
        let answer = self.wait()?;
        if answer.is_success() { Ok(answer) } else { Err(ControlError::refused(request, &answer)) }
    }

    pub(crate) fn refused(&self, answer: &Answer) -> ControlError {
        ControlError::refused(self.words.clone(), answer)
    }
}
