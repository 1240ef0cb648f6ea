//! Saved VMs as OCI image layouts: packed, read by other programs, unpacked, and hostile.

mod hostile;
mod layouts;
mod registry;
mod saved;

use hugekit_testing::trials::trials;
use libtest_mimic::Arguments;

fn main() {
    let all = [layouts::CHECKS, hostile::CHECKS, registry::CHECKS];
    let all = all.into_iter().flat_map(|checks| trials(checks, None)).collect();
    libtest_mimic::run(&Arguments::from_args(), all).exit();
}
