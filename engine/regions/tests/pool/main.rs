//! Pools on every backing: what is allocated is zero, whatever happened before, and what cannot be
//! allocated is an error in figures.
//!
//! A harness of its own, because which backings there are is known only at run time: one that this
//! machine lacks is listed as ignored, with what the pool says about it.
#![allow(unsafe_code)]

mod adopted;
mod allocation;
use hugekit_testing::backings;
use hugekit_testing::child;
mod fallback;
mod fixture;
mod inherited;
mod mapping;
mod model;
mod processes;
mod refused;
mod scrubber;
use backings::trials;
use libtest_mimic::{Arguments, Trial};

fn main() {
    let checks = [
        adopted::CHECKS,
        allocation::CHECKS,
        scrubber::CHECKS,
        refused::CHECKS,
        mapping::CHECKS,
        processes::CHECKS,
        inherited::CHECKS,
        model::CHECKS,
    ];
    let mut trials = trials(&checks.concat());
    trials.extend(fallback::CHECKS.iter().map(|&(name, check)| {
        let run = move || {
            check();
            Ok(())
        };
        Trial::test(name, run)
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
