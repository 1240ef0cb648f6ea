//! The permitted uses of userfaultfd(2), and the obstacles to other uses.
//!
//! The kernel permits the whole use (including faults in system calls and of KVM) to three kinds of
//! processes: those with `CAP_SYS_PTRACE`, all processes if `vm.unprivileged_userfaultfd` is 1, and
//! those that may open `/dev/userfaultfd`. Faults of user code alone need no permission. A
//! system-call filter may refuse everything except the device, with the same EPERM or ENOSYS as the
//! kernel. So the reason is derived from the answer that the kernel *would* have given.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::process::{Process, Seccomp};
use super::{Error, Root};

const DEVICE: &str = "/dev/userfaultfd";

/// The uses of userfaultfd that are permitted to this process, and the obstacles.
#[derive(Debug)]
pub struct Userfaultfd {
    /// The highest permitted use.
    pub uses: Uses,
    /// The kernel's features; empty if no descriptor could be opened to read them.
    pub features: Features,
    /// The obstacles to the whole use of the system call, in the order in which to remove them.
    pub obstacles: Vec<Obstacle>,
    /// The result of opening the device node.
    pub device: Result<(), Error>,
}

/// The page faults that this process may handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// All faults, by the system call.
    Whole,
    /// All faults, but only by `/dev/userfaultfd`.
    WholeByDevice,
    /// Faults of user code. A system call that accesses such a page fails with EFAULT.
    UserModeOnly,
    /// No faults.
    None,
}

/// An obstacle to the whole use of the system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The kernel was built without userfaultfd.
    NotInKernel,
    /// A system-call filter refuses the call, with this error number or with a signal.
    Filter(Option<i32>),
    /// The process does not have `CAP_SYS_PTRACE`, and `vm.unprivileged_userfaultfd` is 0.
    Unprivileged,
    /// The process has `CAP_SYS_PTRACE`, but only in the user namespace of a container, where it
    /// does not count.
    UserNamespace,
    /// The call is refused with this error number. No file shows the reason, which may be a
    /// security module.
    Unexplained(i32),
}

/// The kernel's features, as the bits of `UFFD_FEATURE_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Write protection of anonymous memory (Linux 5.7).
    pub const WRITE_PROTECT: Self = Self(1 << 0);
    /// Missing pages of hugetlb memory (Linux 4.11).
    pub const MISSING_HUGETLBFS: Self = Self(1 << 4);
    /// Missing pages of shared memory (Linux 4.11).
    pub const MISSING_SHMEM: Self = Self(1 << 5);
    /// SIGBUS in the faulting thread instead of an event (Linux 4.14).
    pub const SIGBUS: Self = Self(1 << 7);
    /// The ID of the faulting thread (Linux 4.14).
    pub const THREAD_ID: Self = Self(1 << 8);
    /// Pages that are in the file and not mapped, for hugetlb (Linux 5.13).
    pub const MINOR_HUGETLBFS: Self = Self(1 << 9);
    /// Pages that are in the file and not mapped, for shared memory (Linux 5.14).
    pub const MINOR_SHMEM: Self = Self(1 << 10);
    /// The exact address of a fault (Linux 5.18).
    pub const EXACT_ADDRESS: Self = Self(1 << 11);
    /// Write protection of hugetlb and shared memory (Linux 5.19).
    pub const WRITE_PROTECT_SHARED: Self = Self(1 << 12);
    /// Write protection of untouched pages (Linux 6.4).
    pub const WRITE_PROTECT_UNPOPULATED: Self = Self(1 << 13);
    /// Write protection that the kernel itself lifts, and that is read from the page table (Linux
    /// 6.7).
    pub const WRITE_PROTECT_ASYNC: Self = Self(1 << 15);
    /// Moving pages (Linux 6.8).
    pub const MOVE: Self = Self(1 << 16);

    /// Returns true if the set contains all of `wanted`.
    pub fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Userfaultfd {
    /// Tries each way to open a userfaultfd, reads the features of the first one that opens, and
    /// closes all of them. System calls go to the running kernel, whatever `root` is. If there is a
    /// system-call filter, a forked child tries first, because the answer may be a signal.
    ///
    /// # Errors
    /// [`Error`] if the privileges of the process cannot be read. A refusal is a fact, not an
    /// error.
    pub fn read(root: &Root) -> Result<Self, Error> {
        let rules = Rules { process: Process::read(root)?, unprivileged: unprivileged(root).ok() };
        let fatal = rules.filtered() && !hugekit_sys::userfaultfd::may_be_asked_for();
        let ask = |open: fn() -> rustix::io::Result<OwnedFd>| {
            if fatal { Err(Errno::PERM) } else { open() }
        };
        let whole = ask(hugekit_sys::userfaultfd::new_whole);
        let user_mode = ask(hugekit_sys::userfaultfd::new_user_mode_only);
        let device = hugekit_sys::userfaultfd::new_from_device(&root.path(DEVICE));
        let outcome = Outcome {
            fatal,
            whole: errno_of(&whole),
            user_mode: errno_of(&user_mode),
            device: errno_of(&device),
        };
        Ok(Self {
            uses: outcome.uses(),
            features: features([&whole, &device, &user_mode]),
            obstacles: outcome.obstacles(&rules),
            device: device.map(drop).map_err(|errno| device_error(root, errno)),
        })
    }
}

