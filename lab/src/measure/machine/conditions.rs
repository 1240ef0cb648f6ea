//! Settings of this machine that bear on every figure, as far as it shows them. Most virtual machines show none.

use crate::record::published::Conditions;
use hugekit_machine::{Root, Topology};

/// A workload's conditions with those of this machine.
pub fn here(workload: Conditions) -> Conditions {
    let root = Root::default();
    let node = (nodes(&root) == Some(1)).then(|| "local".to_owned());
    Conditions { node, turbo: turbo(&root), governor: governor(&root), ..workload }
}

/// Nodes of the memory.
pub(super) fn nodes(root: &Root) -> Option<usize> {
    Some(Topology::read(root).ok()?.nodes.len())
}

/// `on` if CPUs may exceed their nominal frequency, or `off`.
pub(super) fn turbo(root: &Root) -> Option<String> {
    let is = |path: &str, on: &str| Some(word(root, path)? == on);
    let by_driver = || is("/sys/devices/system/cpu/cpufreq/boost", "1");
    let on = is("/sys/devices/system/cpu/intel_pstate/no_turbo", "0").or_else(by_driver)?;
    Some(if on { "on" } else { "off" }.to_owned())
}

/// The policy that chooses the first CPU's frequency.
pub(super) fn governor(root: &Root) -> Option<String> {
    word(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

fn word(root: &Root, path: &str) -> Option<String> {
    Some(root.read(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    #[test]
    fn turbo_is_on_or_off_or_hidden_by_either_driver() {
        let (pstate, boost) = ("intel_pstate/no_turbo", "cpufreq/boost");
        for (file, value, expected) in [
            (pstate, "0\n", "on"),
            (pstate, "1\n", "off"),
            (boost, "1\n", "on"),
            (boost, "0\n", "off"),
        ] {
            let files = Files::new().unwrap();
            files.file(format!("/sys/devices/system/cpu/{file}"), value);
            assert_eq!(turbo(&Root::at(files.path())).as_deref(), Some(expected), "{file}");
        }
        let none = Files::new().unwrap();
        let root = Root::at(none.path());
        assert_eq!((turbo(&root), governor(&root), nodes(&root)), (None, None, None));
        none.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
        assert_eq!(governor(&root).as_deref(), Some("performance"));
    }
}
