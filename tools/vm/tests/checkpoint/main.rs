//! Checkpoints of stock Firecracker: bytes, kills, and VMs that do something else meanwhile.

mod child;
mod clones;
mod deltas;
mod devices;
mod family;
mod fork_kills;
mod forks;
mod hostile;
mod kills;
mod large;
mod linux;
mod other_kills;
mod other_user;
mod pager_child;
mod proxy;
mod random_kills;
mod releases;
mod saved;
mod scene;
mod series;
mod small;
mod vsock;

use libtest_mimic::{Arguments, Trial};

fn main() {
    hugekit_guests::small_vmm::run_if_asked();
    child::run_if_asked();
    pager_child::run_if_asked();
    let mut arguments = Arguments::from_args();
    // Guests share the machine's memory and CPUs, and each one polls.
    arguments.test_threads = Some(1);
    let trials = [
        saved::trials(),
        deltas::trials(),
        series::trials(),
        small::trials(),
        hostile::trials(),
        large::trials(),
        kills::trials(),
        random_kills::trials(),
        other_kills::trials(),
        forks::trials(),
        fork_kills::trials(),
        clones::trials(),
        other_user::trials(),
        vsock::trials(),
        devices::trials(),
        releases::trials(),
        linux::trials(),
    ];
    let trials: Vec<Trial> = trials.into_iter().flatten().collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    scene::remove_origins();
    conclusion.exit();
}
