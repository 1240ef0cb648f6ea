use std::io;
use std::path::PathBuf;

use hugekit_sys::ErrorKind;

/// The reason why a fact about the machine is unknown. The message contains the name of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to open or read a file, or the file does not exist.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file was read, but does not have the expected content.
    #[error("{}: expected {expected}, found {found:?}", path.display())]
    Malformed {
        /// The path of the file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
        /// The content, cut to one short line.
        found: String,
    },
}

impl Error {
    pub(super) fn malformed(path: PathBuf, expected: &'static str, text: &str) -> Self {
        let found = text.lines().next().unwrap_or_default().chars().take(40).collect();
        Self::Malformed { path, expected, found }
    }

    pub(super) fn out_of_memory(path: PathBuf) -> Self {
        Self::Unreadable { path, source: io::ErrorKind::OutOfMemory.into() }
    }

    /// Returns true if the file does not exist. For most files this means that the kernel lacks the
    /// feature.
    pub fn is_not_found(&self) -> bool {
        self.io_kind() == Some(io::ErrorKind::NotFound)
    }

    /// Returns true if the file described a thread that ended while it was read.
    pub(super) fn is_of_a_dead_thread(&self) -> bool {
        let code = match self {
            Self::Unreadable { source, .. } => source.raw_os_error(),
            Self::Malformed { .. } => None,
        };
        code == Some(rustix::io::Errno::SRCH.raw_os_error())
    }

    /// Returns true if this process may not open a file that exists.
    pub fn is_permission_denied(&self) -> bool {
        self.io_kind() == Some(io::ErrorKind::PermissionDenied)
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.io_kind().map_or(ErrorKind::Kernel, ErrorKind::from)
    }

    fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Unreadable { source, .. } => Some(source.kind()),
            Self::Malformed { .. } => None,
        }
    }
}
