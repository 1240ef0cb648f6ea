//! Forks of regions, on every backing, served in place and threaded: each side changes its own bytes and
//! no other's, whichever region writes first and goes first.
#![allow(unsafe_code)]

use hugekit_testing::backings;
use hugekit_testing::child;
mod fixture;
mod kernel;
mod left_out;
mod lifetime;
mod mappings;
mod model;
use hugekit_testing::permitted;
mod processes;
mod refused;
use hugekit_testing::rounds;
mod sharing;
mod threads;
mod unready;

use backings::{trials, trials_on, trials_on_gigantic, usual};
use libtest_mimic::Arguments;

fn main() {
    let checks = [
        sharing::CHECKS,
        left_out::CHECKS,
        lifetime::CHECKS,
        model::CHECKS,
        threads::CHECKS,
        kernel::CHECKS,
        refused::CHECKS,
        mappings::CHECKS,
        processes::CHECKS,
    ];
    let mut trials = trials(&checks.concat());
    for backing in usual() {
        trials.extend(trials_on(backing, 3 * unready::GRANULES, unready::CHECKS));
    }
    trials.extend(trials_on_gigantic(refused::GIGANTIC));
    libtest_mimic::run(&Arguments::from_args(), permitted::or_skipped(trials)).exit();
}
