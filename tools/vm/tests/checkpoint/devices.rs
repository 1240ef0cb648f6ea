//! Clones and children of guests with disks and taps: each has its own, or none of them runs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use hugekit_guests::taps::{self, ip};
use hugekit_guests::{Firecracker, Pages, Request, Serial, Snapshot};
use hugekit_testing::processes::happens;
use hugekit_vm::checkpoint::{
    ChildOptions, CloneMemory, CloneOptions, DeviceError, ForkError, ForkOptions, checkpoint, fork,
    start_clones,
};
use hugekit_vm::pager::Source;
use libtest_mimic::{Completion, Trial};
use tempfile::TempDir;

use crate::child;
use crate::family::{ForkedGuest, child_of};
use crate::forks::{check_no_children, processes_with};
use crate::proxy::{request, send};
use crate::scene::{LEN, MEMORY, SEED, START, Scene, trial};

const NAMES: [&str; 2] = ["a", "b"];

/// Bytes of a disk.
const DISK: u64 = 3 << 20;

/// The word that the origin has written to the sector, and those that others write there.
const SECTOR: u64 = 4099;
const FIRST: u64 = 0x1111;
const LATER: u64 = 0x2222;

pub(crate) fn trials() -> Vec<Trial> {
    let base = |name: &str, check: fn()| trial(&format!("devices::{name}"), Pages::Base, check);
    vec![
        base("each_clone_has_a_copy_of_the_disk", copied),
        base("clones_read_one_disk", read_only),
        base("clones_that_would_write_one_disk_are_refused", shared),
        base("one_clone_has_the_disk_while_it_is_as_it_was_saved", in_place),
        base("children_have_the_disk_of_the_pause", forked),
        base("children_that_would_write_the_disk_of_the_vm_are_refused", forked_without),
        base("disk_whose_name_leads_to_another_file_is_refused", replaced),
        base("checkpoint_names_the_disk_and_clones_have_that_of_its_pause", checkpointed),
        base("file_that_exists_is_refused_and_kept", exists),
        base("failed_clones_leave_no_disks", failed),
        base("command_that_is_killed_leaves_no_disks", killed),
        base("field_that_follows_from_other_options_is_refused", fields),
        with_taps("clones_have_taps_of_their_own", own_taps),
        with_taps("clones_without_taps_of_their_own_are_refused", same_taps),
        with_taps("tap_that_is_missing_is_refused_and_not_made", missing_tap),
        with_taps("clones_in_networks_of_their_own_have_taps_of_one_name", networks),
    ]
}

/// A trial in a network of its own, with the taps `tap0` to `tap2`.
fn with_taps(name: &str, check: fn()) -> Trial {
    Trial::ignorable_test(format!("devices::{name}"), move || {
        if let Some(reason) = hugekit_guests::lacking().or_else(taps::lacking) {
            return Ok(Completion::ignored_with(reason));
        }
        taps::with_taps(3, check);
        Ok(Completion::Completed)
    })
}

fn disk(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.img"))
}

/// A snapshot of a guest with these devices, which has written the pattern. `prepare` may ask the guest.
fn origin_with(
    add: impl FnOnce(&Firecracker, &Path),
    prepare: impl FnOnce(&mut Firecracker),
) -> (TempDir, Snapshot) {
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    add(&origin, folder.path());
    origin.boot(MEMORY, Pages::Base).unwrap();
    prepare(&mut origin);
    origin.serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    origin.save(&snapshot).unwrap();
    (folder, snapshot)
}

/// A guest that has written to its disk.
fn origin() -> (TempDir, Snapshot) {
    let add = |origin: &Firecracker, folder: &Path| {
        let file = disk(folder, "data");
        File::create_new(&file).unwrap().set_len(DISK).unwrap();
        origin.add_disk("data", &file, false).unwrap();
    };
    let write = Request::WriteSector { sector: SECTOR, word: FIRST };
    let found = origin_with(add, |origin| assert_eq!(origin.serial.ask(write).unwrap(), FIRST));
    assert_eq!(on_disk(&disk(found.0.path(), "data")), FIRST);
    found
}

