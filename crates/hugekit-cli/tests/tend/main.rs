//! `hugekit tend` on programs of the test's own.
#![allow(unsafe_code)]

mod fuse;
mod hostile;
mod log;
mod page;
mod passes;
mod program;
mod running;

use hugekit_testing::trials::trials;
use libtest_mimic::Arguments;

fn main() {
    let all = [hostile::CHECKS, log::CHECKS, page::CHECKS, passes::CHECKS, program::CHECKS];
    let trials = all.into_iter().flat_map(|checks| trials(checks, None));
    let mut arguments = Arguments::from_args();
    // One test finds the processes of all others.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
