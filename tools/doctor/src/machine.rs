//! The machine, as lines and as the `machine` object of the JSON.

use hugekit::error_chain;
use hugekit_machine::process::{Process, Seccomp};
use serde::Serialize;

use crate::facts::Facts;
use crate::facts::host::Host;
use crate::line::{Line, Topic};

const TOPIC: Topic = Topic("machine");

/// Identification of the machine, for a reader who compares records; `None` is not known.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The architecture that this was compiled for.
    pub architecture: &'static str,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Model of the CPU.
    pub processor: Option<String>,
    /// The hypervisor, if the machine is virtual.
    pub hypervisor: Option<String>,
    /// The manager of the container, if this is one.
    pub container: Option<String>,
    /// CPUs that the kernel uses.
    pub online_cpus: Option<usize>,
    /// CPUs that this thread may run on.
    pub allowed_cpus: Option<usize>,
    /// NUMA nodes.
    pub nodes: Option<usize>,
    /// Memory of the machine.
    pub memory_bytes: Option<u64>,
    /// First-level data cache of a core.
    pub l1d_bytes: Option<usize>,
    /// Second-level cache of a core.
    pub l2_bytes: Option<usize>,
    /// Last-level cache.
    pub llc_bytes: Option<usize>,
    /// CPUs that share the last-level cache.
    pub llc_shared_by: Option<usize>,
}

impl From<&Facts> for Machine {
    fn from(facts: &Facts) -> Self {
        let host = facts.host.as_ref().ok();
        let topology = facts.topology.as_ref().ok();
        let caches = facts.caches.as_ref().ok();
        Self {
            architecture: std::env::consts::ARCH,
            kernel: host.map(|host| host.kernel.clone()),
            processor: host.and_then(|host| host.cpu_model.clone()),
            hypervisor: host.and_then(|host| host.hypervisor.clone()),
            container: host.and_then(|host| host.container.clone()),
            online_cpus: topology.map(|topology| topology.online.len()),
            allowed_cpus: facts.allowed.as_ref().ok().map(|allowed| allowed.cpus.len()),
            nodes: topology.map(|topology| topology.nodes.len()),
            memory_bytes: facts.memory.as_ref().ok().map(|memory| memory.total),
            l1d_bytes: caches.map(|caches| caches.l1d),
            l2_bytes: caches.map(|caches| caches.l2),
            llc_bytes: caches.map(|caches| caches.llc),
            llc_shared_by: caches.map(|caches| caches.llc_shared_by),
        }
    }
}

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    let mut lines = match &facts.host {
        Ok(host) => host_lines(host),
        Err(error) => vec![TOPIC.unknown("kernel", error_chain(error))],
    };
    lines.push(TOPIC.about("process", &facts.process, process_line));
    lines.extend(remedies_line(facts.is_root(), facts.container()));
    lines
}

fn host_lines(host: &Host) -> Vec<Line> {
    let kernel = format!("Linux {} on {}", host.kernel, std::env::consts::ARCH);
    vec![
        TOPIC.ok("kernel", kernel),
        clearing_line(host),
        match &host.cpu_model {
            Some(model) => TOPIC.ok("processor", model),
            None => TOPIC.unknown("processor", "/proc/cpuinfo has no name"),
        },
        match &host.hypervisor {
            Some(name) => {
                TOPIC.note("hypervisor", format!("{name}; first touch of memory is slow"))
            }
            None => TOPIC.ok("hypervisor", "none"),
        },
        match &host.container {
            Some(manager) => TOPIC.note("container", format!("of {manager}")),
            None => TOPIC.ok("container", "none"),
        },
    ]
}

/// Makes the line about how the kernel clears huge pages: every ratio against it depends on that.
fn clearing_line(host: &Host) -> Line {
    const NAME: &str = "huge pages cleared";
    match host.clears_in_ranges() {
        Some(true) => TOPIC.ok(NAME, "in ranges, as Linux does from 7.0 on"),
        Some(false) => {
            TOPIC.note(NAME, "page by page, as Linux did before 7.0, unless it was backported")
        }
        None => TOPIC.unknown(NAME, "the kernel release does not begin with a number"),
    }
}

fn process_line(process: &Process) -> Line {
    let user = match process.user {
        0 => "root".to_owned(),
        user => format!("user {user}"),
    };
    let capability = match process.may_trace() {
        true => ", with CAP_SYS_PTRACE",
        false => ", without CAP_SYS_PTRACE",
    };
    let namespace = if process.in_first_user_namespace { "" } else { ", in a user namespace" };
    let filter = match process.seccomp {
        Seccomp::Off => "",
        Seccomp::Strict => ", under strict seccomp",
        Seccomp::Filter => ", under a seccomp filter",
    };
    TOPIC.ok("process", format!("{user}{capability}{namespace}{filter}"))
}

/// Makes the line about where the commands of the report work, unless they work here.
fn remedies_line(is_root: bool, container: Option<&str>) -> Option<Line> {
    let place = match (is_root, container) {
        (true, None) => return None,
        (false, None) => "as root of this machine",
        (_, Some(_)) => "as root, on the machine that runs this container",
    };
    Some(TOPIC.note("remedies", format!("run them {place}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Verdict;

    #[test]
    fn the_kernel_s_way_of_clearing_is_a_line() {
        let line = |kernel: &str| {
            let host =
                Host { kernel: kernel.into(), cpu_model: None, hypervisor: None, container: None };
            clearing_line(&host)
        };
        assert!(line("7.0.1").value.starts_with("in ranges"));
        assert!(line("6.18.1").value.starts_with("page by page"));
        assert_eq!(line("x").verdict, Verdict::Unknown);
    }

    #[test]
    fn remedies_need_root_and_the_host() {
        assert_eq!(remedies_line(true, None), None);
        assert_eq!(remedies_line(false, None).unwrap().value, "run them as root of this machine");
        assert!(
            remedies_line(true, Some("podman")).unwrap().value.contains("that runs this container")
        );
    }

    #[test]
    fn a_process_is_described_by_what_decides_about_userfaultfd() {
        let process = Process {
            user: 1000,
            capabilities: 0,
            seccomp: Seccomp::Filter,
            in_first_user_namespace: true,
            thp_allowed: true,
        };
        let expected = "user 1000, without CAP_SYS_PTRACE, under a seccomp filter";
        assert_eq!(process_line(&process).value, expected);
    }
}