/// The word on the disk, by the host.
fn on_disk(file: &Path) -> u64 {
    let mut word = [0; 8];
    let file = File::open(file).unwrap();
    assert_eq!(file.metadata().unwrap().len(), DISK);
    file.read_exact_at(&mut word, SECTOR * 512).unwrap();
    u64::from_le_bytes(word)
}

fn read(serial: &mut Serial) -> u64 {
    serial.ask(Request::ReadSector { sector: SECTOR }).unwrap()
}

fn write(serial: &mut Serial, word: u64) {
    assert_eq!(serial.ask(Request::WriteSector { sector: SECTOR, word }).unwrap(), word);
}

fn child_with_disk(folder: &Path, name: &str) -> (ChildOptions, Serial) {
    let (mut child, serial) = child_of(folder, name);
    child.own.disks.insert("data".to_owned(), disk(folder, name));
    (child, serial)
}

fn source(snapshot: &Snapshot) -> CloneMemory {
    CloneMemory::Copied(Box::new(Source::open(&snapshot.memory).unwrap()))
}

fn clones(
    snapshot: &Snapshot,
    children: Vec<(ChildOptions, Serial)>,
) -> Result<Vec<ForkedGuest>, ForkError> {
    let (children, serials): (Vec<_>, Vec<_>) = children.into_iter().unzip();
    let options = CloneOptions::new(snapshot.state.clone(), children);
    let cloned = start_clones(&options, source(snapshot))?;
    Ok(ForkedGuest::all(cloned.programs, serials, &cloned.report.clones))
}

fn refused(snapshot: &Snapshot, children: Vec<(ChildOptions, Serial)>) -> DeviceError {
    match clones(snapshot, children).map(drop).unwrap_err() {
        ForkError::Device(error) => error,
        error => panic!("{error:?}"),
    }
}

/// Each reads the word, and writes one of its own.
fn check_apart(children: &mut [ForkedGuest], word: u64, folder: &Path) {
    assert_eq!(children.len(), NAMES.len());
    for (child, own) in children.iter_mut().zip(0x7000..) {
        child.check(SEED);
        assert_eq!(read(&mut child.serial), word);
        write(&mut child.serial, own);
    }
    for ((child, own), name) in children.iter_mut().zip(0x7000..).zip(NAMES) {
        assert_eq!(read(&mut child.serial), own);
        assert_eq!(on_disk(&disk(folder, name)), own);
    }
}

fn copied() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let children = NAMES.map(|name| child_with_disk(folder, name)).into();
    let mut clones = clones(&snapshot, children).unwrap();
    check_apart(&mut clones, FIRST, folder);
    assert_eq!(on_disk(&disk(folder, "data")), FIRST);
    let open = fs::read_dir(format!("/proc/{}/fd", clones[0].pid)).unwrap();
    let open: Vec<_> = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect();
    assert!(!open.contains(&disk(folder, "data")), "the disk of the snapshot is open still");
}

fn read_only() {
    let add = |origin: &Firecracker, folder: &Path| {
        let file = File::create_new(disk(folder, "root")).unwrap();
        file.set_len(DISK).unwrap();
        file.write_all_at(&FIRST.to_le_bytes(), SECTOR * 512).unwrap();
        origin.add_disk("root", &disk(folder, "root"), true).unwrap();
    };
    let (folder, snapshot) = origin_with(add, |_| ());
    let folder = folder.path();
    let mut all = clones(&snapshot, NAMES.map(|name| child_of(folder, name)).into()).unwrap();
    for clone in &mut all {
        clone.check(SEED);
        assert_eq!(read(&mut clone.serial), FIRST);
        let write = Request::WriteSector { sector: SECTOR, word: LATER };
        assert_eq!(clone.serial.ask(write).unwrap(), u64::MAX, "the disk is written");
    }
}

