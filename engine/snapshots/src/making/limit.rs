//! The default limit of the bytes of copies, and the remedy if a limit is too low.

use hugekit_machine::Root;
use hugekit_machine::available::Available;
use hugekit_machine::limits::AddressLimit;

/// Copies may always have this many bytes, or the length of the memory if that is less. The
/// available memory is not read for this.
const LEAST_HELD: usize = 64 << 20;

/// Returns the default limit of `len` bytes of memory: all of them. These bytes are a part of `together`. If less
/// than `together` is available, returns the same share of the available bytes.
pub(super) fn by_default(root: &Root, len: usize, together: usize) -> usize {
    if together <= LEAST_HELD {
        return len;
    }
    let available = Available::of_this_process(root).bytes;
    if available >= together as u64 {
        return len;
    }
    let share = u128::from(available) * len as u128 / together as u128;
    usize::try_from(share).unwrap_or(len).max(LEAST_HELD.min(len))
}

/// Returns a limit for copies for which the process has addresses, after it had none for `cap` bytes: half of those that
/// its limits leave, because the program needs some, too. `None` if no limit is known that leaves less than `cap`.
pub(super) fn within_addresses(root: &Root, cap: usize) -> Option<usize> {
    let left = usize::try_from(AddressLimit::read(root)?.left).ok()?;
    (left / 2 > 0 && left / 2 < cap).then_some(left / 2)
}

/// Returns words for the limit that leaves the process the fewest addresses.
pub(crate) fn of_addresses(root: &Root) -> String {
    match AddressLimit::read(root) {
        Some(limit) => format!("{}, which leaves {} bytes", limit.name, limit.left),
        None => "vm.max_map_count".to_owned(),
    }
}

/// Returns the bytes that copies could have, including the `held` bytes of a lost snapshot. `usize::MAX` if the
/// available memory is unknown.
pub(crate) fn attainable(root: &Root, held: usize) -> usize {
    let available = usize::try_from(Available::of_this_process(root).bytes);
    available.map_or(usize::MAX, |bytes| bytes.saturating_add(held))
}

/// Returns what the owner of a lost snapshot can do. Copies of all of it need `len` bytes.
pub(crate) fn remedy(len: usize, available: usize) -> String {
    if available < len {
        return format!(
            "read the snapshot sooner, or free memory: copies of all of it need {len} bytes, and {available} are available"
        );
    }
    format!(
        "set max_cow_bytes to {len}, all of the memory, or leave it at its default, which is as much; or read the snapshot \
         sooner"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_invented_machines::Files;

    const MIB: usize = 1 << 20;

    /// Returns a machine that has so much available.
    fn machine(available: usize) -> Files {
        let machine = Files::new().unwrap();
        let kib = available >> 10;
        let meminfo = format!("MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable: {kib} kB");
        machine.file("/proc/meminfo", meminfo);
        machine
    }

    #[test]
    fn limit_by_default_is_all_of_the_memory_where_as_much_is_available() {
        let machine = machine(1000 * MIB);
        for len in [1, MIB, 64 * MIB, 65 * MIB, 1000 * MIB] {
            assert_eq!(by_default(&Root::at(machine.path()), len, len), len);
        }
        assert_eq!(
            by_default(&Root::at(Files::new().unwrap().path()), 9000 * MIB, 9000 * MIB),
            9000 * MIB
        );
    }

    #[test]
    fn limit_by_default_of_several_is_a_share_of_what_is_available() {
        let machine = machine(1000 * MIB);
        assert_eq!(by_default(&Root::at(machine.path()), 4000 * MIB, 4000 * MIB), 1000 * MIB);
        let shares = [500, 1500, 2000]
            .map(|mib| by_default(&Root::at(machine.path()), mib * MIB, 4000 * MIB));
        assert_eq!(shares, [125 * MIB, 375 * MIB, 500 * MIB]);
        assert_eq!(by_default(&Root::at(machine.path()), usize::MAX, usize::MAX), 1000 * MIB);
    }

    #[test]
    fn limit_by_default_is_never_less_than_64_mib_or_all() {
        let machine = machine(MIB);
        assert_eq!(by_default(&Root::at(machine.path()), 4000 * MIB, 4000 * MIB), 64 * MIB);
        assert_eq!(by_default(&Root::at(machine.path()), 5 * MIB, 4000 * MIB), 5 * MIB);
    }

    #[test]
    fn limit_of_addresses_leaves_the_program_half_of_them() {
        let machine = machine(MIB);
        let root = Root::at(machine.path());
        assert_eq!(within_addresses(&root, MIB), None);
        assert!(of_addresses(&root).contains("max_map_count"));
        machine.file("/proc/self/status", "VmSize:\t 1024 kB\nVmData:\t 512 kB\n");
        machine.file("/proc/self/limits", "Max data size  2621440  unlimited  bytes\n");
        assert_eq!(within_addresses(&root, 3 * MIB), Some(MIB));
        assert_eq!(within_addresses(&root, MIB), None);
        let said = of_addresses(&root);
        assert!(said.starts_with("RLIMIT_DATA (ulimit -d), which leaves 2097152"), "{said}");
    }

    #[test]
    fn remedy_names_the_option_and_all_bytes_only_where_they_are_available() {
        let available = attainable(&Root::at(machine(900 * MIB).path()), 100 * MIB);
        let helps = remedy(1000 * MIB, available);
        assert!(helps.contains("set max_cow_bytes to 1048576000, all"), "{helps}");
        let short = remedy(1001 * MIB, available);
        assert!(!short.contains("max_cow_bytes"), "{short}");
        assert!(short.contains("1048576000 are available"), "{short}");
        assert_eq!(attainable(&Root::at(Files::new().unwrap().path()), 5), usize::MAX);
    }
}
