//! Regions of guest memory in the layouts of Firecracker's versions.

const GIB: u64 = 1 << 30;

/// The end of guest memory below the addresses of 32-bit devices, on x86-64: since version 1.13,
/// and before.
const BELOW_DEVICES: [u64; 2] = [3 * GIB, 3 * GIB + (GIB >> 2)];

/// The first address of 64-bit devices since version 1.13, and the end of these addresses.
const DEVICES: (u64, u64) = (256 * GIB, 512 * GIB);

/// Memory up to this size is one region in every version.
pub(crate) const ONE_REGION: u64 = BELOW_DEVICES[0];

/// Returns the possible sizes of the regions of a VM with this many bytes, by offset.
pub(crate) fn sizes(bytes: u64) -> Vec<Vec<u64>> {
    if cfg!(not(target_arch = "x86_64")) || bytes <= BELOW_DEVICES[0] {
        return vec![vec![bytes]];
    }
    let [since, before] = BELOW_DEVICES;
    let mut layouts = Vec::new();
    // From 4 GiB on, up to the 64-bit devices, and behind them.
    let middle = DEVICES.0 - 4 * GIB;
    match bytes - since {
        above if above > middle => layouts.push(vec![since, middle, above - middle]),
        above => layouts.push(vec![since, above]),
    }
    match bytes {
        bytes if bytes > before => layouts.push(vec![before, bytes - before]),
        bytes => layouts.push(vec![bytes]),
    }
    layouts
}