fn shared() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let refused = refused(&snapshot, NAMES.map(|name| child_of(folder, name)).into());
    let DeviceError::Shared { first, second, device, option, .. } = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!((&**first, &**second, *option), ("child 1", "child 2", Some("--disk")));
    assert!(device.contains("data.img"), "{device}");
    check_no_children(folder, &NAMES);
    assert_eq!(on_disk(&disk(folder, "data")), FIRST);
}

fn in_place() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let one = |name| clones(&snapshot, vec![child_of(folder, name)]);
    let mut first = one("a").unwrap().remove(0);
    assert_eq!(read(&mut first.serial), FIRST);
    let pid = first.pid;
    let while_it_runs = refused(&snapshot, vec![child_of(folder, "b")]);
    let is = |of: &DeviceError| matches!(of, DeviceError::Written { pid: by, .. } if *by == pid);
    assert!(is(&while_it_runs), "{while_it_runs:?}");
    let copy = refused(&snapshot, vec![child_with_disk(folder, "c")]);
    assert!(is(&copy), "{copy:?}");
    write(&mut first.serial, LATER);
    drop(first);
    let later = refused(&snapshot, vec![child_of(folder, "d")]);
    assert!(matches!(later, DeviceError::Changed { .. }), "{later:?}");
    check_no_children(folder, &["b", "c", "d"]);
    assert!(!disk(folder, "c").exists());
    assert_eq!(on_disk(&disk(folder, "data")), LATER);
}

fn forked() {
    let mut scene = Scene::in_folder(origin().0);
    let folder = scene.folder.path().to_owned();
    write(&mut scene.vmm.serial, LATER);
    let (children, serials): (Vec<_>, Vec<_>) =
        NAMES.map(|name| child_with_disk(&folder, name)).into_iter().unzip();
    let forked = fork(&ForkOptions::new(scene.vm(), children)).unwrap();
    let mut children = ForkedGuest::all(forked.programs, serials, &forked.report.children);
    write(&mut scene.vmm.serial, FIRST);
    check_apart(&mut children, LATER, &folder);
    assert_eq!(read(&mut scene.vmm.serial), FIRST);
    assert_eq!(on_disk(&disk(&folder, "data")), FIRST);
    scene.check_runs_free();
}

fn fork_refused(scene: &Scene, children: Vec<(ChildOptions, Serial)>) -> DeviceError {
    let (children, _serials): (Vec<_>, Vec<_>) = children.into_iter().unzip();
    match fork(&ForkOptions::new(scene.vm(), children)).map(drop).unwrap_err() {
        ForkError::Device(error) => error,
        error => panic!("{error:?}"),
    }
}

fn forked_without() {
    let mut scene = Scene::in_folder(origin().0);
    let folder = scene.folder.path().to_owned();
    let refused = fork_refused(&scene, vec![child_with_disk(&folder, "a"), child_of(&folder, "b")]);
    let names = matches!(&refused, DeviceError::Shared { first, second, option: Some("--disk"), .. }
        if first == "the VM" && second == "child 2");
    assert!(names, "{refused:?}");
    check_no_children(&folder, &NAMES);
    assert!(!disk(&folder, "a").exists());
    write(&mut scene.vmm.serial, LATER);
    scene.check_runs_free();
}

/// Children would open the other file.
fn replaced() {
    let mut scene = Scene::in_folder(origin().0);
    let folder = scene.folder.path().to_owned();
    let (data, moved) = (disk(&folder, "data"), disk(&folder, "moved"));
    fs::rename(&data, &moved).unwrap();
    fs::copy(&moved, &data).unwrap();
    let children = || vec![child_with_disk(&folder, "a")];
    let refused = fork_refused(&scene, children());
    assert!(matches!(refused, DeviceError::Replaced { .. }), "{refused:?}");
    assert!(!disk(&folder, "a").exists());
    write(&mut scene.vmm.serial, LATER);
    assert_eq!((on_disk(&data), on_disk(&moved)), (FIRST, LATER));
    scene.check_runs_free();
}

