//! Guest memory by regions, as Firecracker's versions lay it out.

const GIB: u64 = 1 << 30;

/// Guest memory below the addresses of 32-bit devices, on x86-64: since version 1.13, and before.
const BELOW_DEVICES: [u64; 2] = [3 * GIB, 3 * GIB + (GIB >> 2)];

/// The first address of 64-bit devices since 1.13, and the address behind them.
const DEVICES: (u64, u64) = (256 * GIB, 512 * GIB);

/// Memory up to this size is one region in any version.
pub(crate) const ONE_REGION: u64 = BELOW_DEVICES[0];

/// Returns the sizes of the regions that a VM of this many bytes may have, by offset.
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
