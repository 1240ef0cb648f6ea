//! The lab on machines that it does not run on: their processors and caches are mounted over the
//! kernel's files, for one process and its children.

use std::process::{ExitCode, Output};

use hugekit_invented_machines::{Files, MACHINES, Machine};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;

fn main() -> ExitCode {
    // One after the other: two runs would both find the same reserved page of 1 GiB free, and one could not map it.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trials = MACHINES.into_iter().filter(|machine| machine.l1d > 0).map(|machine| {
        let name = format!("a_run_on_{}", machine.name);
        let files = machine.files().expect("a temporary folder");
        let may_mount = files.over_the_kernels("true", &[]);
        if may_mount
            .is_some_and(|mut command| command.status().is_ok_and(|status| status.success()))
        {
            return Trial::test(name, move || run_on(machine));
        }
        let reason = "no such files, or no right to mount";
        Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn lab(files: &Files, arguments: &str) -> Result<Output, Failed> {
    let words: Vec<&str> = arguments.split(' ').collect();
    let command = files.over_the_kernels(env!("CARGO_BIN_EXE_hugekit-lab"), &words);
    let mut command = command.ok_or("the files were there before")?;
    command.env("XDG_DATA_HOME", files.path());
    Ok(command.env("RUST_BACKTRACE", "1").output()?)
}

fn assert_success(output: &Output, what: &str) {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

fn run_on(machine: Machine) -> Result<(), Failed> {
    let files = machine.files()?;
    let run = "demand fault snapshot --quick --memory 16MiB --rounds 2 --json -";
    let output = lab(&files, run)?;
    let record: Value = serde_json::from_slice(&output.stdout)?;
    let sizes = [machine.l1d, machine.l2, machine.llc];
    assert_eq!(record["machine"]["cache_bytes"], Value::from(sizes.to_vec()));
    for experiment in record["experiments"].as_array().expect("it has some") {
        assert!(experiment["failures"].is_null(), "{}", experiment["failures"]);
        assert!(!experiment["cases"].as_array().expect("it has some").is_empty());
    }
    assert_success(&output, run);
    for look in ["--show last", "--list"] {
        let output = lab(&files, look)?;
        assert_success(&output, look);
        let text = String::from_utf8(output.stdout)?;
        let broken = |line: &&str| line.chars().count() > 80 && !line.starts_with("    > ");
        assert_eq!(text.lines().find(broken), None, "{look}");
    }
    Ok(())
}
