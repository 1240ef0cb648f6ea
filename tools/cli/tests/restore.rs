//! `hugekit restore` as users start it: a stock Cloud Hypervisor runs a VM from an image of a broker.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::cloud_hypervisor::{lacking, snapshot_for};
use hugekit_guests::{CloudHypervisor, Request};
use hugekit_testing::processes::Killed;
use hugekit_testing::trials::skipped;
use serde_json::{Value, json};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 64 * MIB;
const WRITTEN: Request = Request::Write { start: 8 * MIB, len: 32 * MIB, seed: 7 };
const DIFFERENT: Request = Request::Verify { start: 8 * MIB, len: 32 * MIB, seed: 7 };

fn hugekit(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("hugekit"));
    command.args(arguments);
    command
}

/// A broker that only holds images.
fn broker(socket: &Path) -> Killed {
    let mut command = hugekit(&["broker", "--socket"]);
    let child = command.arg(socket).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while hugekit_lease::status(socket).is_err() {
        assert!(Instant::now() < until, "the broker does not listen");
        sleep(Duration::from_millis(5));
    }
    Killed(child)
}

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn vm_runs_from_an_image_of_a_broker() {
    if let Some(reason) = lacking() {
        skipped(reason);
        return;
    }
    let folder = TempDir::new().unwrap();
    let (socket, snapshot) = (folder.path().join("broker"), folder.path().join("snapshot"));
    let mut origin = CloudHypervisor::start(folder.path(), "origin").unwrap();
    origin.boot(&json!({"size": MEMORY})).unwrap().ask(WRITTEN).unwrap();
    origin.save(&snapshot).unwrap();
    drop(origin);
    let _broker = broker(&socket);
    let mut load = hugekit(&["image", "load", "--name", "vm", "--socket"]);
    succeeded(load.arg(&socket).arg(snapshot.join("memory-ranges")));
    refuse_unseen(folder.path(), &socket, &snapshot);
    let own = snapshot_for(folder.path(), "clone", &snapshot).unwrap();
    let mut clone = CloudHypervisor::start(folder.path(), "clone").unwrap();
    let mut restore = hugekit(&["restore", "--image", "vm", "--resume", "--json"]);
    restore.arg("--broker").arg(&socket).arg("--snapshot").arg(&own);
    let output = succeeded(restore.arg("--cloud-hypervisor").arg(clone.api()));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["bytes"], &said["resumed"]), (&json!(MEMORY), &json!(true)), "{said}");
    let note = said["notes"][0].as_str().unwrap();
    assert!(note.contains(&format!("reboots with {}.memory", clone.api().display())), "{note}");
    assert_eq!(clone.serial().unwrap().ask(DIFFERENT).unwrap(), 0, "words differ");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", clone.pid())).unwrap();
    assert!(maps.lines().any(|line| line.contains("hugekit:vm") && line.contains("rw-p")));
}

/// A command in a PID namespace of its own does not see the VMM.
fn refuse_unseen(folder: &Path, broker: &Path, snapshot: &Path) {
    if !rustix::process::geteuid().is_root() {
        skipped("only root makes PID namespaces");
        return;
    }
    let vmm = CloudHypervisor::start(folder, "unseen").unwrap();
    let mut restore = Command::new("unshare");
    restore.args(["--pid", "--fork"]).arg(assert_cmd::cargo::cargo_bin("hugekit"));
    restore.args(["restore", "--image", "vm", "--broker"]).arg(broker).arg("--snapshot");
    let output = restore.arg(snapshot).arg("--cloud-hypervisor").arg(vmm.api()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("PID namespace") && said.contains("remedy: "), "{said}");
}

#[test]
fn folder_that_is_no_snapshot_is_refused_with_its_path() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let mut restore = hugekit(&["restore", "--cloud-hypervisor", "none", "--snapshot"]);
    let output = restore.arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("config.json is no file of a snapshot"), "{said}");
    assert!(!output.status.success());
}
