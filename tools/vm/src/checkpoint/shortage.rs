//! Checks that there is memory for children, before the VM is paused for them.

use hugekit_machine::Root;
use hugekit_machine::available::Available;
use hugekit_machine::hugepages::{self, Shortage};

use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::granules::HUGE;
use crate::checkpoint::once::used;
use crate::checkpoint::vm::Vm;

/// Refuses children if memory is short, because the kernel would end processes instead. If the
/// kernel does not report the available memory, no children are refused.
pub(crate) fn check(vm: &Vm, children: usize) -> Result<(), ForkError> {
    let count = children as u64;
    let used = used(vm)?.iter().map(|range| range.end - range.start).sum::<u64>();
    if vm.is_hugetlb {
        check_huge_pages(&Root::default(), children, count * vm.bytes().div_ceil(HUGE))?;
    }
    // The copy that they are restored from, and their own.
    let needed = if vm.is_hugetlb { used } else { used * (count + 1) };
    check_copies(children, needed)
}

/// Refuses children if their memory does not fit into the machine and this process's control group.
pub(crate) fn check_copies(children: usize, needed: u64) -> Result<(), ForkError> {
    let own = rustix::process::getpid().as_raw_pid();
    check_bytes(children, needed, Available::read(&Root::default(), &[own]))
}

fn check_huge_pages(root: &Root, children: usize, needed: u64) -> Result<(), ForkError> {
    let Ok(pool) = hugepages::read_size(root, HUGE) else { return Ok(()) };
    match Shortage::of(root, &pool, needed) {
        Some(source) => Err(ForkError::NoHugePages { children, source }),
        None => Ok(()),
    }
}

fn check_bytes(children: usize, needed: u64, available: Available) -> Result<(), ForkError> {
    if needed <= available.bytes {
        return Ok(());
    }
    let needed = needed.div_ceil(1 << 20);
    Err(ForkError::NoMemory { children, needed, available })
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;
    use hugekit_sys::error_chain;
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn shortage_of_memory_has_its_figures_and_its_remedy_once() {
        let available = || Available { bytes: 5 << 20, limit: None };
        assert!(check_bytes(4, 5 << 20, available()).is_ok());
        let short = check_bytes(4, (5 << 20) + 1, available()).unwrap_err();
        let chain = error_chain(&short).to_string();
        assert_eq!(chain, "not enough memory for 4 children: 6 MiB needed, 5 MiB available");
        let remedy = short.remedy();
        prints_remedy_once(short, remedy);
        let group = Available { limit: Some("/g/memory.max".into()), ..available() };
        let short = check_bytes(4, 6 << 20, group).unwrap_err();
        assert!(short.to_string().contains("5 MiB available below /g/memory.max"), "{short}");
        assert!(short.remedy().unwrap().contains("raise the limit"), "{short:?}");
    }

    #[test]
    fn shortage_of_huge_pages_has_its_figures_and_its_remedy_once() {
        let machine = Files::new().unwrap();
        let pool = [
            ("nr_hugepages", "9"),
            ("free_hugepages", "7"),
            ("resv_hugepages", "0"),
            ("surplus_hugepages", "0"),
            ("nr_overcommit_hugepages", "0"),
        ];
        machine.files("/sys/kernel/mm/hugepages/hugepages-2048kB", &pool);
        machine.file(
            "/proc/meminfo",
            "MemTotal: 1048576 kB\nMemFree: 1048576 kB\nMemAvailable: 1048576 kB\n",
        );
        let root = Root::at(machine.path());
        assert!(check_huge_pages(&root, 4, 7).is_ok());
        let short = check_huge_pages(&root, 4, 8).unwrap_err();
        let chain = error_chain(&short).to_string();
        assert!(chain.starts_with("not enough huge pages for 4 children: needs 8 "), "{chain}");
        assert!(short.remedy().unwrap().starts_with("echo 10 > "), "{short:?}");
        let remedy = short.remedy();
        prints_remedy_once(short, remedy);
    }

    #[test]
    fn no_pool_of_huge_pages_refuses_no_children() {
        assert!(check_huge_pages(&Root::at(Files::new().unwrap().path()), 4, 8).is_ok());
    }
}
