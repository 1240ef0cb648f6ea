//! What runs this program: kernel, processor, hypervisor, container.

use hugekit_machine::{Error, Root};

use super::{field, hypervisor};

/// Files that a container manager leaves, and whose.
const MARKERS: &[(&str, &str)] = &[
    ("/run/.containerenv", "podman"),
    ("/.dockerenv", "docker"),
    ("/run/host/container-manager", "a container manager"),
    ("/run/systemd/container", "a container manager"),
];

/// The kernel's fixed numbers for the namespaces that a machine boots into.
const FIRST_NAMESPACES: &[(&str, &str)] =
    &[("pid", "pid:[4026531836]"), ("uts", "uts:[4026531838]"), ("ipc", "ipc:[4026531839]")];

/// Names in a process's cgroup path that only container managers give.
const GROUPS: &[(&str, &str)] =
    &[("/docker", "docker"), ("/libpod", "podman"), ("/kubepods", "kubernetes"), ("/lxc", "lxc")];

/// The surroundings of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Release of the kernel, such as `6.18.1`.
    pub kernel: String,
    /// Name of the processor's model, or its identification where it has no name.
    pub cpu_model: Option<String>,
    /// The hypervisor, on a virtual machine.
    pub hypervisor: Option<String>,
    /// The container manager, in a container.
    pub container: Option<String>,
}

/// The first release that clears huge pages in ranges: one call for all of the pages between two looks at the
/// scheduler, where earlier ones make one for each base page.
const CLEARS_IN_RANGES: (u32, u32) = (7, 0);

/// The first release whose `fork(2)` copies the entries of a folio's pages by runs.
const FORKS_BY_RUNS: (u32, u32) = (6, 9);

impl Host {
    /// Returns true if the kernel clears huge pages in ranges, by its release; `None` if that
    /// begins with no number. A distribution may have taken the change into an earlier one.
    #[must_use]
    pub fn clears_in_ranges(&self) -> Option<bool> {
        Some(self.release()? >= CLEARS_IN_RANGES)
    }

    /// Returns true if `fork(2)` copies page tables by runs, under the same conditions.
    #[must_use]
    pub fn forks_by_runs(&self) -> Option<bool> {
        Some(self.release()? >= FORKS_BY_RUNS)
    }

    /// Returns the first two numbers of the release.
    fn release(&self) -> Option<(u32, u32)> {
        let is_dot = |c: char| !c.is_ascii_digit();
        let mut numbers = self.kernel.split(is_dot).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Reads the surroundings.
    ///
    /// # Errors
    /// The kernel's release cannot be read; whatever else is unreadable counts as absent.
    pub fn read(root: &Root) -> Result<Self, Error> {
        Ok(Self {
            kernel: root.read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpu_model: root.read("/proc/cpuinfo").ok().and_then(|text| cpu_model(&text)),
            hypervisor: hypervisor::read(root),
            container: container(root),
        })
    }
}

/// x86 has a name, a family and a model; ARM has numbers of maker and part.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let value = |key| field(cpuinfo, key).map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    if let Some(name) = value("model name") {
        // Clouds hide the model in the name, and the numbers tell it.
        return Some(match (value("cpu family"), value("model\t")) {
            (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
            _ => name.to_owned(),
        });
    }
    let (maker, part) = (value("CPU implementer")?, value("CPU part")?);
    Some(format!("implementer {maker}, part {part}"))
}

/// An image made for containers may be booted as a machine; its marker is there, and so are the namespaces
/// that only a machine starts with.
fn container(root: &Root) -> Option<String> {
    let first = |(name, link): &(&str, &str)| {
        root.link(format!("/proc/self/ns/{name}")).as_deref() == Some(*link)
    };
    if FIRST_NAMESPACES.iter().all(first) {
        return None;
    }
    let marked = MARKERS.iter().find(|(path, _)| root.exists(path));
    let groups = root.read("/proc/self/cgroup").unwrap_or_default();
    let grouped = || GROUPS.iter().find(|(mark, _)| groups.contains(mark));
    marked.or_else(grouped).map(|(_, manager)| (*manager).to_owned())
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    fn machine() -> Files {
        let machine = Files::new().unwrap();
        machine.file("/proc/sys/kernel/osrelease", "6.18.1");
        machine
    }

    #[test]
    fn kernels_clear_in_ranges_and_fork_by_runs_from_one_release_on() {
        let does = |release: &str| {
            let files = Files::new().unwrap();
            files.file("/proc/sys/kernel/osrelease", release);
            let host = Host::read(&Root::at(files.path())).unwrap();
            host.clears_in_ranges().zip(host.forks_by_runs())
        };
        assert_eq!(does("6.8.12"), Some((false, false)));
        assert_eq!(does("6.9-rc1"), Some((false, true)));
        assert_eq!(does("6.18.5-generic"), Some((false, true)));
        assert_eq!(does("6.19.0"), Some((false, true)));
        assert_eq!(does("7.0.0-rc1"), Some((true, true)));
        assert_eq!(does("7.0-custom"), Some((true, true)));
        assert_eq!(does("10.2.0"), Some((true, true)));
        assert_eq!(does("next"), None);
    }

    #[test]
    fn processors_by_name_or_number() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A: B\n").as_deref(), Some("A: B"));
        let amd = "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n";
        assert_eq!(cpu_model(amd).as_deref(), Some("AMD EPYC (family 26, model 2)"));
        let arm = "CPU implementer\t: 0x41\nCPU part\t: 0xd49\n";
        assert_eq!(cpu_model(arm).as_deref(), Some("implementer 0x41, part 0xd49"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }

    #[test]
    fn containers_by_marker_and_by_group() {
        let marked = machine();
        marked.file("/.dockerenv", "");
        assert_eq!(
            Host::read(&Root::at(marked.path())).unwrap().container.as_deref(),
            Some("docker")
        );
        let grouped = machine();
        grouped.file("/proc/self/cgroup", "0::/kubepods/burstable/pod1");
        assert_eq!(
            Host::read(&Root::at(grouped.path())).unwrap().container.as_deref(),
            Some("kubernetes")
        );
    }

    #[test]
    fn an_image_booted_as_a_machine_is_no_container() {
        let machine = machine();
        machine.file("/.dockerenv", "");
        for (name, link) in FIRST_NAMESPACES {
            machine.link(&format!("/proc/self/ns/{name}"), link);
        }
        assert_eq!(Host::read(&Root::at(machine.path())).unwrap().container, None);
    }

    #[test]
    fn an_empty_directory_is_an_error() {
        assert!(Host::read(&Root::at(Files::new().unwrap().path())).unwrap_err().is_not_found());
    }
}
