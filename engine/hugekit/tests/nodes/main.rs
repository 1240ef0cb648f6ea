//! NUMA: memory is on the nodes where it was asked for, jobs run where it is, and pages that move to another node
//! meanwhile keep their bytes.
//!
//! A harness of its own: on a machine with one node everything is listed as ignored. `cargo xtask fleet` has guests
//! with two nodes and with four.
#![allow(unsafe_code)]

use hugekit_testing::backings;
mod jobs;
use hugekit_testing::memory;
mod migration;
mod placed;
mod pools;
use hugekit_testing::served;

use backings::{trials_on, unless_lacking, usual};
use libtest_mimic::{Arguments, Trial};

/// Why nothing can be told apart here.
fn lacking() -> Option<&'static str> {
    if placed::nodes().len() < 2 {
        return Some("this process may use one node with CPUs and memory");
    }
    (!placed::is_told()).then_some(
        "the kernel does not say where pages are, or lets this process move none of a pool's",
    )
}

fn main() {
    let lacking = lacking();
    let on_each_backing = usual().flat_map(|backing| {
        trials_on(backing, pools::FOLIOS, &[pools::CHECKS, migration::OF_POOLS].concat())
    });
    let of_memory = [("base", false), ("thp", true)].into_iter().flat_map(|(pages, huge)| {
        [jobs::CHECKS, migration::OF_MEMORY].concat().into_iter().map(move |(name, check)| {
            Trial::test(format!("{pages}::{name}"), move || {
                check(huge);
                Ok(())
            })
        })
    });
    let trials = of_memory.chain(on_each_backing).map(|trial| unless_lacking(trial, lacking));
    // Threads of two jobs at once would wait for each other, and pages would be moved under the wrong test.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
