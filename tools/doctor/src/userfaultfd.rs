//! userfaultfd: what forks, snapshots and dirty memory rest on.

use hugekit::error_chain;
use hugekit_machine::Error;
use hugekit_machine::userfaultfd::{Features, Obstacle, Userfaultfd, Uses};

use crate::facts::Facts;
use crate::line::{Line, Topic, Verdict};

const TOPIC: Topic = Topic("userfaultfd");

/// The use that hugekit has for some features.
struct Feature {
    name: &'static str,
    wanted: Features,
    /// The release that has all of them.
    since: &'static str,
    /// The verdict without it.
    without: Verdict,
    instead: &'static str,
}

const FEATURES: &[Feature] = &[
    Feature {
        name: "in-place faults",
        wanted: Features::SIGBUS,
        since: "4.14",
        without: Verdict::Missing,
        instead: "faults cannot be handled in the faulting thread",
    },
    Feature {
        name: "minor faults",
        wanted: Features::MINOR_HUGETLBFS.with(Features::MINOR_SHMEM),
        since: "5.14",
        without: Verdict::Missing,
        instead: "regions are cleared at allocation, and memory cannot be snapshotted",
    },
    Feature {
        name: "write protection",
        wanted: Features::WRITE_PROTECT.with(Features::WRITE_PROTECT_SHARED),
        since: "5.19",
        without: Verdict::Missing,
        instead: "regions cannot be forked or snapshotted",
    },
    Feature {
        name: "untouched pages",
        wanted: Features::WRITE_PROTECT_UNPOPULATED,
        since: "6.4",
        without: Verdict::Limited,
        instead: "forks copy pages that they read; snapshots map zeroes for untouched memory",
    },
    Feature {
        name: "noted writes",
        wanted: Features::WRITE_PROTECT_ASYNC,
        since: "6.7",
        without: Verdict::Limited,
        instead: "a snapshot that ends inside a page makes writers wait; in user mode, it fails",
    },
];

/// The process that asks, as far as remedies depend on it.
#[derive(Clone, Copy)]
struct Asker<'a> {
    user: u32,
    container: Option<&'a str>,
}

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    let asker = Asker { user: facts.user(), container: facts.container() };
    let sysctl = &facts.unprivileged_userfaultfd;
    match &facts.userfaultfd {
        Ok(state) => state_lines(state, sysctl, asker),
        Err(error) => vec![TOPIC.unknown("uses", error_chain(error)), sysctl_line(sysctl, &[])],
    }
}

fn state_lines(state: &Userfaultfd, sysctl: &Result<bool, Error>, asker: Asker) -> Vec<Line> {
    let mut lines = vec![
        uses_line(state, asker),
        system_call_line(state, asker),
        device_line(&state.device, asker),
        sysctl_line(sysctl, &state.obstacles),
    ];
    lines.extend(FEATURES.iter().map(|feature| feature_line(feature, state)));
    lines
}

fn uses_line(state: &Userfaultfd, asker: Asker) -> Line {
    let line = match state.uses {
        Uses::Whole => return TOPIC.ok("uses", "whole: faults of user code, system calls and KVM"),
        Uses::WholeByDevice => return TOPIC.ok("uses", "whole, through /dev/userfaultfd"),
        Uses::UserModeOnly => TOPIC.limited(
            "uses",
            "user mode only: system calls that write to such memory fail, and KVM cannot use it; Python \
             copies memory at once instead",
        ),
        Uses::None => TOPIC.missing("uses", "none: no forks, no snapshots"),
    };
    match state.obstacles.first() {
        Some(obstacle) => line.remedy(way_to_whole(*obstacle, &state.device, asker)),
        None => line,
    }
}

/// Returns the way that grants least: the device to one user, which filters let through and the
/// kernel asks no capability for.
fn way_to_whole(obstacle: Obstacle, device: &Result<(), Error>, asker: Asker) -> String {
    match device {
        Err(error) if error.is_permission_denied() => grant_device(asker),
        _ => obstacle_remedy(obstacle, asker).to_owned(),
    }
}

fn grant_device(asker: Asker) -> String {
    format!("setfacl -m u:{}:rw /dev/userfaultfd", asker.user)
}

