//! What is asked of kernels before some release, on the kernel that is here: what is newer is withheld, and the
//! library does as it would there.

use anyhow::Result;

use crate::faults::INJECTION;
use crate::testing::{Count, count_tests};

/// Releases to be taken for, and the tests that tell most there: 6.1 has neither pages protected untouched, nor writes
/// noted, nor a page map that is scanned; 6.5 lacks the last two.
const RELEASES: [(&str, &[&str]); 2] =
    [("6.1", &["snapshot", "snapshot_refused", "fork"]), ("6.5", &["snapshot_refused"])];

pub(crate) fn run(count: &mut Count) -> Result<bool> {
    let mut passed = true;
    for (release, tests) in RELEASES {
        println!("as on Linux {release}:");
        let mut cargo = crate::command(&["test", "--package", "hugekit", "--no-fail-fast"]);
        cargo.args(["--features", INJECTION]);
        tests.iter().for_each(|test| {
            cargo.args(["--test", test]);
        });
        passed &= count_tests(cargo.env("HUGEKIT_AS_LINUX", release), count)?;
    }
    Ok(passed)
}
