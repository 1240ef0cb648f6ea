//! A pager and VMs as processes: bytes after a restore, kills, hostile VMMs, memory given back.

mod fixture;
mod hostile;
mod kills;
mod limits;
mod lost;
mod memory_file;
mod packed;
mod pager_process;
mod refused;
mod small;
mod stock;

use libtest_mimic::{Arguments, Trial};

fn main() {
    hugekit_guests::small_vmm::run_if_asked();
    pager_process::run_if_asked();
    let mut arguments = Arguments::from_args();
    // Guests share the machine's memory and CPUs, and each one polls.
    arguments.test_threads = Some(1);
    let trials: Vec<Trial> = [
        stock::trials(),
        small::trials(),
        packed::trials(),
        lost::trials(),
        refused::trials(),
        hostile::trials(),
        kills::trials(),
        limits::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