/// Returns true if `vm.unprivileged_userfaultfd` permits every process to handle all faults (Linux
/// 5.2).
///
/// # Errors
/// [`Error`] if the file cannot be read or understood.
pub fn unprivileged(root: &Root) -> Result<bool, Error> {
    root.read_number("/proc/sys/vm/unprivileged_userfaultfd").map(|number| number != 0)
}

fn errno_of(attempt: &Result<OwnedFd, Errno>) -> Option<Errno> {
    attempt.as_ref().err().copied()
}

fn features(attempts: [&Result<OwnedFd, Errno>; 3]) -> Features {
    let opened = attempts.into_iter().flatten().next();
    opened.and_then(|fd| hugekit_sys::userfaultfd::features(fd).ok()).map_or(Features(0), Features)
}

fn device_error(root: &Root, errno: Errno) -> Error {
    Error::Unreadable { path: root.path(DEVICE), source: io::Error::from(errno) }
}

/// The error of each attempt; `None` for success.
struct Outcome {
    /// True if the system call raises a signal, so it was not tried.
    fatal: bool,
    whole: Option<Errno>,
    user_mode: Option<Errno>,
    device: Option<Errno>,
}

/// The facts on which the kernel's decision depends.
struct Rules {
    process: Process,
    /// `None` if the kernel has no such rule: before Linux 5.2, or without userfaultfd.
    unprivileged: Option<bool>,
}

impl Outcome {
    fn uses(&self) -> Uses {
        match (self.whole, self.device, self.user_mode) {
            (None, _, _) => Uses::Whole,
            (_, None, _) => Uses::WholeByDevice,
            (_, _, None) => Uses::UserModeOnly,
            _ => Uses::None,
        }
    }

    fn obstacles(&self, rules: &Rules) -> Vec<Obstacle> {
        let Some(errno) = self.whole else { return Vec::new() };
        let number = errno.raw_os_error();
        let answer = (!self.fatal).then_some(number);
        let denied = rules.denies();
        match errno {
            Errno::NOSYS if !self.kernel_has_it(rules) => vec![Obstacle::NotInKernel],
            // The kernel lets every process serve faults of user code, so a refusal of that came before it.
            _ if rules.filtered() && (denied.is_none() || self.user_mode == self.whole) => {
                [Some(Obstacle::Filter(answer)), denied].into_iter().flatten().collect()
            }
            Errno::PERM => vec![denied.unwrap_or(Obstacle::Unexplained(number))],
            _ => vec![Obstacle::Unexplained(number)],
        }
    }

    /// Returns true if the kernel has userfaultfd. If other traces of it exist, ENOSYS does not
    /// come from the kernel.
    fn kernel_has_it(&self, rules: &Rules) -> bool {
        rules.unprivileged.is_some() || self.device != Some(Errno::NOENT)
    }
}

impl Rules {
    fn filtered(&self) -> bool {
        self.process.seccomp == Seccomp::Filter
    }