fn obstacle_remedy(obstacle: Obstacle, asker: Asker) -> &'static str {
    match obstacle {
        Obstacle::NotInKernel => "needs a kernel with CONFIG_USERFAULTFD=y",
        Obstacle::Filter(_) if asker.container.is_some() => {
            "start the container with --security-opt seccomp=FILE that allows userfaultfd"
        }
        Obstacle::Filter(_) => {
            "allow userfaultfd in the filter (systemd: SystemCallFilter=userfaultfd)"
        }
        Obstacle::Unprivileged => "setcap cap_sys_ptrace+ep PROGRAM",
        Obstacle::UserNamespace => "sysctl vm.unprivileged_userfaultfd=1",
        Obstacle::Unexplained(_) => "look for a security module's denial: dmesg | grep -i denied",
    }
}

/// A refusal costs nothing where the device gives the same.
fn system_call_line(state: &Userfaultfd, asker: Asker) -> Line {
    let Some(first) = state.obstacles.first() else { return TOPIC.ok("system call", "allowed") };
    let reasons: Vec<String> = state.obstacles.iter().copied().map(reason).collect();
    let value = reasons.join("; after that ");
    match state.uses {
        Uses::WholeByDevice => TOPIC.note("system call", value),
        _ => TOPIC.limited("system call", value),
    }
    .remedy(obstacle_remedy(*first, asker))
}

fn reason(obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::NotInKernel => "ENOSYS: the kernel was built without it".to_owned(),
        Obstacle::Filter(Some(number)) => {
            format!("a seccomp filter refuses it: {}", os_error(number))
        }
        Obstacle::Filter(None) => "a seccomp filter kills every process that calls it".to_owned(),
        Obstacle::Unprivileged => {
            "no CAP_SYS_PTRACE, and vm.unprivileged_userfaultfd is 0".to_owned()
        }
        Obstacle::UserNamespace => {
            "CAP_SYS_PTRACE does not count in a container's user namespace".to_owned()
        }
        Obstacle::Unexplained(number) => {
            format!("refused for no visible reason: {}", os_error(number))
        }
    }
}

