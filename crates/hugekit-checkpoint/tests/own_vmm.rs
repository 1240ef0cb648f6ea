//! Guests of a VMM that is not Firecracker are saved, restored and forked across processes.

use std::process::Command;

#[test]
fn guests_of_another_vmm_end_as_one_that_was_never_paused() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--package", "hugekit-checkpoint", "--example", "own_vmm"]);
    let output = cargo.output().expect("cargo can be started");
    let print = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{print}");
    if print.starts_with("skipped") {
        return;
    }
    assert!(print.ends_with("4 guests ended exactly as one that was never paused\n"), "{print}");
}
