//! The command on machines that it does not run on: their processors and caches are mounted over the
//! kernel's files, for one process and its children.

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use hugekit_machines::{MACHINES, Machine};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

/// What is mounted where the machine has it.
const MOUNTED: [&str; 2] = ["proc/cpuinfo", "sys/devices/system/cpu/cpu0/cache"];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    let may_mount = may_mount.is_ok_and(|output| output.status.success())
        && MOUNTED.iter().all(|path| Path::new("/").join(path).exists());
    let described = MACHINES.into_iter().filter(|machine| machine.l1d > 0);
    let trials = described.map(|machine| {
        let name = format!("a_run_on_{}", machine.name);
        if may_mount {
            return Trial::test(name, move || run_on(machine));
        }
        let name = format!("[skipped: this process may not mount] machines::{name}");
        Trial::test(name, || Ok(())).with_ignored_flag(true)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn hugekit(files: &Path, arguments: &str) -> Result<Output, Failed> {
    let mount = |path: &str| format!("mount --bind '{}/{path}' /{path}", files.display());
    let script = format!(
        "{} && exec '{}' {arguments}",
        MOUNTED.map(mount).join(" && "),
        env!("CARGO_BIN_EXE_hugekit")
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &script]).env("HUGEKIT_PROFILE", "");
    let output = command.env("XDG_DATA_HOME", files).env("RUST_BACKTRACE", "1").output()?;
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

fn run_on(machine: Machine) -> Result<(), Failed> {
    let files = machine.files()?;
    let run = "lab stores demand fault cow snapshot --quick --memory 128MiB --rounds 2 --json -";
    let record: Value = serde_json::from_slice(&hugekit(files.path(), run)?.stdout)?;
    let sizes = [machine.l1d, machine.l2, machine.llc];
    assert_eq!(record["machine"]["cache_bytes"], Value::from(sizes.to_vec()));
    for experiment in record["experiments"].as_array().expect("it has some") {
        assert!(experiment["failures"].is_null(), "{}", experiment["failures"]);
        assert!(!experiment["cases"].as_array().expect("it has some").is_empty());
    }
    for look in ["lab --show last", "lab --list", "doctor"] {
        let text = String::from_utf8(hugekit(files.path(), look)?.stdout)?;
        let broken = |line: &&str| line.chars().count() > 80 && !line.starts_with("    > ");
        assert_eq!(text.lines().find(broken), None, "{look}");
    }
    Ok(())
}
