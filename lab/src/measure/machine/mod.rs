//! The machine that a record was made on, read from its files.

mod conditions;
pub mod cpus;
pub mod memory;
pub mod settings;
pub mod usage;

use crate::record::Machine;
use crate::record::published::Kernel;
use hugekit_doctor::Host;
use hugekit_machine::limits::Allowed;
use hugekit_machine::{Memory, Root, cache};

pub use conditions::here;

/// The machine that these files describe. Of hardware counters the run knows that counts.
#[must_use]
pub fn describe(root: &Root) -> Machine {
    let host = Host::read(root).ok();
    let caches = cache::read(root).map(|caches| vec![caches.l1d, caches.l2, caches.llc]);
    let (cpu, kernel, hypervisor) = match host {
        Some(host) => (host.cpu_model, Some(host.kernel), host.hypervisor),
        None => (None, None, None),
    };
    Machine {
        cpu: cpu.unwrap_or_else(unknown),
        cpus: Allowed::read(root).map_or(1, |allowed| allowed.cpus.len()),
        kernel: kernel.unwrap_or_else(unknown),
        hypervisor,
        cache_bytes: caches.unwrap_or_default(),
        memory_bytes: Memory::read(root).map_or(0, |memory| memory.total),
        nodes: conditions::nodes(root),
        turbo: conditions::turbo(root),
        governor: conditions::governor(root),
        // Known to the run that counted.
        hardware_counters: String::new(),
    }
}

/// The running kernel where it clears huge pages, and how, as far as its release says.
pub fn clearing_kernel() -> Kernel {
    kernel(Host::clears_in_ranges, ["clearing page by page", "clearing in ranges"])
}

/// The same where it copies page tables.
pub fn forking_kernel() -> Kernel {
    kernel(Host::forks_by_runs, ["forking entry by entry", "forking by runs"])
}

fn kernel(does: fn(&Host) -> Option<bool>, [no, yes]: [&str; 2]) -> Kernel {
    let name = format!("Linux {}", rustix::system::uname().release().to_string_lossy());
    let does = Host::read(&Root::default()).ok().and_then(|host| does(&host));
    Kernel::new(name, does.map(|does| if does { yes } else { no }))
}

fn unknown() -> String {
    "unknown".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_although_it_does_not_say_everything() {
        for description in hugekit_invented_machines::MACHINES {
            let files = description.files().unwrap();
            let machine = describe(&Root::at(files.path()));
            assert_eq!(machine.memory_bytes, description.memory);
            assert_eq!(machine.cpus as u64, description.cpus);
            assert_eq!(machine.cache_bytes.is_empty(), description.l1d == 0);
            assert_ne!(machine.cpu, "unknown", "{}", description.name);
        }
    }
}
