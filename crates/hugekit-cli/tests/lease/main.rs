//! A broker and its clients, as processes: what is leased, what is refused, and what an attack costs others.
//!
//! On base pages, which any machine has, and on reserved huge pages where there are enough.

mod attacks;
mod command;
mod daemon;
mod ends;
mod leases;
mod liars;
mod qemu;
mod refusals;

use hugekit::Pool;
use hugekit::pool::Backing;
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
    let checks = [leases::CHECKS, refusals::CHECKS, ends::CHECKS, attacks::CHECKS].concat();
    let mut trials = trials(Backing::Base, &checks);
    trials.extend(self::trials(Backing::Hugetlb2M, &checks));
    trials.extend(self::trials(Backing::Hugetlb2M, ends::CHECKS_OF_HUGE_PAGES));
    trials.extend(self::trials(
        Backing::Base,
        &[liars::CHECKS, command::CHECKS, attacks::CHECKS_OF_ONE].concat(),
    ));
    let without_qemu = qemu::lacking();
    for backing in [Backing::Base, Backing::Hugetlb2M] {
        let of_qemu = self::trials(backing, qemu::CHECKS).into_iter();
        trials.extend(of_qemu.map(|trial| unless_lacking(trial, without_qemu.as_ref())));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(backing: Backing, checks: &[Check]) -> Vec<Trial> {
    let pool = Pool::builder(UNIT * UNITS).backing(backing).strict(true).build();
    let lacking = pool.err().map(|error| error.to_string());
    let trial = |&(name, check): &Check| {
        let name = format!("{backing:?}::{name}").to_lowercase();
        let trial = Trial::test(name, move || {
            check(backing);
            Ok(())
        });
        unless_lacking(trial, lacking.as_ref())
    };
    checks.iter().map(trial).collect()
}

fn unless_lacking(trial: Trial, lacking: Option<&String>) -> Trial {
    match lacking {
        None => trial,
        Some(reason) => trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
    }
}
