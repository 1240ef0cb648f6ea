//! Other releases of Firecracker than the one that all tests run with.

use std::env;
use std::ffi::OsString;
use std::process::{Command, Stdio};

use libtest_mimic::{Completion, Failed, Trial};

/// The programs, separated by colons.
const VARIABLE: &str = "HUGEKIT_FIRECRACKERS";

/// What depends on the release: the layout of memory, the files of a snapshot, the API, the devices.
const TRIALS: &[&str] = &[
    "base::memory_is_that_of_a_stock_snapshot_of_the_same_pause",
    "base::output_restores_by_file_and_by_pager_while_the_vm_writes",
    "base::series_leads_to_stock_snapshots_of_the_same_pauses",
    "large::memory_of_two_regions_is_saved",
    "large::child_with_two_regions_is_whole_and_can_be_forked",
    "forks::base::children_are_saved_and_forked_again",
    "clones::base::each_clone_has_all_memory_for_itself",
    "vsock::events_of_each_save_are_in_the_saved_memory",
    "devices::each_clone_has_a_copy_of_the_disk",
    "devices::children_have_the_disk_of_the_pause",
    "devices::clones_that_would_write_one_disk_are_refused",
    "devices::clones_have_taps_of_their_own",
];

pub(crate) fn trials() -> Vec<Trial> {
    let each = Trial::ignorable_test("releases::each_release_is_saved_forked_and_cloned", || {
        let Some(programs) = env::var_os(VARIABLE).filter(|programs| !programs.is_empty()) else {
            return Ok(Completion::ignored_with(format!("{VARIABLE} names no other releases")));
        };
        env::split_paths(&programs).try_for_each(|program| check(&program.into_os_string()))?;
        Ok(Completion::Completed)
    });
    vec![hugekit_testing::trials::nightly("it runs tests with each release", each)]
}

/// Runs this program again, with the release in place of the usual one.
fn check(program: &OsString) -> Result<(), Failed> {
    for trial in TRIALS {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--exact", trial, "--nocapture"]).env("HUGEKIT_FIRECRACKER", program);
        let output = command.env_remove(VARIABLE).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !text.contains("1 passed") {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {trial}: {text}{errors}", program.display()).into());
        }
    }
    Ok(())
}
