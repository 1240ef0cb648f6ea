//! Snapshots of anonymous memory, in place and threaded: what they hold is what the memory held, whichever thread
//! writes it meanwhile and whatever its owner does.
#![allow(unsafe_code)]

use hugekit_testing::backings;
use hugekit_testing::child;
mod contents;
mod cost;
mod epochs;
mod fixture;
mod kernel;
mod limits;
use hugekit_testing::memory;
mod model;
mod output;
mod owners;
mod parts;
mod processes;
mod refused;
mod stagings;
mod writers;
use std::sync::LazyLock;

use fixture::{Check, FAULT_MODES, RESERVE, of};
use hugekit::HUGE_PAGE_BYTES as HUGE;
use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use libtest_mimic::{Arguments, Trial};
use memory::Memory;

fn trials(fault_mode: FaultMode, checks: &[Check]) -> Vec<Trial> {
    let memory = Memory::filled(2 * HUGE, true, 0);
    let lacking =
        of(fault_mode, memory.range(), Granule::Auto).err().map(|error| error.to_string());
    let label = match fault_mode {
        FaultMode::Threaded { threads } => format!("threaded{threads}"),
        _ => "in_place".to_owned(),
    };
    let trial = |&(name, check): &Check| {
        let run = move || {
            check(fault_mode);
            Ok(())
        };
        backings::unless_lacking(backings::marked(&label, name, run), lacking.as_deref())
    };
    checks.iter().map(trial).collect()
}

fn main() {
    // Not while a child is forked, which would wait for it.
    LazyLock::force(&RESERVE);
    let checks = [
        contents::CHECKS,
        writers::CHECKS,
        model::CHECKS,
        kernel::CHECKS,
        limits::CHECKS,
        owners::CHECKS,
        processes::CHECKS,
        output::CHECKS,
        parts::CHECKS,
        epochs::CHECKS,
        cost::CHECKS,
        refused::CHECKS,
        stagings::CHECKS,
    ];
    let checks = checks.concat();
    let trials = FAULT_MODES.into_iter().flat_map(|mode| trials(mode, &checks)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
