//! Too little memory for units, and how an administrator can provide more.

use hugekit::pool::Backing;
use hugekit_broker::BrokerOptions;
use hugekit_machine::size::Size;
use hugekit_machine::{Memory, Root, hugepages};

use hugekit_terminal::text::count;

/// Warns that not all units can be ready, if so.
pub(super) fn warning(options: &BrokerOptions) -> Option<String> {
    let (wanted, free) = options.shortage()?;
    let remedy = remedy(&Root::default(), options.backing, wanted - free);
    let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
    let (wanted, free) = (size(wanted), size(free));
    Some(format!("warning: --ready and --keep-free need {wanted}, and {free} are free: {remedy}"))
}

/// Returns a command that frees this many more bytes for units.
pub(super) fn remedy(root: &Root, backing: Backing, missing: u64) -> String {
    if !backing.is_reserved() {
        return "free memory, or choose fewer or smaller units".to_owned();
    }
    let page_size = backing.page_size() as u64;
    let pages = missing.div_ceil(page_size);
    let spare = Memory::read(root).ok().map(|memory| memory.spare() / page_size);
    let command = match hugepages::read_size(root, page_size) {
        Ok(pool) => hugepages::remedy(page_size, pool.total, pages, spare),
        Err(error) => error.to_string(),
    };
    let (pages, size) = (count(pages, "more page"), Size(backing.page_size()));
    format!("reserve {pages} of {size}: {command}; or choose --backing thp")
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns a machine with 16 GiB of memory and 100 huge pages.
    fn machine() -> Files {
        let machine = Files::new().unwrap();
        let meminfo = "MemTotal: 16777216 kB\nMemFree: 16777216 kB\nMemAvailable: 16777216 kB\n";
        machine.file("/proc/meminfo", meminfo);
        let files = [
            ("nr_hugepages", "100"),
            ("free_hugepages", "0"),
            ("resv_hugepages", "0"),
            ("surplus_hugepages", "0"),
            ("nr_overcommit_hugepages", "0"),
        ];
        machine.files("/sys/kernel/mm/hugepages/hugepages-2048kB", &files);
        machine
    }

    #[test]
    fn remedy_for_reserved_pages_is_the_number_and_the_command() {
        let machine = machine();
        let said = |missing| remedy(&Root::at(machine.path()), Backing::Hugetlb2M, missing);
        let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let two = format!("reserve 2 more pages of 2MiB: echo 102 > {file}; or ");
        assert!(said(3 * MIB).starts_with(&two), "{}", said(3 * MIB));
        assert!(said(1).starts_with("reserve 1 more page of 2MiB: echo 101 >"), "{}", said(1));
        assert!(said(1 << 40).contains("cannot spare 524288 more huge pages"), "{}", said(1 << 40));
    }

    #[test]
    fn remedy_for_other_memory_reserves_nothing() {
        for backing in [Backing::Thp, Backing::Base] {
            let said = remedy(&Root::at(machine().path()), backing, MIB);
            assert!(!said.contains("reserve") && said.contains("smaller units"), "{said}");
        }
    }
}
