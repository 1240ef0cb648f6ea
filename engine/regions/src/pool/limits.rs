//! Limits of a promise of memory: huge pages and memory of the machine, and limits of its control
//! groups.
//!
//! A fact that cannot be read forbids nothing, because populating reports a shortage in any case.

use super::{Backing, PoolError};
use hugekit_machine::cgroup::{Cgroups, GroupLimit};
use hugekit_machine::hugepages::Shortage;
use hugekit_machine::{Error, Memory, Root, hugepages};

/// Checks that the machine has this many bytes beyond the memory in use.
pub(super) fn check(root: &Root, backing: Backing, bytes: usize) -> Result<(), PoolError> {
    if backing.is_reserved() {
        check_huge_pages(root, backing.page_size(), bytes)?;
        let limit = |groups: &Cgroups| groups.hugetlb_reservation(backing.page_size() as u64);
        check_group(root, limit, bytes)?;
    }
    check_use(root, backing, bytes)
}

/// Checks that this many promised bytes can be populated. Reserved huge pages exist already, but a
/// control group counts them only now.
pub fn check_use(root: &Root, backing: Backing, bytes: usize) -> Result<(), PoolError> {
    if backing.is_reserved() {
        return check_group(root, |groups| groups.hugetlb(backing.page_size() as u64), bytes);
    }
    check_memory(root, bytes)?;
    check_group(root, Cgroups::memory, bytes)
}

/// Returns true if holes can be left to faults, because nothing can refuse the memory then: the
/// kernel has set the pages apart, and no control group counts them when they are touched.
pub(super) fn holes_may_wait(root: &Root, backing: Backing) -> bool {
    let limit = |groups: Cgroups| groups.hugetlb(backing.page_size() as u64);
    backing.is_reserved() && matches!(Cgroups::read(root).and_then(limit), Ok(None))
}

/// Checks that this many huge pages are neither in use nor promised.
pub(super) fn check_huge_pages(
    root: &Root,
    page_size: usize,
    bytes: usize,
) -> Result<(), PoolError> {
    let wanted = (bytes / page_size) as u64;
    match huge_pages(root, page_size) {
        Err(error) if error.is_not_found() => Err(PoolError::NoHugePages { page_size }),
        Err(_) => Ok(()),
        Ok(None) => Err(PoolError::NoHugePages { page_size }),
        Ok(Some(pool)) => Shortage::of(root, &pool, wanted)
            .map_or(Ok(()), |shortage| Err(PoolError::NotEnoughHugePages(shortage))),
    }
}

fn huge_pages(root: &Root, page_size: usize) -> Result<Option<hugepages::HugePagePool>, Error> {
    Ok(hugepages::read(root)?.into_iter().find(|pool| pool.page_size == page_size as u64))
}

fn check_memory(root: &Root, wanted: usize) -> Result<(), PoolError> {
    match Memory::read(root) {
        Ok(Memory { available, .. }) if available < wanted as u64 => {
            Err(PoolError::NotEnoughMemory { wanted, available })
        }
        _ => Ok(()),
    }
}

