//! Reasons why hugekit cannot handle faults.

use std::fmt;
use std::io;

use hugekit_machine::userfaultfd::Obstacle;
use hugekit_sys::{ErrorKind, Remedy};

/// The reason why faults cannot be handled. Then memory cannot be cleared at the first access,
/// forked or snapshotted.
///
/// [`Clearing::OnAllocation`](super::Clearing::OnAllocation) works without the handling of faults.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// This process may not use userfaultfd(2), or may not use it for faults of system calls and of
    /// KVM.
    #[error(
        "no permission to handle {}: {}; {device}; {} still works{}",
        if *.user_mode { "any faults" } else { "the faults of system calls and of KVM" },
        Obstacles(obstacles),
        if *.user_mode { "clearing at allocation" } else { "fault_mode in place, or clearing at allocation," },
        Remedy(permit(obstacles))
    )]
    NotPermitted {
        /// True if the process may not handle faults of user code either.
        user_mode: bool,
        /// The obstacles to the system call, in the order in which an administrator should remove
        /// them.
        obstacles: Vec<Obstacle>,
        /// The device node, and the kernel's answer when it is opened.
        device: String,
    },
    /// The kernel lacks a required feature of userfaultfd(2).
    #[error("this kernel's userfaultfd lacks {}; clearing at allocation still works", missing.join(", "))]
    Lacking {
        /// Names of the missing features, each with the Linux version that introduced it.
        missing: Vec<&'static str>,
    },
    /// `MADV_COLLAPSE` (Linux 6.1), of this or another process, could map memory that is not
    /// cleared yet. This kernel cannot prevent it, because its userfaultfd does not report writes
    /// to shared memory (Linux 5.19, later on some architectures).
    #[error(
        "this kernel's MADV_COLLAPSE shows memory that is not clear yet, because its userfaultfd watches no \
         writes to shared memory; clearing at allocation still works"
    )]
    Collapsible,
    /// The program runs under Valgrind. Valgrind runs no other thread while one thread waits for a
    /// fault, and does not return to the instruction that faulted.
    #[error("faults cannot be handled on Valgrind; clearing at allocation still works")]
    OnValgrind,
    /// Another handler has replaced hugekit's handler of SIGBUS or SIGSEGV. Faults that hugekit
    /// should handle in place would end in that handler, or end the process.
    #[error(
        "another handler has replaced hugekit's handler of SIGBUS or SIGSEGV: installing it \
         again could make the two call each other endlessly{}",
        Remedy(Some(INSTALL_FIRST))
    )]
    HandlerReplaced,
    /// The calling thread blocks SIGBUS or SIGSEGV. At the first fault the kernel would end the
    /// process.
    #[error(
        "the calling thread blocks SIGBUS or SIGSEGV: a fault that is handled in place would end the process{}",
        Remedy(Some(UNBLOCK))
    )]
    Blocked,
    /// Another snapshot of the same memory handles writes in place. The kernel reports a write to
    /// only one userfaultfd.
    #[error("another snapshot of this memory handles writes in place")]
    AnotherInPlace,
    /// [`FaultMode::Threaded`](crate::fault::FaultMode::Threaded) was requested with 0 threads.
    #[error("0 handler threads requested: the least is 1")]
    NoThreads,
    /// [`FaultMode::Threaded`](crate::fault::FaultMode::Threaded) was requested with more threads
    /// than [`MOST_THREADS`](crate::fault::MOST_THREADS).
    #[error("{asked} handler threads requested: the most is {most}{}", Remedy(Some(ONE_THREAD)))]
    TooManyThreads {
        /// The requested number of threads.
        asked: usize,
        /// The highest number of threads.
        most: usize,
    },
    /// A handler thread could not be started.
    #[error("cannot start a handler thread{}", Remedy(Some(RAISE_THREADS)))]
    NotStarted(#[source] io::Error),
    /// The kernel refused another system call.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl FaultError {
    /// Returns a step by which an administrator or the program can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NotPermitted { obstacles, .. } => permit(obstacles)?,
            Self::HandlerReplaced => INSTALL_FIRST,
            Self::TooManyThreads { .. } => ONE_THREAD,
            Self::Blocked => UNBLOCK,
            Self::NotStarted(_) => RAISE_THREADS,
            _ => return None,
        };
        Some(remedy.to_owned())
    }
}

