//! A broker and its clients, as processes: what is leased, what is refused, and what an attack costs others.
//!
//! On base pages, which any machine has, and on reserved huge pages where there are enough.

mod attacks;
mod command;
mod daemon;
mod ends;
mod floods;
mod freezes;
mod group;
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
use libtest_mimic::{Arguments, Completion, Trial};

use group::Group;

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
    let mut trials = trials(Backing::Base, &checks);
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
    trials.extend(needing(floods::lacking(), Backing::Base, floods::CHECKS));
    let of_thp = [machines::CHECKS_OF_THP, leases::CHECKS].concat();
    trials.extend(self::trials(Backing::Thp, &of_thp));
    trials.extend(needing(Group::lacking(""), Backing::Base, payers::CHECKS_OF_FROZEN));
    trials.extend(needing(Group::lacking("memory"), Backing::Base, payers::CHECKS_OF_MEMORY));
    trials.extend(needing(Group::lacking("memory"), Backing::Base, loads::CHECKS_OF_MEMORY));
    trials.extend(self::trials(Backing::Hugetlb1G, machines::CHECKS_OF_GIGANTIC));
    let without_qemu = qemu::lacking();
    trials.extend(needing(without_qemu.clone(), Backing::Base, template::CHECKS));
    for backing in [Backing::Base, Backing::Hugetlb2M] {
        trials.extend(needing(without_qemu.clone(), backing, qemu::CHECKS));
        trials.extend(needing(without_qemu.clone(), backing, wrapper::CHECKS_OF_QEMU));
        let without_groups = Group::lacking(group::controller(backing));
        trials.extend(needing(without_groups, backing, payers::CHECKS));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(backing: Backing, checks: &[Check]) -> Vec<Trial> {
    let pool = Pool::builder(UNIT * UNITS).backing(backing).strict(true);
    let lacking = pool.populate_on_allocation(true).build().err().map(|error| error.to_string());
    let trial = |check| unless_lacking(trial(backing, check), lacking.as_ref());
    checks.iter().map(trial).collect()
}

fn trial(backing: Backing, &(name, check): &Check) -> Trial {
    // `[nightly: REASON] ` stays the beginning.
    let (slow, name) = name.split_at(name.find("] ").map_or(0, |end| end + 2));
    let name = format!("{slow}{}::{name}", format!("{backing:?}").to_lowercase());
    let checks = move || {
        check(backing);
        Ok(())
    };
    Trial::test(name, checks).with_ignored_flag(!slow.is_empty())
}

/// Trials that need something else beside the backing.
fn needing(lacking: Option<String>, backing: Backing, checks: &[Check]) -> Vec<Trial> {
    let trials = trials(backing, checks).into_iter();
    trials.map(|trial| unless_lacking(trial, lacking.as_ref())).collect()
}

fn unless_lacking(trial: Trial, lacking: Option<&String>) -> Trial {
    match lacking {
        None => trial,
        Some(reason) => {
            let reason = reason.clone();
            Trial::ignorable_test(trial.name(), move || Ok(Completion::ignored_with(reason)))
        }
    }
}
