//! Every system call fails once: `cargo xtask faults`.
//!
//! For each public operation and each n, the n-th call is refused, with each answer that it may give; then it and all
//! of its kind from there on. The answer is a typed error of the right kind, nothing is lost or leaked, and the
//! operation works afterwards. With `HUGEKIT_FAULTS=all` every answer is given, else one for each call.

#![allow(unsafe_code)]

#[path = "../backings/mod.rs"]
mod backings;
mod case;
mod harness;
mod heap;
mod mappings;
#[path = "../memory/mod.rs"]
mod memory;
mod operations;

use hugekit::pool::Backing;
use libtest_mimic::{Arguments, Trial};

fn main() {
    let thorough = std::env::var("HUGEKIT_FAULTS").is_ok_and(|which| which == "all");
    let huge = [Backing::Thp, Backing::Hugetlb2M];
    let lacking = huge.map(|backing| (backing, backings::lacking(backing, 2 * operations::FOLIOS)));
    let trials = operations::all(thorough).into_iter().map(|(name, operation)| {
        let lacking = lacking.iter().find(|(backing, _)| *backing == operation.backing);
        let trial = Trial::test(name, move || harness::refuse_each_call(operation, thorough));
        backings::unless_lacking(trial, lacking.and_then(|(_, lacking)| lacking.as_deref()))
    });
    let mut short = operations::short_of_mappings(thorough);
    short.extend(operations::short_of_heap());
    let short = short
        .into_iter()
        .map(|(name, operation)| Trial::test(name, move || harness::run_short(operation)));
    libtest_mimic::run(&Arguments::from_args(), trials.chain(short).collect()).exit();
}
