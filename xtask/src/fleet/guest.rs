//! The table of guests, fleet.toml: what each is made of, how its kernel is set, and what runs in it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::nested;
use crate::fetch::Package;

/// The table of guests, `fleet.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FleetTable {
    /// Kernels, the oldest first.
    pub(super) compared: Vec<String>,
    pub(super) kernels: BTreeMap<String, Kernel>,
    runs: BTreeMap<String, Vec<Run>>,
    pub(super) guest: Vec<Guest>,
}

/// A kernel's package: the one that depends on the newest of its suite.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kernel {
    pub(super) release: String,
    suite: String,
    package: String,
    /// True for aarch64, false for x86-64.
    #[serde(default)]
    pub(super) arm: bool,
}

/// Whose programs run, and what they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rights {
    Root,
    /// A user to whom `vm.unprivileged_userfaultfd = 0` leaves faults of user mode.
    User,
    /// Root behind a system-call filter that refuses `userfaultfd(2)`, as those of containers do, and without
    /// `/dev/userfaultfd`.
    NoUserfaultfd,
}

/// Something that the kernel does beside all that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Beside {
    /// Compaction of all memory, again and again.
    Compaction,
    /// Pages moved away as a memory controller that counts errors has them moved.
    SoftOffline,
    /// Equal pages of any program's private memory merged (KSM).
    Merging,
}

/// A guest: a row of the table, which describes the fields in its `[default]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Guest {
    pub(super) name: String,
    /// Its difference from the default guest.
    pub(super) about: String,
    #[serde(rename = "kernel")]
    pub(super) kernel_name: String,
    #[serde(skip)]
    pub(super) kernel: Kernel,
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) mib: usize,
    pub(super) nodes: usize,
    pub(super) reserved_2m: usize,
    pub(super) reserved_1g: usize,
    pub(super) boot_options: String,
    pub(super) thp: String,
    pub(super) shmem_thp: String,
    pub(super) swap_mib: usize,
    pub(super) rights: Rights,
    pub(super) settings: Vec<[String; 2]>,
    pub(super) beside: Vec<Beside>,
    pub(super) nested: bool,
    pub(super) file_systems: bool,
    pub(super) counters: Vec<String>,
    #[serde(rename = "runs")]
    pub(super) runs_name: String,
    #[serde(skip)]
    pub(super) runs: Vec<Run>,
    pub(super) left_out: Vec<String>,
}

/// A command in a guest: a program of this workspace, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(super) struct Run {
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
}

impl FleetTable {
    pub(super) fn read() -> Result<Self> {
        let mut table: toml::Table =
            toml::from_str(include_str!("../../fleet.toml")).context("fleet.toml")?;
        let default = table.remove("default");
        for guest in
            table.get_mut("guest").and_then(toml::Value::as_array_mut).into_iter().flatten()
        {
            let guest = guest.as_table_mut().context("a guest is a table")?;
            for (field, value) in default.iter().filter_map(toml::Value::as_table).flatten() {
                guest.entry(field).or_insert_with(|| value.clone());
            }
        }
        let mut table: Self = table.try_into().context("fleet.toml")?;
        for guest in &mut table.guest {
            let kernel = table.kernels.get(&guest.kernel_name);
            guest.kernel =
                kernel.with_context(|| format!("no kernel {}", guest.kernel_name))?.clone();
            let runs = table.runs.get(&guest.runs_name);
            guest.runs = runs.with_context(|| format!("no runs {}", guest.runs_name))?.clone();
            if guest.file_systems {
                let of_files = table.runs.get("file-systems").context("no runs file-systems")?;
                guest.runs.extend_from_slice(of_files);
            }
        }
        Ok(table)
    }
}

impl Kernel {
    /// The packages that the kernel itself is in: that of its name and version. From 7 on, its binary and its modules are
    /// packaged apart.
    pub(super) fn package(&self) -> Package {
        let parts = ["image", "binary", "modules"];
        let wanted = (0..10).flat_map(|digit| parts.map(|part| format!("linux-{part}-{digit}")));
        let (package, suite) = (vec![self.package.clone()], Some(self.suite.clone()));
        let (packages, arm64) =
            if self.arm { (Vec::new(), package) } else { (package, Vec::new()) };
        let folder = format!("fleet/kernels/{}-{}", self.suite, self.package);
        Package { folder, packages, arm64, suite, wanted: wanted.collect(), ..Package::default() }
    }
}

impl From<String> for Run {
    fn from(text: String) -> Self {
        let mut words = text.split_whitespace().map(str::to_owned);
        Self { program: words.next().unwrap_or_default(), arguments: words.collect() }
    }
}

impl Run {
    /// Returns the name in results and logs, without the tests that it skips. The table has the reason for these.
    pub(super) fn name(&self) -> String {
        let said = self.arguments.iter().filter(|word| !word.starts_with("--skip="));
        std::iter::once(&self.program).chain(said).cloned().collect::<Vec<_>>().join(" ")
    }

    /// Returns whether it is a command of users: `hugekit`, or the lab.
    pub(super) fn is_command(&self) -> bool {
        ["doctor", "lab"].contains(&self.program.as_str())
    }

    /// Returns true if it counts tests itself.
    pub(super) fn is_tests(&self) -> bool {
        !self.is_command() && self.program != "soak"
    }

    /// Returns true if it takes snapshots of private memory, which are refused for memory that may be merged.
    fn snapshots_private_memory(&self) -> bool {
        ["snapshot", "soak"].contains(&self.program.as_str()) || self.program.ends_with("units")
    }

