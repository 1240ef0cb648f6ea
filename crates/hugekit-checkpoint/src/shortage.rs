//! Whether there is memory for children, before the VM is paused for them.

use std::fs;

use hugekit_machine::Root;
use hugekit_machine::memory::Memory;

use crate::checkpoint::used;
use crate::fork_error::ForkError;
use crate::granules::HUGE;
use crate::vm::Vm;

const FREE_HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Refuses children for whom memory is short: the kernel would end processes instead. If the kernel
/// does not say how much is available, no children are refused.
pub(crate) fn check(vm: &Vm, children: usize) -> Result<(), ForkError> {
    let count = children as u64;
    let used = used(vm)?.iter().map(|range| range.end - range.start).sum::<u64>();
    if vm.is_hugetlb {
        let free = fs::read_to_string(FREE_HUGE_PAGES).ok();
        let free = free.and_then(|free| free.trim().parse::<u64>().ok());
        check_huge_pages(children, count * vm.bytes().div_ceil(HUGE), free.unwrap_or(u64::MAX))?;
    }
    // The copy that they are restored from, and their own.
    let needed = if vm.is_hugetlb { used } else { used * (count + 1) };
    let available = Memory::read(&Root::default()).map_or(u64::MAX, |memory| memory.available);
    check_bytes(children, needed, available)
}

fn check_huge_pages(children: usize, needed: u64, free: u64) -> Result<(), ForkError> {
    if needed > free { Err(ForkError::NoHugePages { children, needed, free }) } else { Ok(()) }
}

fn check_bytes(children: usize, needed: u64, available: u64) -> Result<(), ForkError> {
    if needed <= available {
        return Ok(());
    }
    let (needed, available) = (needed.div_ceil(1 << 20), available >> 20);
    Err(ForkError::NoMemory { children, needed, available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_told_with_its_numbers() {
        assert!(check_bytes(4, 5 << 20, 5 << 20).is_ok() && check_huge_pages(4, 8, 8).is_ok());
        let short = check_bytes(4, (5 << 20) + 1, 5 << 20).unwrap_err().to_string();
        assert_eq!(short, "not enough memory for 4 children: 6 MiB needed, 5 MiB available");
        let short = check_huge_pages(4, 8, 7).unwrap_err();
        assert_eq!(short.to_string(), "not enough 2 MiB pages for 4 children: 8 needed, 7 free");
        assert!(short.remedy().unwrap().contains("nr_hugepages"));
    }
}
