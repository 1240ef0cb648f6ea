//! The machine that a record was made on, read from its files.

pub(crate) mod cpus;
pub(crate) mod memory;
pub(crate) mod settings;
pub(crate) mod usage;

use hugekit_doctor::Host;
use hugekit_machine::limits::Allowed;
use hugekit_machine::{Memory, Root, cache};

use crate::record::Machine;

impl Machine {
    /// The machine that these files describe. Of hardware counters the run knows that counts.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let host = Host::read(root).ok();
        let caches = cache::read(root).map(|caches| vec![caches.l1d, caches.l2, caches.llc]);
        let (cpu, kernel, hypervisor) = match host {
            Some(host) => (host.cpu_model, Some(host.kernel), host.hypervisor),
            None => (None, None, None),
        };
        Self {
            cpu: cpu.unwrap_or_else(unknown),
            cpus: Allowed::read(root).map_or(1, |allowed| allowed.cpus.len()),
            kernel: kernel.unwrap_or_else(unknown),
            hypervisor,
            cache_bytes: caches.unwrap_or_default(),
            memory_bytes: Memory::read(root).map_or(0, |memory| memory.total),
            // Known to the run that counted.
            hardware_counters: String::new(),
        }
    }
}

/// The running kernel, as the conditions of figures name it.
pub(crate) fn kernel() -> String {
    format!("Linux {}", rustix::system::uname().release().to_string_lossy())
}

/// The same where huge pages are cleared by it: how, as far as its release says.
pub(crate) fn clearing_kernel() -> String {
    match Host::read(&Root::default()).ok().and_then(|host| host.clears_in_ranges()) {
        Some(true) => format!("{}, clearing in ranges", kernel()),
        Some(false) => format!("{}, clearing page by page", kernel()),
        None => kernel(),
    }
}

fn unknown() -> String {
    "unknown".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_although_it_does_not_say_everything() {
        for description in hugekit_machines::MACHINES {
            let files = description.files().unwrap();
            let machine = Machine::read(&Root::at(files.path()));
            assert_eq!(machine.memory_bytes, description.memory);
            assert_eq!(machine.cpus as u64, description.cpus);
            assert_eq!(machine.cache_bytes.is_empty(), description.l1d == 0);
            assert_ne!(machine.cpu, "unknown", "{}", description.name);
        }
    }
}
