//! Why faults cannot be served by us.

use std::fmt;
use std::io;

use hugekit_machine::userfaultfd::Obstacle;
use hugekit_sys::ErrorKind;

/// Why the faults of a region cannot be served, so that nothing of it can be cleared at the first access.
/// Memory that is cleared at allocation ([`Clearing::OnAllocation`](super::Clearing::OnAllocation)) needs none of
/// this.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// This process may not use userfaultfd(2), or not for the faults of system calls and of KVM.
    #[error(
        "no permission to serve {}: {}; {device}; {} still works",
        if *.user_mode { "any faults" } else { "the faults of system calls and of KVM" },
        Obstacles(obstacles),
        if *.user_mode { "clearing at allocation" } else { "fault_mode in place, or clearing at allocation," }
    )]
    NotPermitted {
        /// Whether faults of user code are refused as well.
        user_mode: bool,
        /// What keeps the system call from it, in the order to remove it.
        obstacles: Vec<Obstacle>,
        /// The device node, and what it answered.
        device: String,
    },
    /// The kernel lacks a feature of userfaultfd(2) that this needs.
    #[error("this kernel's userfaultfd lacks {}; clearing at allocation still works", missing.join(", "))]
    Lacking {
        /// Names of the features, and the version of Linux that brought each.
        missing: Vec<&'static str>,
    },
    /// Huge pages of the memory could be mapped past whatever serves its faults (`MADV_COLLAPSE`, Linux 6.1, by
    /// this process or by another one), and this kernel cannot be kept from it: it watches no writes to shared
    /// memory (Linux 5.19, on some architectures later).
    #[error(
        "this kernel's MADV_COLLAPSE shows memory that is not clear yet, because its userfaultfd watches no \
         writes to shared memory; clearing at allocation still works"
    )]
    Collapsible,
    /// The program runs on Valgrind, under which it would hang, and no signal end it, or go on with wrong registers:
    /// Valgrind neither runs a thread while another one waits for a fault, nor returns to the instruction that faulted.
    #[error("faults cannot be served on Valgrind; clearing at allocation still works")]
    OnValgrind,
    /// Another handler has replaced hugekit's handler of SIGBUS, or of SIGSEGV: faults in regions that are handled
    /// in place end in that handler, or end the process.
    #[error(
        "hugekit's handler of a signal was replaced after it was installed, and putting it back could make \
         the two call each other for ever"
    )]
    HandlerReplaced,
    /// The calling thread has SIGBUS or SIGSEGV blocked: the kernel kills a process that faults in such memory then.
    #[error(
        "the calling thread blocks SIGBUS or SIGSEGV: a fault that is handled in place would end the process"
    )]
    Blocked,
    /// [`FaultMode::Threaded`](crate::fault::FaultMode::Threaded) with no threads.
    #[error("faults cannot be served by no threads")]
    NoThreads,
    /// [`FaultMode::Threaded`](crate::fault::FaultMode::Threaded) with more threads than
    /// [`MOST_THREADS`](crate::fault::MOST_THREADS).
    #[error("faults cannot be served by {asked} threads, but by {most} at most")]
    TooManyThreads {
        /// Threads asked for.
        asked: usize,
        /// Threads that there may be.
        most: usize,
    },
    /// A handler thread could not be started.
    #[error("no thread to serve faults can be started")]
    NotStarted(#[source] io::Error),
    /// Any other refusal of the kernel.
    #[error("{call} failed")]
    Kernel {
        /// What was asked.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

impl FaultError {
    /// What an administrator or the caller can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NotPermitted { obstacles, .. } => match obstacles.first()? {
                Obstacle::Unprivileged | Obstacle::UserNamespace => {
                    "sysctl vm.unprivileged_userfaultfd=1, or let this user open /dev/userfaultfd, or \
                     grant CAP_SYS_PTRACE"
                }
                Obstacle::Filter(_) => {
                    "allow userfaultfd in the system-call filter, or /dev/userfaultfd in its place"
                }
                _ => return None,
            },
            Self::HandlerReplaced => {
                "have the other handler installed before the first region that is handled in place: \
                 hugekit passes on what is not its own"
            }
            Self::TooManyThreads { .. } => "ask for one thread: more are seldom faster",
            Self::Blocked => "unblock SIGBUS and SIGSEGV in every thread that touches the region",
            Self::NotStarted(_) => "raise the limit: ulimit -u",
            _ => return None,
        };
        Some(remedy.to_owned())
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
                f.write_str("a system-call filter (seccomp) ends the process that asks")
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
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotPermitted { .. } => ErrorKind::NotPermitted,
            Self::Lacking { .. } | Self::Collapsible | Self::OnValgrind => ErrorKind::Unsupported,
            Self::HandlerReplaced | Self::Blocked => ErrorKind::Conflict,
            Self::NoThreads | Self::TooManyThreads { .. } => ErrorKind::Invalid,
            Self::NotStarted(source) => source.kind().into(),
            Self::Kernel { source, .. } => source.kind().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_refusal_names_it_and_what_still_works() {
        let refused = |user_mode, obstacles| FaultError::NotPermitted {
            user_mode,
            obstacles,
            device: "/dev/userfaultfd: Permission denied".to_owned(),
        };
        let unprivileged = refused(false, vec![Obstacle::Unprivileged]);
        assert_eq!(
            unprivileged.to_string(),
            "no permission to serve the faults of system calls and of KVM: \
             vm.unprivileged_userfaultfd is 0 and the process holds no CAP_SYS_PTRACE; \
             /dev/userfaultfd: Permission denied; fault_mode in place, or clearing at allocation, still works"
        );
        assert!(unprivileged.remedy().unwrap().contains("sysctl vm.unprivileged_userfaultfd=1"));
        let filtered = refused(true, vec![Obstacle::Filter(Some(1)), Obstacle::Unprivileged]);
        let message = filtered.to_string();
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
