//! The tests that run unless more is asked for: the library's, without those that take long.

use anyhow::{Context, Result};
use serde_json::Value;

use super::count::Count;
use super::count_tests;

const PACKAGE: &str = "hugekit";

/// Test programs that watch chance, or try every instruction: each takes as long as half of the others together.
const LONG_PROGRAMS: [&str; 11] = [
    "broken_memory",
    "failed_memory",
    "learning",
    "publish_order",
    "routines",
    "snapshot_order",
    "snapshot_refused",
    "snapshot_shortage",
    "snapshot_signals",
    "snapshot_unmapped",
    "state",
];

/// Parts of the names of tests that take seconds each, because they wait for threads to meet.
const LONG_TESTS: [&str; 5] = [
    "beside_what_owners_do",
    "come_and_go",
    "copy_that_has_ended",
    "racing_writers",
    "under_writers",
];

pub(super) fn run(count: &mut Count) -> Result<bool> {
    let mut cargo = crate::command(&["test", "--package", PACKAGE, "--no-fail-fast", "--lib"]);
    cargo.args(short()?.iter().flat_map(|test| ["--test", test]));
    cargo.arg("--").args(LONG_TESTS.iter().flat_map(|test| ["--skip", test]));
    count_tests(&mut cargo, count)
}

/// The names of the library's tests, without the long ones and those that need a feature.
fn short() -> Result<Vec<String>> {
    let metadata = crate::metadata()?;
    let is_ours = |package: &&Value| package["name"] == PACKAGE;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let package = packages.find(is_ours).context("the library is in the workspace")?;
    let targets = package["targets"].as_array().into_iter().flatten();
    let tests = targets.filter(|target| {
        target["kind"][0] == "test" && target["required-features"].as_array().is_none()
    });
    let names = tests.filter_map(|test| test["name"].as_str());
    Ok(names.filter(|name| !LONG_PROGRAMS.contains(name)).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_there_and_what_needs_a_feature_is_left_out() {
        let tests = short().unwrap();
        assert!(tests.iter().any(|test| test == "pool"), "{tests:?}");
        assert!(!tests.iter().any(|test| test == "refused_calls"), "{tests:?}");
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = folder.with_file_name("crates").join(PACKAGE).join("tests");
        for test in LONG_PROGRAMS {
            let file = folder.join(test).with_extension("rs");
            assert!(file.exists() || folder.join(test).join("main.rs").exists(), "{test}");
        }
    }
}
