//! Errors that prevent or end a broker.

use std::io;
use std::path::PathBuf;

use hugekit_lease::LeaseError;
use hugekit_sys::Remedy;

/// The reason why a broker does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Another broker listens at the socket.
    #[error("another broker listens at {}{}", socket.display(), Remedy(self.remedy()))]
    Running {
        /// The path of the socket.
        socket: PathBuf,
    },
    /// The socket cannot be made at this path.
    #[error("cannot listen at {}{}", socket.display(), Remedy(self.remedy()))]
    Socket {
        /// The path of the socket.
        socket: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The size of a unit is invalid, or the kernel has no such pages.
    #[error("units of this size cannot be made")]
    Unit(#[source] LeaseError),
    /// The control group that would be charged cannot be used.
    #[error("no process can be placed in the control group {}{}", group.display(), Remedy(self.remedy()))]
    Group {
        /// The directory of the group.
        group: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused another system call.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl BrokerError {
    /// Returns a step by which an administrator or the caller can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Running { .. } => "choose another --socket, or stop the other broker".to_owned(),
            Self::Socket { .. } => {
                "choose a --socket in a directory that exists and that this user may write to"
                    .to_owned()
            }
            Self::Unit(error) => return error.remedy(),
            Self::Group { group, .. } => {
                format!(
                    "make it, and give this user write access to {}/cgroup.procs",
                    group.display()
                )
            }
            Self::Kernel { .. } => return None,
        })
    }

    pub(crate) fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Kernel { call, source: errno.into() }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_broker_that_cannot_start_has_its_remedy_once() {
        let refused = || io::ErrorKind::PermissionDenied.into();
        let path = || PathBuf::from("/run/broker");
        for error in [
            BrokerError::Running { socket: path() },
            BrokerError::Socket { socket: path(), source: refused() },
            BrokerError::Unit(LeaseError::NoBroker {
                socket: path(),
                unit: None,
                source: refused(),
            }),
            BrokerError::Group { group: path(), source: refused() },
        ] {
            let remedy = error.remedy();
            prints_remedy_once(error, remedy);
        }
    }
}