fn check_group(
    root: &Root,
    limit: impl Fn(&Cgroups) -> Result<Option<GroupLimit>, Error>,
    wanted: usize,
) -> Result<(), PoolError> {
    match Cgroups::read(root).and_then(|groups| limit(&groups)) {
        Ok(Some(limit)) if limit.left() < wanted as u64 => {
            let GroupLimit { bytes: limit, used, file } = limit;
            Err(PoolError::OverGroupLimit { wanted, limit, used: used.unwrap_or(0), file })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_invented_machines::Files;
    use hugekit_sys::error_chain;

    const MIB: usize = 1 << 20;

    fn machine() -> Files {
        let machine = Files::new().unwrap();
        machine.file("/proc/meminfo", "MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable: 8192 kB");
        machine.file("/sys/devices/system/node/online", "");
        machine.files(
            "/sys/kernel/mm/hugepages/hugepages-2048kB",
            &[
                ("nr_hugepages", "10"),
                ("free_hugepages", "8"),
                ("resv_hugepages", "3"),
                ("surplus_hugepages", "1"),
                ("nr_overcommit_hugepages", "3"),
            ],
        );
        machine
    }

    fn grouped(files: &[(&str, &str)]) -> Files {
        let machine = machine();
        machine.file("/proc/self/cgroup", "0::/a");
        let mount = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        machine.file("/proc/self/mountinfo", mount);
        machine.files("/sys/fs/cgroup/a", files);
        machine
    }

    fn says(machine: &Files, backing: Backing, bytes: usize) -> Option<String> {
        check(&Root::at(machine.path()), backing, bytes)
            .err()
            .map(|error| error_chain(&error).to_string())
    }

    #[test]
    fn build_beside_promised_huge_pages_does_not_count_them() {
        assert_eq!(says(&machine(), Backing::Hugetlb2M, 7 * 2 * MIB), None);
        let expected = "needs 8 huge pages of 2 MiB, and 8 of the 10 that are reserved are free, 3 of these promised to other programs";
        assert_eq!(says(&machine(), Backing::Hugetlb2M, 8 * 2 * MIB).unwrap(), expected);
    }

    #[test]
    fn build_on_a_size_that_the_kernel_lacks_is_refused() {
        let none = "this kernel has no huge pages of 1 GiB";
        assert_eq!(says(&machine(), Backing::Hugetlb1G, 1 << 30).unwrap(), none);
        assert!(says(&Files::new().unwrap(), Backing::Hugetlb2M, 2 * MIB).is_some());
    }

    #[test]
    fn build_beyond_available_memory_is_refused() {
        for backing in [Backing::Thp, Backing::Base] {
            assert_eq!(says(&machine(), backing, 8 * MIB), None);
            let expected = "not enough memory: 9 MiB requested, 8 MiB available";
            assert_eq!(says(&machine(), backing, 9 * MIB).unwrap(), expected);
        }
    }

    #[test]
    fn refusal_names_available_memory_in_whole_mib() {
        let machine = machine();
        for (kib, named) in [(19_655_020, "19194 MiB"), (1023, "1023 KiB")] {
            let memory = format!("MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {kib} kB");
            machine.file("/proc/meminfo", &memory);
            let expected = format!("not enough memory: 1 TiB requested, {named} available");
            assert_eq!(says(&machine, Backing::Base, 1 << 40).unwrap(), expected);
        }
    }

    /// The remedy that once asked for all of a machine's memory, as root.
    #[test]
    fn remedy_on_any_machine_reserves_no_more_than_it_can_spare() {
        for machine in hugekit_invented_machines::MACHINES {
            let files = machine.files().unwrap();
            let root = Root::at(files.path());
            for gib in [1, 4, 20, 200, 100_000] {
                let (bytes, kib) = (gib << 30, 2048);
                let Err(error) = check(&root, Backing::Hugetlb2M, bytes) else { continue };
                let Some(remedy) = error.remedy() else {
                    assert!(matches!(error, PoolError::NoHugePages { .. }), "{error}");
                    continue;
                };
                let held = machine.reserved.unwrap();
                let spare = (machine.available() - machine.memory / 8) / (kib << 10);
                let missing = (bytes as u64 / (kib << 10)) - held;
                let command = format!(
                    "echo {} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                    held + missing
                );
                let name = machine.name;
                assert_eq!(remedy == command, missing <= spare, "{name}, {gib} GiB: {remedy}");
                assert!(
                    missing <= spare || remedy.contains(&format!("at most {spare}:")),
                    "{remedy}"
                );
            }
        }
    }

    #[test]
    fn build_beyond_the_group_limit_is_not_enough_memory() {
        let memory = grouped(&[("memory.max", "4194304"), ("memory.current", "1048576")]);
        assert_eq!(says(&memory, Backing::Base, 3 * MIB), None);
        let message = says(&memory, Backing::Base, 4 * MIB).unwrap();
        assert!(message.starts_with("not enough memory: 4 MiB requested, "), "{message}");
        assert!(message.ends_with("memory.max allows 4 MiB, 1 MiB used"), "{message}");
        assert_eq!(says(&memory, Backing::Hugetlb2M, 4 * MIB), None);
        for file in ["hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"] {
            let huge = grouped(&[(file, "2097152")]);
            assert_eq!(says(&huge, Backing::Hugetlb2M, 2 * MIB), None);
            assert!(says(&huge, Backing::Hugetlb2M, 4 * MIB).unwrap().contains(file));
        }
    }

    #[test]
    fn build_with_limits_unread_is_not_refused() {
        assert_eq!(says(&Files::new().unwrap(), Backing::Base, 8 * MIB), None);
    }
}