/// The disk of a checkpoint is the one of its pause, or no clone has it.
fn checkpointed() {
    let mut scene = Scene::in_folder(origin().0);
    let folder = scene.folder.path().to_owned();
    let saved = folder.join("kept.img");
    scene.await_end_of_output();
    scene.vmm.pause().unwrap();
    let report = checkpoint(&scene.options()).unwrap();
    assert!(matches!(&report.unsaved[..], [disk] if disk.contains("data.img")), "{report}");
    assert!(report.to_string().contains("not saved: disk data"), "{report}");
    let keep = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("--preserve=timestamps").args([from, to]).status();
        assert!(copied.unwrap().success());
    };
    keep(&disk(&folder, "data"), &saved);
    scene.vmm.resume().unwrap();
    write(&mut scene.vmm.serial, LATER);
    let snapshot = scene.saved();
    let Scene { vmm, folder: _kept } = scene;
    drop(vmm);
    let newer = refused(&snapshot, vec![child_with_disk(&folder, "c")]);
    assert!(matches!(newer, DeviceError::Changed { .. }), "{newer:?}");
    keep(&saved, &disk(&folder, "data"));
    let mut clones =
        clones(&snapshot, NAMES.map(|name| child_with_disk(&folder, name)).into()).unwrap();
    check_apart(&mut clones, FIRST, &folder);
}

fn exists() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    fs::write(disk(folder, "b"), "kept").unwrap();
    let refused = refused(&snapshot, NAMES.map(|name| child_with_disk(folder, name)).into());
    let names = matches!(&refused, DeviceError::Disk { path, .. } if *path == disk(folder, "b"));
    assert!(names, "{refused:?}");
    assert!(!disk(folder, "a").exists());
    assert_eq!(fs::read_to_string(disk(folder, "b")).unwrap(), "kept");
    check_no_children(folder, &NAMES);
}

fn failed() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let mut children = NAMES.map(|name| child_with_disk(folder, name));
    // Nobody has such a disk.
    children[1].0.own.disks.insert("other".to_owned(), disk(folder, "other"));
    let unknown = refused(&snapshot, children.into());
    assert!(
        matches!(&unknown, DeviceError::Unknown { names, .. } if names == "data"),
        "{unknown:?}"
    );
    let (mut ends, serial) = child_with_disk(folder, "d");
    ends.command = vec!["false".into()];
    let ended = clones(&snapshot, vec![child_with_disk(folder, "c"), (ends, serial)]);
    assert!(matches!(ended.map(drop), Err(ForkError::Ended { number: 2, .. })));
    for name in ["a", "b", "c", "d", "other"] {
        assert!(!disk(folder, name).exists(), "{name} is left");
    }
    check_no_children(folder, &NAMES);
    assert_eq!(on_disk(&disk(folder, "data")), FIRST);
}

/// One clone is complete, and the other never asks for its memory.
fn killed() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let children = [child_with_disk(folder, "a"), child_of(folder, "b")];
    let (mut children, _serials): (Vec<_>, Vec<_>) = children.into_iter().unzip();
    children[1].command = child::answering(&children[1].api);
    let options = CloneOptions::new(snapshot.state.clone(), children.clone());
    let mut cloning = child::start_clones(&options, &snapshot.memory, folder);
    let is_filled = || fs::read(disk(folder, "a")).is_ok_and(|bytes| bytes.len() as u64 == DISK);
    assert!(happens(is_filled), "the disk is not filled");
    cloning.kill().unwrap();
    cloning.wait().unwrap();
    let is_gone = || children.iter().all(|child| processes_with(&child.api).is_empty());
    assert!(happens(is_gone), "clones are left");
    assert!(happens(|| !disk(folder, "a").exists()), "the disk is left");
}

fn fields() {
    let (folder, snapshot) = origin();
    let (mut child, serial) = child_with_disk(folder.path(), "a");
    child.load.insert("network_overrides".to_owned(), Vec::<u8>::new().into());
    let refused = clones(&snapshot, vec![(child, serial)]).map(drop).unwrap_err();
    assert!(matches!(refused, ForkError::Field { field: "network_overrides" }), "{refused:?}");
    assert!(!disk(folder.path(), "a").exists());
}