const INSTALL_FIRST: &str = "install the other handler before the first region that is handled in place: \
                             hugekit passes other signals on to it";
const ONE_THREAD: &str = "use one thread: more are seldom faster";
const UNBLOCK: &str = "unblock SIGBUS and SIGSEGV in every thread that touches the region";
const RAISE_THREADS: &str = "raise the limit: ulimit -u";

/// Returns how to remove the first of the obstacles.
fn permit(obstacles: &[Obstacle]) -> Option<&'static str> {
    match obstacles.first()? {
        Obstacle::Unprivileged | Obstacle::UserNamespace => Some(
            "sysctl vm.unprivileged_userfaultfd=1, or let this user open /dev/userfaultfd, or \
             grant CAP_SYS_PTRACE",
        ),
        Obstacle::Filter(_) => {
            Some("allow userfaultfd in the system-call filter, or /dev/userfaultfd in its place")
        }
        _ => None,
    }
}

struct Obstacles<'a>(&'a [Obstacle]);

impl fmt::Display for Obstacles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, obstacle) in self.0.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{}", ObstacleWords(obstacle))?;
        }
        Ok(())
    }
}

struct ObstacleWords<'a>(&'a Obstacle);

impl fmt::Display for ObstacleWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let os = |number: i32| io::Error::from_raw_os_error(number);
        match *self.0 {
            Obstacle::NotInKernel => f.write_str("the kernel was built without userfaultfd"),
            Obstacle::Filter(Some(number)) => {
                write!(f, "a system-call filter (seccomp) answers {}", os(number))
            }
            Obstacle::Filter(None) => {
                f.write_str("a system-call filter (seccomp) ends every process that calls it")
            }
            Obstacle::Unprivileged => f.write_str(
                "vm.unprivileged_userfaultfd is 0 and the process holds no CAP_SYS_PTRACE",
            ),
            Obstacle::UserNamespace => {
                f.write_str("CAP_SYS_PTRACE is held in a user namespace, where it does not count")
            }
            Obstacle::Unexplained(number) => write!(f, "the kernel answers {}", os(number)),
        }
    }
}

impl FaultError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotPermitted { .. } => ErrorKind::NotPermitted,
            Self::Lacking { .. } | Self::Collapsible | Self::OnValgrind => ErrorKind::Unsupported,
            Self::HandlerReplaced | Self::Blocked | Self::AnotherInPlace => ErrorKind::Conflict,
            Self::NoThreads | Self::TooManyThreads { .. } => ErrorKind::Invalid,
            Self::NotStarted(source) => source.kind().into(),
            Self::Kernel { source, .. } => source.kind().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_sys::error_chain;

    #[test]
    fn message_of_a_refusal_names_it_and_what_still_works() {
        let refused = |user_mode, obstacles| FaultError::NotPermitted {
            user_mode,
            obstacles,
            device: "/dev/userfaultfd: Permission denied".to_owned(),
        };
        let unprivileged = refused(false, vec![Obstacle::Unprivileged]);
        assert_eq!(
            error_chain(&unprivileged).to_string(),
            "no permission to handle the faults of system calls and of KVM: \
             vm.unprivileged_userfaultfd is 0 and the process holds no CAP_SYS_PTRACE; \
             /dev/userfaultfd: Permission denied; fault_mode in place, or clearing at allocation, still works"
        );
        assert!(unprivileged.remedy().unwrap().contains("sysctl vm.unprivileged_userfaultfd=1"));
        let filtered = refused(true, vec![Obstacle::Filter(Some(1)), Obstacle::Unprivileged]);
        let message = error_chain(&filtered).to_string();
        assert!(
            message.contains("any faults: a system-call filter (seccomp) answers"),
            "{message}"
        );
        assert!(message.ends_with("clearing at allocation still works"), "{message}");
        assert!(filtered.remedy().unwrap().contains("filter"));
    }

    #[test]
    fn message_of_a_missing_feature_names_it() {
        let missing = vec!["minor faults of hugetlb memory (Linux 5.13)"];
        let message = FaultError::Lacking { missing }.to_string();
        assert!(
            message.contains("lacks minor faults of hugetlb memory (Linux 5.13);"),
            "{message}"
        );
    }
}
