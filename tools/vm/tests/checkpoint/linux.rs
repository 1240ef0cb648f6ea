//! A Linux guest: it has a clock of KVM's, steal time and page faults that its host may answer later.
//!
//! It runs where a Linux kernel boots in Firecracker: on a machine with hardware virtualization, or within the guest
//! `nested` of `cargo xtask fleet`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hugekit_guests::{Firecracker, Serial, Snapshot, lacking};
use hugekit_vm::checkpoint::checkpoint;
use libtest_mimic::{Completion, Trial};
use serde_json::json;
use tempfile::TempDir;

use crate::family::fork_vm;
use crate::proxy::{Proxy, also_saving_to};
use crate::scene::Scene;

/// A folder with `vmlinux`, and an `initrd` whose first process prints lines of this form, again and again: `tick`, a
/// number, `same` if a sum of its memory is what it was, and its uptime in seconds.
const VARIABLE: &str = "HUGEKIT_LINUX";

const MIB: u64 = 192;

/// A kernel that is emulated twice boots within a fraction of this.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

pub(crate) fn trials() -> Vec<Trial> {
    let trial = Trial::ignorable_test("linux::guest_is_restored_saved_and_forked", || {
        let missing = || format!("{VARIABLE} names no folder with a Linux kernel");
        Ok(match (lacking(), env::var_os(VARIABLE).map(PathBuf::from)) {
            (Some(reason), _) => Completion::ignored_with(reason),
            (None, None) => Completion::ignored_with(missing()),
            (None, Some(files)) => {
                restored_saved_and_forked(&files);
                Completion::Completed
            }
        })
    });
    vec![hugekit_testing::trials::nightly("a kernel boots", trial)]
}

/// A line of the guest.
#[derive(Debug)]
struct Tick {
    number: u64,
    uptime: f64,
}

/// Its memory has not changed.
fn tick(serial: &mut Serial) -> Tick {
    let line = serial.line_within("tick ", LONGEST_WAIT).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let [_, number, "same", uptime] = words[..] else { panic!("{line}") };
    Tick { number: number.parse().unwrap(), uptime: uptime.parse().unwrap() }
}

/// A guest goes on where it was: neither its work nor its clock goes back, or far ahead.
fn check_goes_on(serial: &mut Serial, before: &Tick) -> Tick {
    tick(serial);
    let now = tick(serial);
    assert!(now.number > before.number, "{now:?} after {before:?}");
    let passed = now.uptime - before.uptime;
    assert!((0.0..LONGEST_WAIT.as_secs_f64()).contains(&passed), "{now:?} after {before:?}");
    now
}

fn saved_by_stock(files: &Path) -> (TempDir, Tick) {
    let folder = TempDir::new().unwrap();
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    let machine = json!({"vcpu_count": 1, "mem_size_mib": MIB});
    origin.put("/machine-config", &machine).unwrap();
    let source = json!({
        "kernel_image_path": files.join("vmlinux"),
        "initrd_path": files.join("initrd"),
        "boot_args": "console=ttyS0 reboot=k panic=1 pci=off quiet",
    });
    origin.put("/boot-source", &source).unwrap();
    origin.put("/actions", &json!({"action_type": "InstanceStart"})).unwrap();
    tick(&mut origin.serial);
    let last = tick(&mut origin.serial);
    origin.pause().unwrap();
    origin.create("Full", &Snapshot::in_folder(folder.path())).unwrap();
    (folder, last)
}

fn restored_saved_and_forked(files: &Path) {
    let (folder, last) = saved_by_stock(files);
    let mut scene = Scene::in_folder(folder);
    let last = check_goes_on(&mut scene.vmm.serial, &last);

    let stock = scene.folder.path().join("stock");
    let proxy = Proxy::start(&scene.api(), also_saving_to(&stock));
    checkpoint(&scene.options_through(&proxy.socket)).unwrap();
    let bytes = [fs::read(&stock).unwrap(), fs::read(scene.saved().memory).unwrap()];
    assert_eq!(bytes[1].len() as u64, MIB << 20);
    assert!(bytes[0] == bytes[1], "bytes differ from a stock snapshot of the same pause");
    let last = check_goes_on(&mut scene.vmm.serial, &last);

    let mut restored = Firecracker::start(scene.folder.path(), "restored").unwrap();
    restored.load_by_file(&scene.saved(), &scene.saved().memory, true).unwrap();
    tick(&mut restored.serial);
    drop(restored);

    let (mut children, _) = fork_vm(&scene.api(), &["a", "b"]).unwrap();
    for child in &mut children {
        check_goes_on(&mut child.serial, &last);
    }
    drop(children);
    check_goes_on(&mut scene.vmm.serial, &last);
}
