//! Settings that `--setup` changes, and a run that is interrupted meanwhile.
//!
//! What is changed here is a file of ours, mounted over the kernel's for this process alone: the
//! machine's own settings may be others' to change while this runs.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let setting = folder.path().join("enabled");
    fs::write(&setting, "always madvise [never]").expect("a file in it");
    let may_mount = among_own_mounts(&mount(&setting)).output();
    let trial = if may_mount.is_ok_and(|output| output.status.success()) {
        Trial::test("an_interrupt_puts_settings_back", move || interrupted(&setting))
    } else {
        let name =
            "[skipped: this process may not mount] settings::an_interrupt_puts_settings_back";
        Trial::test(name, || Ok(())).with_ignored_flag(true)
    };
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

fn mount(setting: &Path) -> String {
    format!("mount --bind '{}' {ENABLED}", setting.display())
}

fn among_own_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]);
    command
}

fn interrupted(setting: &Path) -> Result<(), Failed> {
    let program = assert_cmd::cargo::cargo_bin("hugekit");
    let run = "lab stores --setup --memory 64MiB --rounds 1000000 --no-record";
    let script = format!("{} && exec '{}' {run}", mount(setting), program.display());
    let mut child = among_own_mounts(&script).stdout(Stdio::piped()).spawn()?;
    while fs::read_to_string(setting)? != "madvise" {
        assert!(child.try_wait()?.is_none(), "it ended early");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status()?.success());
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8(output.stdout)?.contains("Summary"));
    assert_eq!(fs::read_to_string(setting)?, "never");
    Ok(())
}
