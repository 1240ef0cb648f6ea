//! A broker and its clients, as processes: what is leased, what is refused, and what an attack costs others.
//!
//! On base pages, which any machine has, and on reserved huge pages where there are enough.

mod attacks;
mod command;
mod daemon;
mod ends;
mod floods;
mod freezes;
mod gate;
mod images;
mod leases;
mod liars;
mod loads;
mod machines;
mod payers;
mod qemu;
mod refusals;
mod template;
mod wrapper;

use hugekit::Pool;
use hugekit::pool::Backing;
use hugekit_testing::backings::gigantic;
use hugekit_testing::control_group::{ControlGroup, controller};
use hugekit_testing::trials::{self, unless_lacking};
use libtest_mimic::{Arguments, Trial};

/// A check, given what units are made of.
type Check = (&'static str, fn(Backing));

/// Bytes of a unit.
const UNIT: usize = 4 << 20;

/// Units that the tests of one backing have at once, at most.
const UNITS: usize = 16;

fn main() {
    let mut arguments = Arguments::from_args();
    // Tests share the machine's huge pages, and what is free of them is looked at.
    arguments.test_threads = Some(1);
    let checks =
        [leases::CHECKS, refusals::CHECKS, ends::CHECKS, attacks::CHECKS, machines::CHECKS]
            .concat();
    let mut trials = self::trials(Backing::Base, &checks);
    trials.extend(self::trials(Backing::Hugetlb2M, &checks));
    trials.extend(self::trials(Backing::Hugetlb2M, ends::CHECKS_OF_HUGE_PAGES));
    trials.extend(self::trials(
        Backing::Base,
        &[
            liars::CHECKS,
            command::CHECKS,
            wrapper::CHECKS,
            attacks::CHECKS_OF_ONE,
            freezes::CHECKS_OF_ONE,
            machines::CHECKS_OF_ONE,
            images::CHECKS,
            loads::CHECKS,
        ]
        .concat(),
    ));
    trials.extend(needing(not_root(), Backing::Base, floods::CHECKS));
    for backing in [Backing::Base, Backing::Hugetlb2M] {
        trials.extend(needing(not_root(), backing, refusals::CHECKS_OF_ROOT));
    }
    trials.extend(needing(not_root(), Backing::Base, machines::CHECKS_OF_ROOT));
    trials.extend(needing(not_root(), Backing::Base, images::CHECKS_OF_ROOT));
    let of_thp = [machines::CHECKS_OF_THP, leases::CHECKS].concat();
    trials.extend(self::trials(Backing::Thp, &of_thp));
    trials.extend(needing(ControlGroup::lacking(""), Backing::Base, payers::CHECKS_OF_FROZEN));
    trials.extend(needing(
        ControlGroup::lacking("memory"),
        Backing::Base,
        payers::CHECKS_OF_MEMORY,
    ));
    trials.extend(needing(ControlGroup::lacking("memory"), Backing::Base, loads::CHECKS_OF_MEMORY));
    for backing in gigantic() {
        trials.extend(self::trials(backing, machines::CHECKS_OF_GIGANTIC));
    }
    let without_qemu = qemu::lacking();
    trials.extend(needing(without_qemu.clone(), Backing::Base, template::CHECKS));
    for backing in [Backing::Base, Backing::Hugetlb2M] {
        trials.extend(needing(without_qemu.clone(), backing, qemu::CHECKS));
        trials.extend(needing(without_qemu.clone(), backing, wrapper::CHECKS_OF_QEMU));
        let without_groups = ControlGroup::lacking(controller(backing));
        trials.extend(needing(without_groups, backing, payers::CHECKS));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Why this test cannot have processes and threads of other users.
fn not_root() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then(|| "only root may connect as other users".to_owned())
}

fn trials(backing: Backing, checks: &[Check]) -> Vec<Trial> {
    let pool = Pool::builder(UNIT * UNITS).backing(backing).strict(true);
    let lacking = pool.populate_on_allocation(true).build().err().map(|error| error.to_string());
    let trial = |check| unless_lacking(trial(backing, check), lacking.as_deref());
    checks.iter().map(trial).collect()
}

fn trial(backing: Backing, &(name, check): &Check) -> Trial {
    let label = format!("{backing:?}::").to_lowercase();
    trials::marked(&label, name, move || trials::completion(|| check(backing)))
}

/// Trials that need something else beside the backing.
fn needing(lacking: Option<String>, backing: Backing, checks: &[Check]) -> Vec<Trial> {
    let trials = trials(backing, checks).into_iter();
    trials.map(|trial| unless_lacking(trial, lacking.as_deref())).collect()
}
