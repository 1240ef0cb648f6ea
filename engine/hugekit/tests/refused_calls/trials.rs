//! One trial for each operation and each shortage.

use hugekit::pool::Backing;
use libtest_mimic::{Arguments, Trial};

use crate::{backings, harness, operations};

pub(crate) fn main() {
    let depth = harness::Depth::from_environment();
    let thorough = depth == harness::Depth::All;
    let huge = backings::usual().filter(|&backing| backing != Backing::Base);
    let lacking = |backing| (backing, backings::lacking(backing, 2 * operations::FOLIOS));
    let lacking: Vec<_> = huge.map(lacking).collect();
    let trials = operations::all(thorough).into_iter().map(|(name, operation)| {
        let lacking = lacking.iter().find(|(backing, _)| *backing == operation.backing);
        let trial = Trial::test(name, move || harness::refuse_each_call(operation, depth));
        backings::unless_lacking(trial, lacking.and_then(|(_, lacking)| lacking.as_deref()))
    });
    let mut short = operations::short_of_mappings(thorough);
    short.extend(operations::short_of_heap());
    let short = short
        .into_iter()
        .map(|(name, operation)| Trial::test(name, move || harness::run_short(operation)));
    libtest_mimic::run(&Arguments::from_args(), trials.chain(short).collect()).exit();
}
