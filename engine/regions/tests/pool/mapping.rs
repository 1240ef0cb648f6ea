//! What the kernel knows of a pool: its nodes, its name, its file.

use hugekit::pool::{Backing, NodePolicy, PoolError};

use crate::backings::{Check, builder, unscrubbed};

fn build_with_any_node_policy_has_it_in_force(backing: Backing) {
    let policies = [
        (NodePolicy::Process, "default"),
        (NodePolicy::Local, "local"),
        (NodePolicy::Bind(vec![0]), "bind:0"),
        (NodePolicy::Interleave(vec![0]), "interleave:0"),
        (NodePolicy::Preferred(0), "prefer:0"),
    ];
    for (policy, expected) in policies {
        let name = format!("{backing:?}-{expected}").replace(':', "-");
        let pool = builder(backing, 1)
            .name(&name)
            .nodes(policy)
            .populate_on_allocation(false)
            .build()
            .unwrap();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let line = maps.lines().find(|line| line.contains(&name)).unwrap();
        assert_eq!(line.split(' ').nth(1), Some(expected), "{line}");
        drop(pool);
    }
    for nowhere in [NodePolicy::Bind(vec![1000]), NodePolicy::Preferred(1 << 20)] {
        let pool = builder(backing, 1).nodes(nowhere).build();
        assert!(matches!(pool, Err(PoolError::NodePolicy(_))));
    }
}

/// The lines of `/proc/self/smaps` about the mapping at an address: its first and its flags.
fn mapping_at(address: *const u8) -> (String, String) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let first = format!("{:x}-", address.addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&first));
    let first = lines.next().unwrap().to_owned();
    (first, lines.find(|line| line.starts_with("VmFlags:")).unwrap().to_owned())
}

fn build_with_a_name_and_no_core_dumps_tells_the_kernel(backing: Backing) {
    for dumped in [true, false] {
        let pool = builder(backing, 1).name("test\0cut").in_core_dumps(dumped).build().unwrap();
        let region = pool.region(1).unwrap();
        let (first, flags) = mapping_at(region.as_ptr());
        assert!(first.contains("/memfd:hugekit:test (deleted)"), "{first}");
        assert!(flags.contains(" dc"), "{flags}");
        assert_eq!(flags.contains(" dd"), !dumped, "{flags}");
    }
}

fn file_of_a_region_is_sealed_and_closed_on_exec(backing: Backing) {
    let pool = unscrubbed(backing);
    let region = pool.region(1).unwrap().share();
    // SAFETY: the descriptor is only asked about and refused.
    let (file, offset) = unsafe { region.file() }.unwrap();
    assert_eq!(offset, 0);
    assert!(rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    for len in [0, 1 << 40] {
        assert_eq!(rustix::fs::ftruncate(file, len), Err(rustix::io::Errno::PERM));
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    build_with_any_node_policy_has_it_in_force,
    build_with_a_name_and_no_core_dumps_tells_the_kernel,
    file_of_a_region_is_sealed_and_closed_on_exec,
];
