//! Snapshots of regions, on every backing, served in place and threaded: what they hold is what the region held,
//! whichever thread writes, forks or drops it meanwhile, and what was read costs writers nothing any more.
#![allow(unsafe_code)]

mod all_writers;
use hugekit_testing::backings;
use hugekit_testing::child;
use hugekit_testing::permitted;
mod contents;
mod epochs;
mod fixture;
mod kernel;
mod model;
mod processes;
mod refused;
mod writers;
use backings::{trials, trials_on_gigantic};
use libtest_mimic::Arguments;

fn main() {
    let checks = [
        contents::CHECKS,
        model::CHECKS,
        epochs::CHECKS,
        all_writers::CHECKS,
        writers::CHECKS,
        kernel::CHECKS,
        processes::CHECKS,
        refused::CHECKS,
    ];
    let mut trials = trials(&checks.concat());
    trials.extend(trials_on_gigantic(refused::GIGANTIC));
    libtest_mimic::run(&Arguments::from_args(), permitted::or_skipped(trials)).exit();
}