    /// The program's file in the guest.
    pub(super) fn file(&self) -> String {
        let program = match self.program.as_str() {
            "doctor" => "hugekit",
            "lab" => "hugekit-lab",
            other => other,
        };
        format!("/{program}")
    }

    /// The line of the guest's script that runs it. Its time limit is many times its time under emulation on a busy
    /// machine.
    pub(super) fn line(&self, guest: &Guest) -> String {
        let mut words = vec![self.file()];
        words.extend(match self.program.as_str() {
            "doctor" => vec!["doctor --json".to_owned()],
            // With as few rounds as there can be: no figure is judged.
            "lab" if !self.arguments.iter().any(|word| word == "--json") => {
                vec!["--quick --no-record --rounds 2".to_owned()]
            }
            "lab" | "soak" => Vec::new(),
            _ => vec![format!("--include-ignored --test-threads={}", guest.cpus)],
        });
        words.extend_from_slice(&self.arguments);
        let words = words.join(" ");
        let command = match (self.becomes(guest), guest.rights) {
            (Some(change), _) => format!("/xtask become {change} {words}"),
            (None, Rights::User) => format!("su -s /bin/sh -c '{words}' user"),
            (None, _) => words,
        };
        format!("run '{}' {} {command}", self.name(), super::SECONDS)
    }

    /// Returns the option that changes the process before it becomes this program.
    pub(super) fn becomes(&self, guest: &Guest) -> Option<&'static str> {
        let merges = guest.beside.contains(&Beside::Merging) && !self.snapshots_private_memory();
        match guest.rights {
            Rights::NoUserfaultfd => Some("--without-userfaultfd"),
            _ => merges.then_some("--merged"),
        }
    }
}

/// Modules of the file systems that tests make and mount in files.
const FILE_SYSTEMS: [&str; 8] =
    ["loop", "ext4", "xfs", "erofs", "btrfs", "squashfs", "overlay", "fuse"];

impl Guest {
    /// The modules of the kernel that the guest needs.
    pub(super) fn modules(&self) -> Vec<&'static str> {
        let nested = self.nested.then_some(nested::MODULE);
        nested.into_iter().chain(FILE_SYSTEMS.into_iter().filter(|_| self.file_systems)).collect()
    }

    /// The function of the guest's script that sets its kernel and runs everything.
    pub(super) fn script(&self) -> String {
        let mut lines =
            vec![format!("port=/dev/ttyS{}\nguest() {{", if self.kernel.arm { 0 } else { 1 })];
        let thp = "/sys/kernel/mm/transparent_hugepage";
        lines.push(format!(
            "set_to {thp}/enabled {}\nset_to {thp}/shmem_enabled {}",
            self.thp, self.shmem_thp
        ));
        lines.extend(self.settings.iter().map(|[file, value]| format!("set_to {file} {value}")));
        if !self.modules().is_empty() {
            lines.push("modules".to_owned());
        }
        if self.nested {
            lines.push(nested::SCRIPT.to_owned());
        }
        if self.swap_mib > 0 {
            lines.push(format!("swap {}", self.swap_mib));
        }
        if self.rights == Rights::NoUserfaultfd {
            lines.push("rm -f /dev/userfaultfd".to_owned());
        }
        lines.push("say \"@up $(uname -r)\"".to_owned());
        // What the doctor prints is compared with the table, of which soft offlining takes a page now and then.
        let (doctor, others): (Vec<_>, Vec<_>) =
            self.runs.iter().partition(|run| run.program == "doctor");
        lines.extend(doctor.into_iter().map(|run| run.line(self)));
        lines.extend(self.beside.iter().map(|beside| match beside {
            Beside::Compaction => "compaction".to_owned(),
            Beside::SoftOffline => format!("soft_offline {}", self.reserved_2m),
            Beside::Merging => "merging".to_owned(),
        }));
        lines.extend(others.into_iter().map(|run| run.line(self)));
        lines.extend(self.counters.iter().map(|counter| format!("has_counted {counter}")));
        lines.push("}\n".to_owned());
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_parts_of_each_guest_are_equal() {
        let table = FleetTable::read().unwrap();
        let names: BTreeSet<_> = table.guest.iter().map(|guest| &guest.name).collect();
        assert_eq!(names.len(), table.guest.len());
        for guest in &table.guest {
            let runs: BTreeSet<_> = guest.runs.iter().map(Run::name).collect();
            assert_eq!(runs.len(), guest.runs.len(), "{}", guest.name);
            let rests = (guest.cpus % guest.nodes, guest.mib % guest.nodes);
            assert_eq!(rests, (0, 0), "{}", guest.name);
        }
    }

    #[test]
    fn programs_are_changed_as_the_guest_needs() {
        let table = FleetTable::read().unwrap();
        let line = |guest: &str, run: &str| {
            let guest = table.guest.iter().find(|row| row.name == guest).unwrap();
            Run::from(run.to_owned()).line(guest)
        };
        let quick = "run 'lab clear' 1200 /hugekit-lab --quick --no-record --rounds 2 clear";
        assert_eq!(line("small", "lab clear"), quick);
        let as_user = "su -s /bin/sh -c '/region --include-ignored --test-threads=2' user";
        assert!(line("user", "region").ends_with(as_user));
        assert!(line("restless", "fork x").contains("/xtask become --merged /fork"));
        let skipping = line("restless", "snapshot --skip=a");
        assert!(skipping.starts_with("run 'snapshot' 1200 /snapshot --include"));
    }
}