    /// Returns the reason why the kernel itself would refuse the whole use; `None` if it would not.
    fn denies(&self) -> Option<Obstacle> {
        if self.unprivileged == Some(true) || self.process.may_trace() {
            return None;
        }
        let elsewhere = Process { in_first_user_namespace: true, ..self.process.clone() };
        Some(if elsewhere.may_trace() { Obstacle::UserNamespace } else { Obstacle::Unprivileged })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTRACE: u64 = 1 << 19;

    fn rules(capabilities: u64, seccomp: Seccomp, unprivileged: Option<bool>) -> Rules {
        let process = Process {
            user: 0,
            capabilities,
            seccomp,
            in_first_user_namespace: true,
            thp_allowed: true,
        };
        Rules { process, unprivileged }
    }

    fn outcome(whole: Option<Errno>, user_mode: Option<Errno>, device: Option<Errno>) -> Outcome {
        Outcome { fatal: false, whole, user_mode, device }
    }

    fn raw(errno: Errno) -> i32 {
        errno.raw_os_error()
    }

    #[test]
    fn access_by_root_has_no_obstacle() {
        let outcome = outcome(None, None, None);
        assert_eq!(outcome.uses(), Uses::Whole);
        assert_eq!(outcome.obstacles(&rules(PTRACE, Seccomp::Off, Some(false))), []);
    }

    #[test]
    fn access_by_an_ordinary_user_is_to_faults_of_user_code() {
        let outcome = outcome(Some(Errno::PERM), None, Some(Errno::ACCESS));
        assert_eq!(outcome.uses(), Uses::UserModeOnly);
        let rules = rules(0, Seccomp::Off, Some(false));
        assert_eq!(outcome.obstacles(&rules), [Obstacle::Unprivileged]);
    }

    #[test]
    fn access_by_the_device_is_whole() {
        let outcome = outcome(Some(Errno::PERM), None, None);
        assert_eq!(outcome.uses(), Uses::WholeByDevice);
    }

    #[test]
    fn access_under_a_filter_is_told_from_a_missing_privilege() {
        let refused = outcome(Some(Errno::PERM), Some(Errno::PERM), Some(Errno::ACCESS));
        let filter = Obstacle::Filter(Some(raw(Errno::PERM)));
        let with_capability = rules(PTRACE, Seccomp::Filter, Some(false));
        assert_eq!(refused.obstacles(&with_capability), [filter]);
        let without = rules(0, Seccomp::Filter, Some(false));
        assert_eq!(refused.obstacles(&without), [filter, Obstacle::Unprivileged]);
        assert_eq!(refused.uses(), Uses::None);
    }

    #[test]
    fn access_under_a_filter_that_permits_does_not_blame_it() {
        let outcome = outcome(Some(Errno::PERM), None, Some(Errno::ACCESS));
        let rules = rules(0, Seccomp::Filter, Some(false));
        assert_eq!(outcome.obstacles(&rules), [Obstacle::Unprivileged]);
    }

    #[test]
    fn access_under_a_filter_that_pretends_is_told() {
        let hidden = outcome(Some(Errno::NOSYS), Some(Errno::NOSYS), Some(Errno::ACCESS));
        let rules = rules(PTRACE, Seccomp::Filter, Some(false));
        assert_eq!(hidden.obstacles(&rules), [Obstacle::Filter(Some(raw(Errno::NOSYS)))]);
    }

    #[test]
    fn access_under_a_filter_that_signals_is_told() {
        let mut refused = outcome(Some(Errno::PERM), Some(Errno::PERM), Some(Errno::ACCESS));
        refused.fatal = true;
        let rules = rules(PTRACE, Seccomp::Filter, Some(false));
        assert_eq!(refused.obstacles(&rules), [Obstacle::Filter(None)]);
    }

    #[test]
    fn access_on_a_kernel_without_it_is_none() {
        let absent = outcome(Some(Errno::NOSYS), Some(Errno::NOSYS), Some(Errno::NOENT));
        for seccomp in [Seccomp::Off, Seccomp::Filter] {
            let rules = rules(PTRACE, seccomp, None);
            assert_eq!(absent.obstacles(&rules), [Obstacle::NotInKernel]);
        }
    }

    #[test]
    fn access_by_a_capability_in_a_container_does_not_count() {
        let mut rules = rules(PTRACE, Seccomp::Off, Some(false));
        rules.process.in_first_user_namespace = false;
        let outcome = outcome(Some(Errno::PERM), None, Some(Errno::NOENT));
        assert_eq!(outcome.obstacles(&rules), [Obstacle::UserNamespace]);
    }

    #[test]
    fn access_refused_without_a_filter_is_left_unexplained() {
        let refused = outcome(Some(Errno::PERM), None, Some(Errno::NOENT));
        let rules = rules(PTRACE, Seccomp::Off, Some(false));
        assert_eq!(refused.obstacles(&rules), [Obstacle::Unexplained(raw(Errno::PERM))]);
        let exhausted = outcome(Some(Errno::MFILE), Some(Errno::MFILE), Some(Errno::MFILE));
        assert_eq!(exhausted.obstacles(&rules), [Obstacle::Unexplained(raw(Errno::MFILE))]);
    }

    #[test]
    fn features_joined_are_sets() {
        let both = Features::SIGBUS.with(Features::MOVE);
        assert!(both.contains(Features::MOVE) && !Features::MOVE.contains(both));
    }
}