/// A guest with a network device, and with devices that use no part of the host: entropy, which the kernel of the host
/// gives, and MMDS, whose contents no state has.
fn origin_with_tap() -> (TempDir, Snapshot) {
    let add = |origin: &Firecracker, _: &Path| {
        origin.add_net("eth0", "tap0").unwrap();
        origin.put("/entropy", &serde_json::json!({})).unwrap();
        let mmds = serde_json::json!({"network_interfaces": ["eth0"], "version": "V2"});
        origin.put("/mmds/config", &mmds).unwrap();
        origin.put("/mmds", &serde_json::json!({"key": "secret"})).unwrap();
    };
    origin_with(add, |_| ())
}

fn child_with_tap(folder: &Path, name: &str, tap: &str) -> (ChildOptions, Serial) {
    let (mut child, serial) = child_of(folder, name);
    child.own.net.insert("eth0".to_owned(), tap.to_owned());
    (child, serial)
}

fn check_tap(clone: &ForkedGuest, tap: &str) {
    let config = send(&clone.api, &request("GET", "/vm/config", ""));
    assert!(config.contains(&format!(r#""host_dev_name":"{tap}""#)), "{config}");
}

fn own_taps() {
    let (folder, snapshot) = origin_with_tap();
    let folder = folder.path();
    let children = NAMES.into_iter().zip(["tap1", "tap2"]);
    let children = children.map(|(name, tap)| child_with_tap(folder, name, tap)).collect();
    let mut clones = clones(&snapshot, children).unwrap();
    for (clone, tap) in clones.iter_mut().zip(["tap1", "tap2"]) {
        clone.check(SEED);
        check_tap(clone, tap);
        let mmds = send(&clone.api, &request("GET", "/mmds", ""));
        assert!(mmds.ends_with("{}") && !mmds.contains("secret"), "{mmds}");
    }
}

fn same_taps() {
    let (folder, snapshot) = origin_with_tap();
    let folder = folder.path();
    let children = || vec![child_of(folder, "a"), child_of(folder, "b")];
    let same = refused(&snapshot, children());
    let names = matches!(&same, DeviceError::Shared { device, option: Some("--net"), .. }
        if device.contains("eth0") && device.contains("tap0"));
    assert!(names, "{same:?}");
    check_no_children(folder, &NAMES);
    // Another process has the tap.
    let other = Firecracker::start(folder, "other").unwrap();
    other.add_net("eth0", "tap0").unwrap();
    let busy = clones(&snapshot, vec![child_of(folder, "c")]).map(drop).unwrap_err();
    assert!(busy.remedy().is_some_and(|remedy| remedy.contains("--net")), "{busy:?}");
    check_no_children(folder, &["c"]);
}

fn missing_tap() {
    let (folder, snapshot) = origin_with_tap();
    let folder = folder.path();
    let missing = refused(&snapshot, vec![child_with_tap(folder, "a", "tap9")]);
    assert!(matches!(&missing, DeviceError::NoTap { device, .. } if device.contains("tap9")));
    ip(&["tuntap", "del", "tap0", "mode", "tap"]);
    let gone = refused(&snapshot, vec![child_of(folder, "b")]);
    assert!(matches!(&gone, DeviceError::NoTap { device, .. } if device.contains("tap0")));
    check_no_children(folder, &NAMES);
    let links = Command::new("ip").args(["-br", "link"]).output().unwrap().stdout;
    let links = String::from_utf8(links).unwrap();
    assert!(!links.contains("tap0") && !links.contains("tap9"), "{links}");
}

fn networks() {
    let (folder, snapshot) = origin_with_tap();
    let folder = folder.path();
    let in_network = |name| {
        let (mut child, serial) = child_of(folder, name);
        let script = "ip tuntap add tap0 mode tap && exec \"$@\"";
        let words = ["unshare", "--net", "sh", "-c", script, "sh"];
        child.command.splice(0..0, words.map(Into::into));
        (child, serial)
    };
    let mut clones = clones(&snapshot, NAMES.map(in_network).into()).unwrap();
    for clone in &mut clones {
        clone.check(SEED);
        check_tap(clone, "tap0");
    }
}
