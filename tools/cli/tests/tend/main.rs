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

/// `nohup` and shells have programs ignore signals that these tests send.
fn have_signals_end_programs() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: nothing of this process handles them.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn main() {
    have_signals_end_programs();
    let all = [hostile::CHECKS, log::CHECKS, page::CHECKS, passes::CHECKS, program::CHECKS];
    let trials = all.into_iter().flat_map(|checks| trials(checks, None));
    let mut arguments = Arguments::from_args();
    // One test finds the processes of all others.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
