//! Requests of a checkpoint or a fork to a VMM. A VMM that can be saved or forked implements
//! [`Control`].

use std::fmt::{self, Debug};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hugekit_sys::{ErrorKind, seqpacket};
use serde_json::{Map, Value};

use crate::api::{self, Answer, connect};
use crate::devices::{Device, OwnDevices};

/// A running VM, controlled through the API of its VMM.
pub(crate) trait Control: Debug + Send + Sync {
    /// Returns the socket of the API.
    fn socket(&self) -> &Path;

    /// Returns true if the VM runs. An error if it is in a state in which it cannot be saved.
    fn is_running(&self) -> Result<bool, ControlError>;

    /// Returns the memory in the VM's configuration.
    fn memory(&self) -> Result<ConfiguredMemory, ControlError>;

    /// Returns the possible sizes of the regions of a VM with this much memory, by offset: one list
    /// for each version of the VMM. They are needed for a VM whose layout was not kept.
    fn region_sizes(&self, bytes: u64) -> Vec<Vec<u64>>;

    /// Returns the devices of the VM that use a part of the host. The list is empty if the VMM does
    /// not report them.
    fn devices(&self) -> Result<Vec<Device>, ControlError>;

    /// Moves a disk of a paused VM to another file with the same content.
    fn set_disk(&self, id: &str, file: &Path) -> Result<(), ControlError>;

    fn pause(&self) -> Result<(), ControlError>;

    /// Returns the text of the request that resumes the VM. The guard sends this text, too, because
    /// it cannot make a request.
    fn resume_text(&self) -> &'static str;

    /// Requests the state of the devices only. The VMM may answer with an error after it has
    /// written the state.
    fn send_save_state(&self, state: &Path) -> Result<Request, ControlError>;

    /// Requests the state and the memory.
    fn send_save_all(&self, state: &Path, memory: &Path) -> Result<Request, ControlError>;

    /// Returns true if these bytes are a complete state.
    fn is_whole_state(&self, state: &[u8]) -> bool;

    /// Restores a VM, which stays paused.
    fn load(&self, from: &Load<'_>) -> Result<(), ControlError>;

    /// Requests that the VM runs.
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

/// The parameters of a restore.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    /// The state file of the devices.
    pub(crate) state: &'a Path,
    pub(crate) memory: LoadMemory<'a>,
    /// Devices that replace those in the state. Disks are replaced later: [`Control::set_disk`].
    pub(crate) own: &'a OwnDevices,
    /// Other fields of the request, as the VMM names them.
    pub(crate) others: &'a Map<String, Value>,
}

/// The source of the memory of a restored VM.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadMemory<'a> {
    /// A socket at which the memory is supplied.
    Supplied(&'a Path),
    /// A file that the VMM maps privately.
    Mapped(&'a Path),
}

/// The memory in a VM's configuration, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfiguredMemory {
    /// Memory that the VM has from its start.
    pub bytes: u64,
    /// Memory that can be plugged in. A snapshot has room for all of it.
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

/// Firecracker's message if it cannot map memory from a file.
pub(crate) const NO_MAPPING: &str = "hugetlbfs backed snapshot by mapping the memory file";

/// The reason why a request to a VMM failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No answer arrived.
    #[error("the VMM did not answer to {request:?}")]
    NoAnswer {
        /// The request.
        request: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The VMM refused a request.
    #[error("the VMM refused {request:?}: {status}: {answer}")]
    Refused {
        /// The request.
        request: String,
        /// The HTTP status.
        status: u16,
        /// The VMM's message.
        answer: String,
        /// A step for the user, if this message is known.
        remedy: Option<&'static str>,
    },
    /// The VM was not started.
    #[error("the VM's state is {state:?}: only a VM that was started can be saved")]
    State {
        /// The state, as the VMM names it.
        state: String,
    },
    /// The API belongs to another process than expected.
    #[error("the API is that of process {found}, not of VMM {pid}")]
    OtherVmm {
        /// The expected process of the VMM.
        pid: i32,
        /// The process that listens at the socket.
        found: i32,
    },
}

impl ControlError {
    pub(crate) fn refused(request: String, answer: &Answer) -> Self {
        Self::Refused { request, status: answer.status, answer: answer.body.clone(), remedy: None }
    }

    /// Returns true if the VMM has refused to map the memory of a VM from a file.
    pub(crate) fn needs_copy(&self) -> bool {
        matches!(self, Self::Refused { answer, .. } if answer.contains(NO_MAPPING))
    }

    /// Returns a step for the user; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Refused { remedy, .. } => *remedy,
            _ => None,
        }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::State { .. } | Self::OtherVmm { .. } => ErrorKind::Invalid,
            Self::NoAnswer { .. } | Self::Refused { .. } => ErrorKind::Kernel,
        }
    }
}

/// A sent request. Other work can continue until its answer arrives.
#[derive(Debug)]
pub(crate) struct Request {
    words: String,
    sent: api::Pending,
}

impl Request {
    /// Makes a request. `words` name it in errors.
    pub(crate) fn new(words: String, sent: io::Result<api::Pending>) -> Result<Self, ControlError> {
        match sent {
            Ok(sent) => Ok(Self { words, sent }),
            Err(source) => Err(ControlError::NoAnswer { request: words, source }),
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.sent.as_fd()
    }

    /// Returns the answer, if all of it has arrived.
    pub(crate) fn answer(&mut self) -> Result<Option<Answer>, ControlError> {
        let answer = self.sent.answer();
        answer.map_err(|source| ControlError::NoAnswer { request: self.words.clone(), source })
    }

    /// Waits for the answer, also if it is an error.
    pub(crate) fn wait(self) -> Result<Answer, ControlError> {
        let Self { words, sent } = self;
        sent.wait().map_err(|source| ControlError::NoAnswer { request: words, source })
    }

    /// Waits for the answer. An answer that is not a success is an error.
    pub(crate) fn succeed(self) -> Result<Answer, ControlError> {
        let request = self.words.clone();
        let answer = self.wait()?;
        if answer.is_success() { Ok(answer) } else { Err(ControlError::refused(request, &answer)) }
    }

    pub(crate) fn refused(&self, answer: &Answer) -> ControlError {
        ControlError::refused(self.words.clone(), answer)
    }
}
