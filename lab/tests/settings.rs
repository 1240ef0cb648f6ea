//! Settings that `--setup` changes, and a run that is interrupted meanwhile.
//!
//! The setting that is changed here is a file of ours, mounted over the kernel's for this process alone: the
//! machine's own settings may be others' to change while this runs.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use hugekit_testing::processes::signal;
use hugekit_testing::trials::{marked, unless_lacking};
use libtest_mimic::{Arguments, Completion, Failed};
use rustix::process::Signal;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// A check, given the file that is mounted over the kernel's.
type Check = fn(&Path) -> Result<(), Failed>;

const CHECKS: [(&str, Check); 5] = [
    ("an_interrupt_puts_settings_back", interrupted),
    (
        "[nightly: it sends signals at many moments] a_signal_at_any_moment_puts_settings_back",
        at_any_moment,
    ),
    ("what_a_killed_run_changed_is_put_back_and_said_by_the_next_start", killed),
    ("two_labs_take_turns", two_at_once),
    ("lab_that_waits_for_a_killed_one_puts_its_settings_back", killed_while_another_waits),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let setting = folder.path().join("enabled");
    fs::write(&setting, NEVER).expect("a file in it");
    let may_mount = among_own_mounts(&mount(&setting)).output();
    let may_mount = may_mount.is_ok_and(|output| output.status.success());
    let trials = CHECKS.into_iter().map(|(name, check)| {
        let setting = folder.path().join(name);
        let trial = marked("", name, move || {
            fs::write(&setting, NEVER)?;
            check(&setting).map(|()| Completion::Completed)
        });
        unless_lacking(trial, (!may_mount).then_some("this process may not mount"))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

const NEVER: &str = "always madvise [never]";

/// The setting, and a `/run` of their own.
fn mount(setting: &Path) -> String {
    format!("mount --bind '{}' {ENABLED} && mount -t tmpfs none /run", setting.display())
}

fn among_own_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", script]);
    command
}

fn program() -> String {
    assert_cmd::cargo::cargo_bin("hugekit-lab").display().to_string()
}

const RUN: &str = "stores --routine memset --setup --memory 64MiB --no-record --rounds";

/// A run that does not end by itself, as the only process of its script.
fn endless(setting: &Path) -> std::io::Result<std::process::Child> {
    let script = format!("{} && exec '{}' {RUN} 1000000", mount(setting), program());
    among_own_mounts(&script).stdout(Stdio::piped()).spawn()
}

fn interrupted(setting: &Path) -> Result<(), Failed> {
    for sent in [Signal::INT, Signal::TERM, Signal::HUP] {
        fs::write(setting, NEVER)?;
        let mut child = endless(setting)?;
        while fs::read_to_string(setting)? != "madvise" {
            assert!(child.try_wait()?.is_none(), "it ended early");
            thread::sleep(Duration::from_millis(10));
        }
        signal(child.id(), sent);
        let output = child.wait_with_output()?;
        assert_eq!(output.status.code(), Some(130), "{sent:?}");
        assert!(String::from_utf8(output.stdout)?.contains("Summary"));
        assert_eq!(fs::read_to_string(setting)?, "never");
    }
    Ok(())
}

/// Before anything is changed, while it is, and afterwards.
fn at_any_moment(setting: &Path) -> Result<(), Failed> {
    for (moment, sent) in
        [Signal::TERM, Signal::INT, Signal::HUP].into_iter().cycle().take(15).enumerate()
    {
        let mut child = endless(setting)?;
        thread::sleep(Duration::from_millis(4 * moment as u64 * moment as u64));
        // Again and again: the script's shell does not hear one that comes while it waits for `mount`.
        while child.try_wait()?.is_none() {
            signal(child.id(), sent);
            thread::sleep(Duration::from_millis(200));
        }
        let left = fs::read_to_string(setting)?;
        assert!(left == NEVER || left == "never", "{moment} {sent:?}: {left}");
    }
    Ok(())
}

/// The output of a script, which has the program as `$lab`. Its children end with it, and it after a minute.
fn output_of(setting: &Path, script: &str) -> Result<String, Failed> {
    let end = "trap 'kill -KILL $(jobs -p) 2> /dev/null || true' EXIT; set -e";
    let script = format!("{} && lab='{}' && {end}; {script}", mount(setting), program());
    let output = Command::new("timeout")
        .args(["--kill-after=1", "60", "unshare", "--mount", "bash", "-c", &script])
        .env("setting", setting)
        .output()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (said, printed) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{}\n{said}\n{printed}", output.status);
    Ok(said + &printed)
}

/// Waits until a run has changed the setting.
const CHANGED: &str = r#"until [ "$(cat "$setting")" = madvise ]; do sleep 0.01; done"#;

/// Waits until the second run has the file of turns open, and has slept several times since.
const WAITS: &str = r#"slept() { awk '/^voluntary_ctxt_switches/ { print $2 }' /proc/$second/status; }
    waits() {
        until ls -l /proc/$second/fd | grep -q '/run/hugekit/settings.lock'; do sleep 0.01; done
        before=$(slept); until [ "$(slept)" -ge $((before + 5)) ]; do sleep 0.01; done
    }"#;

fn killed(setting: &Path) -> Result<(), Failed> {
    let script = format!(
        r#""$lab" {RUN} 1000000 > /dev/null & first=$!; {CHANGED}
        kill -KILL $first; wait $first || true; [ "$(cat "$setting")" = madvise ]
        "$lab" {RUN} 2; ls /run/hugekit"#
    );
    let said = output_of(setting, &script)?;
    assert!(said.contains("of a `--setup` that was killed: "), "{said}");
    assert!(said.contains("enabled is never again"), "{said}");
    assert!(said.contains("memset → auto") && !said.contains("journal"), "{said}");
    assert_eq!(fs::read_to_string(setting)?, "never");
    Ok(())
}

/// While the second one waits, and before it does or not.
fn killed_while_another_waits(setting: &Path) -> Result<(), Failed> {
    let script = format!(
        r#"{WAITS}
        for moment in true waits; do
            "$lab" {RUN} 1000000 > /dev/null & first=$!; {CHANGED}
            "$lab" {RUN} 2 > /dev/null 2> /run/second & second=$!; $moment
            kill -KILL $first; wait $first || true; wait $second
            [ "$(cat "$setting")" = never ]; [ ! -e /run/hugekit/settings.journal ]
            cat /run/second
        done"#
    );
    let said = output_of(setting, &script)?;
    assert_eq!(said.matches("of a `--setup` that was killed: ").count(), 2, "{said}");
    Ok(())
}

/// The second one looks several times whether it is its turn, and does not begin.
fn two_at_once(setting: &Path) -> Result<(), Failed> {
    let script = format!(
        r#"{WAITS}
        "$lab" {RUN} 1000000 > /dev/null & first=$!; {CHANGED}
        "$lab" {RUN} 2 > /run/second & second=$!; waits
        kill -0 $second; [ ! -s /run/second ]; [ "$(cat "$setting")" = madvise ]
        kill -INT $first; wait $first || [ $? = 130 ]; wait $second; cat /run/second"#
    );
    let said = output_of(setting, &script)?;
    assert!(said.contains("memset → auto"), "{said}");
    assert_eq!(fs::read_to_string(setting)?, "never");
    Ok(())
}