fn os_error(number: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

fn device_line(device: &Result<(), Error>, asker: Asker) -> Line {
    match device {
        Ok(()) => TOPIC.ok("device", "/dev/userfaultfd opens"),
        Err(error) if error.is_not_found() => {
            TOPIC.limited("device", error_chain(error).to_string()).remedy(match asker.container {
                Some(_) => "start the container with --device /dev/userfaultfd",
                None => "needs Linux 6.1 or later",
            })
        }
        Err(error) if error.is_permission_denied() => {
            TOPIC.limited("device", error_chain(error).to_string()).remedy(grant_device(asker))
        }
        Err(error) => TOPIC.unknown("device", error_chain(error)),
    }
}

/// The safer 0 is only a fault where changing it would help.
fn sysctl_line(sysctl: &Result<bool, Error>, obstacles: &[Obstacle]) -> Line {
    let decides = matches!(obstacles, [Obstacle::Unprivileged | Obstacle::UserNamespace, ..]);
    TOPIC.about("sysctl", sysctl, |unprivileged| match unprivileged {
        true => {
            TOPIC.ok("sysctl", "vm.unprivileged_userfaultfd = 1: every process has the whole use")
        }
        false if decides => TOPIC
            .note("sysctl", "vm.unprivileged_userfaultfd = 0")
            .remedy("sysctl vm.unprivileged_userfaultfd=1"),
        false => TOPIC.ok("sysctl", "vm.unprivileged_userfaultfd = 0"),
    })
}

fn feature_line(feature: &Feature, state: &Userfaultfd) -> Line {
    let Feature { name, wanted, since, without, instead } = feature;
    let line = match (state.features.contains(*wanted), state.uses) {
        (true, _) => return TOPIC.ok(*name, "yes"),
        (false, Uses::None) => {
            return TOPIC.unknown(*name, "cannot be read: no userfaultfd opens");
        }
        (false, _) => TOPIC.missing(*name, format!("no: {instead}")),
    };
    Line { verdict: *without, ..line }.remedy(format!("needs Linux {since} or later"))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    const EPERM: i32 = 1;
    const USER: Asker = Asker { user: 1000, container: None };

    fn device(kind: ErrorKind) -> Result<(), Error> {
        Err(Error::Unreadable { path: "/dev/userfaultfd".into(), source: kind.into() })
    }

    fn state(uses: Uses, obstacles: &[Obstacle], device: Result<(), Error>) -> Userfaultfd {
        Userfaultfd { uses, features: Features(0), obstacles: obstacles.to_vec(), device }
    }

    #[test]
    fn the_device_is_granted_before_the_capability() {
        let denied = device(ErrorKind::PermissionDenied);
        let line = uses_line(&state(Uses::UserModeOnly, &[Obstacle::Unprivileged], denied), USER);
        assert_eq!(line.verdict, Verdict::Limited);
        assert_eq!(line.remedy.unwrap(), "setfacl -m u:1000:rw /dev/userfaultfd");
        let absent = device(ErrorKind::NotFound);
        let line = uses_line(&state(Uses::UserModeOnly, &[Obstacle::Unprivileged], absent), USER);
        assert_eq!(line.remedy.unwrap(), "setcap cap_sys_ptrace+ep PROGRAM");
    }

    #[test]
    fn a_filter_is_named_with_what_lies_behind_it() {
        let obstacles = [Obstacle::Filter(Some(EPERM)), Obstacle::Unprivileged];
        let line =
            system_call_line(&state(Uses::None, &obstacles, device(ErrorKind::NotFound)), USER);
        assert!(line.value.starts_with("a seccomp filter refuses it: Operation not permitted"));
        assert!(line.value.contains("; after that no CAP_SYS_PTRACE"));
        assert!(line.remedy.unwrap().contains("SystemCallFilter="));
        let docker = Asker { container: Some("docker"), ..USER };
        assert!(obstacle_remedy(obstacles[0], docker).contains("seccomp=FILE"));
    }

    #[test]
    fn a_device_is_absent_for_a_container_or_for_all() {
        let remedy = |container| {
            let asker = Asker { container, ..USER };
            device_line(&device(ErrorKind::NotFound), asker).remedy.unwrap()
        };
        assert!(remedy(Some("docker")).contains("--device"));
        assert!(remedy(None).contains("Linux 6.1"));
    }

    #[test]
    fn the_safe_sysctl_is_no_fault() {
        assert_eq!(sysctl_line(&Ok(false), &[]).verdict, Verdict::Ok);
        assert!(sysctl_line(&Ok(false), &[Obstacle::Unprivileged]).remedy.is_some());
        let filtered = [Obstacle::Filter(None), Obstacle::Unprivileged];
        assert_eq!(sysctl_line(&Ok(false), &filtered).remedy, None);
    }

    #[test]
    fn features_without_an_answer_are_unknown() {
        let lines = state_lines(
            &state(Uses::None, &[Obstacle::NotInKernel], device(ErrorKind::NotFound)),
            &Ok(false),
            USER,
        );
        assert!(lines[4..].iter().all(|line| line.verdict == Verdict::Unknown));
    }

    #[test]
    fn a_feature_that_is_missing_says_what_is_done_instead_and_since_when_it_is_not() {
        let of_6_1 = |uses| Userfaultfd {
            features: FEATURES[..3].iter().fold(Features(0), |all, one| all.with(one.wanted)),
            ..state(uses, &[], Ok(()))
        };
        let lines = state_lines(&of_6_1(Uses::Whole), &Ok(false), USER);
        let found: Vec<_> = lines[4..].iter().map(|line| line.verdict).collect();
        let (ok, limited) = (Verdict::Ok, Verdict::Limited);
        assert_eq!(found, [ok, ok, ok, limited, limited]);
        assert!(lines[7].value.contains("forks copy pages that they read"));
        assert_eq!(lines[8].remedy.as_deref(), Some("needs Linux 6.7 or later"));
        let none = Userfaultfd { features: Features(0), ..of_6_1(Uses::Whole) };
        let lines = state_lines(&none, &Ok(false), USER);
        assert!(lines[4..7].iter().all(|line| line.verdict == Verdict::Missing));
    }
}
