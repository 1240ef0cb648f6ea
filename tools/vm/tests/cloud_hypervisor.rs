//! Stock Cloud Hypervisor, whose guest checks its own memory.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use hugekit_guests::cloud_hypervisor::{lacking, snapshot_for};
use hugekit_guests::taps;
use hugekit_guests::{CloudHypervisor, Firecracker, Request, Serial, pattern_at};
use hugekit_image::Image;
use hugekit_testing::trials::skipped;
use hugekit_vm::cloud_hypervisor::{
    DeviceError, OwnDevices, ReadyMemory, Restore, RestoreError, Snapshot, UnfitMemory,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Memory of the guest, and what it has written before it was saved.
const MEMORY: u64 = 64 * MIB;
const START: u64 = 8 * MIB;
const LEN: u64 = 32 * MIB;
const SEED: u64 = 0x5eed_0000_1234_5678;

/// Whether the test can run; if not, prints why.
fn can_run() -> bool {
    let reason = lacking();
    if let Some(reason) = &reason {
        skipped(reason);
    }
    reason.is_none()
}

/// A snapshot of a guest that has written its pattern, in memory as the API describes it.
fn saved(folder: &Path, memory: &Value) -> PathBuf {
    saved_with(folder, memory, &json!({})).0
}

/// Does the same with devices. The origin is paused still.
fn saved_with(folder: &Path, memory: &Value, devices: &Value) -> (PathBuf, CloudHypervisor) {
    let snapshot = folder.join("snapshot");
    let mut origin = CloudHypervisor::start(folder, "origin").unwrap();
    let mut serial = origin.boot_with(memory, devices).unwrap();
    serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    origin.save(&snapshot).unwrap();
    (snapshot, origin)
}

fn check_bytes(serial: &mut Serial) {
    let free = Firecracker::free_memory();
    assert_eq!(differing(serial, SEED), 0, "words differ");
    let before = Request::NotZero { start: free, len: START - free };
    assert_eq!(serial.ask(before).unwrap(), 0, "words before are not zero");
}

fn differing(serial: &mut Serial, seed: u64) -> u64 {
    serial.ask(Request::Verify { start: START, len: LEN, seed }).unwrap()
}

/// A VM that runs, from a snapshot of which it has its own configuration.
fn restored(
    folder: &Path,
    name: &str,
    snapshot: &Path,
    memory: impl Fn(&Snapshot) -> ReadyMemory,
) -> (CloudHypervisor, Serial) {
    let own = Snapshot::open(snapshot_for(folder, name, snapshot).unwrap()).unwrap();
    let mut clone = CloudHypervisor::start(folder, name).unwrap();
    Restore::new(&own).resume(true).send(clone.api(), &memory(&own)).unwrap();
    let serial = clone.serial().unwrap();
    (clone, serial)
}

/// The guest's memory is a mapping of this file, by huge pages if the file is on them and the kernel
/// has chosen addresses at which they fit.
fn check_mapping(pid: i32, name: &str, huge_of_file: u64) {
    let mapped = Mapped::of(pid, name);
    println!("{mapped:?}; {huge_of_file} bytes of the file are on huge pages");
    assert!(mapped.resident >= LEN, "{mapped:?}");
    if huge_of_file >= LEN && mapped.is_aligned {
        assert!(mapped.huge * 100 >= LEN * 98, "{mapped:?}");
    }
}

/// Bytes of a process in the mappings of a file: resident, and by huge pages.
#[derive(Debug)]
struct Mapped {
    resident: u64,
    huge: u64,
    is_aligned: bool,
}

impl Mapped {
    fn of(pid: i32, name: &str) -> Self {
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let mut mapped = Self { resident: 0, huge: 0, is_aligned: true };
        let mut is_counted = false;
        for line in smaps.lines() {
            let bytes =
                |value: &str| value.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
            match line.split_once(':') {
                Some((first, _)) if first.contains('-') => {
                    is_counted = line.contains(name);
                    mapped.is_aligned &= !is_counted || is_aligned(line);
                }
                Some(("Rss", value)) if is_counted => mapped.resident += bytes(value),
                Some(("ShmemPmdMapped", value)) if is_counted => mapped.huge += bytes(value),
                _ => {}
            }
        }
        mapped
    }
}

/// Whether huge pages of the file begin at huge pages of the process.
fn is_aligned(line: &str) -> bool {
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let offset = rest.split(' ').nth(2).unwrap();
    (number(start) - number(offset)).is_multiple_of(2 * MIB)
}

fn circle(memory: &Value) {
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), memory);
    let huge = Cell::new(0);
    let load = |own: &Snapshot| {
        let memory = ReadyMemory::load(own).unwrap();
        huge.set(memory.huge_bytes());
        memory
    };
    let (clone, mut serial) = restored(folder.path(), "clone", &snapshot, load);
    check_bytes(&mut serial);
    check_mapping(clone.pid(), "memfd:hugekit:vm", huge.get());
    serial.ask(Request::Write { start: START, len: LEN, seed: !SEED }).unwrap();
    assert_eq!(differing(&mut serial, !SEED), 0);
}

#[test]
fn ready_memory_is_the_guests_memory() {
    if can_run() {
        circle(&json!({"size": MEMORY}));
    }
}

#[test]
fn zones_of_memory_are_restored() {
    if can_run() {
        let zones =
            [json!({"id": "low", "size": MEMORY / 4}), json!({"id": "high", "size": MEMORY})];
        circle(&json!({"size": 0, "zones": zones}));
    }
}

#[test]
fn clones_of_an_image_have_its_bytes_and_their_own_writes() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), &json!({"size": MEMORY}));
    let image = Image::load(snapshot.join("memory-ranges")).unwrap();
    let of_image = |own: &Snapshot| {
        let file = image.open_again().unwrap();
        ReadyMemory::of_image(Image::check(file).unwrap(), own).unwrap()
    };
    let (one, mut of_one) = restored(folder.path(), "one", &snapshot, of_image);
    let (_other, mut of_other) = restored(folder.path(), "other", &snapshot, of_image);
    check_bytes(&mut of_one);
    check_mapping(one.pid(), "memfd:hugekit:image", image.huge_bytes());
    of_one.ask(Request::Write { start: START, len: LEN, seed: !SEED }).unwrap();
    check_bytes(&mut of_other);
    assert_eq!(differing(&mut of_one, !SEED), 0);
}

/// An image, and a VM that runs as a clone of it.
fn clone_of_an_image(folder: &Path, snapshot: &Path) -> (Image, CloudHypervisor, Serial) {
    let image = Image::load(snapshot.join("memory-ranges")).unwrap();
    let of_image = |own: &Snapshot| {
        let file = image.open_again().unwrap();
        ReadyMemory::of_image(Image::check(file).unwrap(), own).unwrap()
    };
    let (clone, serial) = restored(folder, "clone", snapshot, of_image);
    (image, clone, serial)
}

#[test]
fn clone_of_an_image_reboots_and_is_saved_when_the_image_is_gone() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), &json!({"size": MEMORY}));
    let (image, mut clone, mut serial) = clone_of_an_image(folder.path(), &snapshot);
    drop(image);
    check_bytes(&mut serial);
    // Stock Cloud Hypervisor restores it, too.
    let own = folder.path().join("own");
    clone.save(&own).unwrap();
    drop(serial);
    clone.resume().unwrap();
    clone.put("vm.reboot", &Value::Null).unwrap();
    let mut serial = clone.serial().unwrap();
    assert_eq!(serial.ask(Request::NotZero { start: START, len: LEN }).unwrap(), 0);
    serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    assert_eq!(differing(&mut serial, SEED), 0);
    drop(serial);
    clone.put("vm.shutdown", &Value::Null).unwrap();
    clone.put("vm.boot", &Value::Null).unwrap();
    clone.serial().unwrap().ask(Request::Reply).unwrap();
    drop(clone);
    let own = snapshot_for(folder.path(), "stock", &own).unwrap();
    let mut stock = CloudHypervisor::start(folder.path(), "stock").unwrap();
    stock.restore(&own, "Copy").unwrap();
    check_bytes(&mut stock.serial().unwrap());
}

#[test]
fn zone_with_prefault_does_not_copy_the_image() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let zone = json!({"id": "m", "size": 4 * MEMORY, "prefault": true});
    let snapshot = saved(folder.path(), &json!({"size": 0, "zones": [zone]}));
    let (image, clone, mut serial) = clone_of_an_image(folder.path(), &snapshot);
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", clone.pid())).unwrap();
    let private = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    let kib: u64 = private.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib << 10 < MEMORY, "{private}");
    assert!(image.present().unwrap() < 2 * MEMORY, "{image:?}");
    check_bytes(&mut serial);
}

#[test]
fn mergeable_memory_is_restored_with_a_note() {
    if !can_run() {
        return;
    }
    let zone = json!({"id": "m", "size": MEMORY, "mergeable": true});
    for memory in [json!({"size": MEMORY, "mergeable": true}), json!({"size": 0, "zones": [zone]})]
    {
        let folder = TempDir::new().unwrap();
        let snapshot = saved(folder.path(), &memory);
        let load = |own: &Snapshot| {
            let memory = ReadyMemory::load(own).unwrap();
            assert!(memory.changes()[0].contains("mergeable is off"), "{:?}", memory.changes());
            memory
        };
        let (_clone, mut serial) = restored(folder.path(), "clone", &snapshot, load);
        check_bytes(&mut serial);
    }
}

#[test]
fn zone_in_a_shared_file_of_the_users_is_refused_by_name() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::File::create(&file).unwrap().set_len(MEMORY).unwrap();
    let zone = json!({"id": "m", "size": MEMORY, "file": file, "shared": true});
    let refused = Snapshot::open(saved(folder.path(), &json!({"size": 0, "zones": [zone]})));
    let Err(RestoreError::Memory(unfit)) = refused else { panic!("{refused:?}") };
    assert_eq!(unfit, UnfitMemory::InFile { zone: "m".to_owned(), file });
}

#[test]
fn api_with_the_longest_path_is_enough() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let snapshot = saved(folder.path(), &json!({"size": MEMORY}));
    // The folder has room for the socket of the API, and for no longer name.
    let deep = folder.path().join("d".repeat(100 - folder.path().as_os_str().len()));
    std::fs::create_dir(&deep).unwrap();
    let own = Snapshot::open(&snapshot).unwrap();
    let vmm = CloudHypervisor::start(&deep, "a").unwrap();
    assert_eq!(vmm.api().as_os_str().len(), 107);
    let memory = ReadyMemory::load(&own).unwrap();
    Restore::new(&own).resume(true).send(vmm.api(), &memory).unwrap();
}

#[test]
fn vmm_with_other_mounts_is_found_by_its_root() {
    if !can_run() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("only root makes mounts");
        return;
    }
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::open(saved(folder.path(), &json!({"size": MEMORY}))).unwrap();
    let hidden = folder.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    let vmm = CloudHypervisor::start_below_a_mount(&hidden, "clone").unwrap();
    let api = vmm.api();
    assert!(!hidden.join("clone.api").exists() && api.exists(), "{api:?}");
    let image = Image::load(folder.path().join("snapshot/memory-ranges")).unwrap();
    let memory = ReadyMemory::of_image(image, &snapshot).unwrap();
    let restored = Restore::new(&snapshot).resume(true).send(api, &memory).unwrap();
    assert_eq!(restored.link, Some(hidden.join("clone.api.memory")));
    vmm.put("vm.reboot", &Value::Null).unwrap();
}

#[test]
fn vmm_that_has_a_vm_refuses_another() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::open(saved(folder.path(), &json!({"size": MEMORY}))).unwrap();
    let memory = ReadyMemory::load(&snapshot).unwrap();
    let mut busy = CloudHypervisor::start(folder.path(), "busy").unwrap();
    let mut serial = busy.boot(&json!({"size": MEMORY})).unwrap();
    let refused = Restore::new(&snapshot).send(busy.api(), &memory);
    assert!(matches!(refused, Err(RestoreError::Refused { .. })), "{refused:?}");
    assert!(refused.unwrap_err().remedy().unwrap().contains("has no VM"));
    serial.ask(Request::Reply).unwrap();
}

#[test]
fn state_of_nonsense_is_refused_by_the_vmm() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = saved(folder.path(), &json!({"size": MEMORY}));
    let state = path.join("state.json");
    let mut tree: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    tree["snapshots"]["device-manager"]["snapshot_data"] = json!({"state": "7"});
    std::fs::write(&state, tree.to_string()).unwrap();
    let snapshot = Snapshot::open(&path).unwrap();
    let memory = ReadyMemory::load(&snapshot).unwrap();
    let vmm = CloudHypervisor::start(folder.path(), "clone").unwrap();
    let refused = Restore::new(&snapshot).send(vmm.api(), &memory);
    // This VMM may end.
    let is_refused = matches!(
        refused,
        Err(RestoreError::Rejected { what: "state", .. }
            | RestoreError::Broken { what: "state", .. })
    );
    assert!(is_refused, "{refused:?}");
}

/// What guests find in a zone whose file is an image, without a restore.
#[test]
fn zone_of_an_image_is_private_to_each_vm() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let pattern = (START..MEMORY).step_by(8).flat_map(|at| pattern_at(at, SEED).to_le_bytes());
    // The guest needs zeroes for itself.
    let bytes: Vec<u8> = std::iter::repeat_n(0, START as usize).chain(pattern).collect();
    let file = folder.path().join("memory");
    std::fs::write(&file, bytes).unwrap();
    let image = Image::load(&file).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_fd().as_raw_fd());
    let zone = json!({"id": "m", "size": MEMORY, "file": path, "shared": false});
    let memory = json!({"size": 0, "zones": [zone]});
    let booted = |name: &str| {
        let mut vmm = CloudHypervisor::start(folder.path(), name).unwrap();
        let serial = vmm.boot(&memory).unwrap();
        (vmm, serial)
    };
    let ((one, mut of_one), (_other, mut of_other)) = (booted("one"), booted("other"));
    assert_eq!(differing(&mut of_one, SEED), 0);
    check_mapping(one.pid(), "memfd:hugekit:image", image.huge_bytes());
    of_one.ask(Request::Write { start: START, len: LEN, seed: !SEED }).unwrap();
    assert_eq!(differing(&mut of_other, SEED), 0);
    assert_eq!(differing(&mut of_one, !SEED), 0);
}

/// A VM that runs with devices of its own.
fn restored_with(
    folder: &Path,
    name: &str,
    own: OwnDevices,
) -> Result<(CloudHypervisor, Serial), RestoreError> {
    let path = snapshot_for(folder, name, &folder.join("snapshot")).unwrap();
    let snapshot = Snapshot::open(path)?;
    let mut vmm = CloudHypervisor::start(folder, name).unwrap();
    let memory = ReadyMemory::load(&snapshot)?;
    Restore::new(&snapshot).own(own).resume(true).send(vmm.api(), &memory)?;
    let serial = vmm.serial().unwrap();
    Ok((vmm, serial))
}

fn refused(folder: &Path, name: &str, own: OwnDevices) -> DeviceError {
    match restored_with(folder, name, own).map(drop).unwrap_err() {
        RestoreError::Device(error) => error,
        error => panic!("{error:?}"),
    }
}

/// Files that a process has open.
fn open_files(pid: i32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect()
}

#[test]
fn vms_have_disks_and_sockets_of_their_own_or_are_refused() {
    if !can_run() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let path = |name: &str| folder.join(name);
    for name in ["root", "data"] {
        std::fs::write(path(name), vec![7; 1 << 20]).unwrap();
    }
    let devices = json!({
        "disks": [{"path": path("root"), "readonly": true}, {"path": path("data")}],
        "vsock": {"cid": 3, "socket": path("vsock")},
    });
    let (_, origin) = saved_with(folder, &json!({"size": MEMORY}), &devices);
    let own = |name: &str| OwnDevices {
        vsock: Some(path(&format!("{name}.vsock"))),
        disks: [("_disk1".to_owned(), path(&format!("{name}.img")))].into(),
        ..OwnDevices::default()
    };
    let running = refused(folder, "a", own("a"));
    assert!(
        matches!(running, DeviceError::Written { pid, .. } if pid == origin.pid()),
        "{running:?}"
    );
    assert!(!path("a.img").exists());
    drop(origin);
    std::fs::remove_file(path("vsock")).unwrap();
    let mut vms = ["b", "c"].map(|name| restored_with(folder, name, own(name)).unwrap());
    for ((vmm, serial), name) in vms.iter_mut().zip(["b", "c"]) {
        check_bytes(serial);
        let files = open_files(vmm.pid());
        assert!(files.contains(&path(&format!("{name}.img"))), "{files:?}");
        assert!(files.contains(&path("root")) && !files.contains(&path("data")), "{files:?}");
        assert!(path(&format!("{name}.vsock")).exists() && !path("vsock").exists());
        assert_eq!(std::fs::read(path(&format!("{name}.img"))).unwrap(), [7; 1 << 20]);
    }
    // One VM has the disk itself.
    let (first, _serial) = restored_with(folder, "d", OwnDevices::default()).unwrap();
    let second = refused(folder, "e", OwnDevices::default());
    assert!(matches!(second, DeviceError::Written { pid, .. } if pid == first.pid()), "{second:?}");
    drop(first);
    std::fs::remove_file(path("vsock")).unwrap();
    let mut unknown = own("f");
    unknown.net.insert("eth0".to_owned(), "tap0".to_owned());
    assert!(matches!(refused(folder, "f", unknown), DeviceError::Unknown { option: "--net", .. }));
    std::fs::write(path("data"), vec![8; 1 << 20]).unwrap();
    let changed = refused(folder, "g", own("g"));
    assert!(matches!(changed, DeviceError::Changed { .. }), "{changed:?}");
    assert!(!path("f.img").exists() && !path("g.img").exists());
}

#[test]
fn vm_has_a_tap_of_its_own_or_is_refused() {
    if !can_run() {
        return;
    }
    if let Some(reason) = taps::lacking() {
        skipped(&reason);
        return;
    }
    taps::with_taps(2, || {
        let folder = TempDir::new().unwrap();
        let net = json!({"net": [{"id": "eth0", "tap": "tap0"}]});
        let (_, origin) = saved_with(folder.path(), &json!({"size": MEMORY}), &net);
        let own = |tap: &str| OwnDevices {
            net: [("eth0".to_owned(), tap.to_owned())].into(),
            ..OwnDevices::default()
        };
        let missing = refused(folder.path(), "a", own("tap9"));
        let names =
            matches!(&missing, DeviceError::NoTap { device, .. } if device.contains("tap9"));
        assert!(names, "{missing:?}");
        let (_vmm, mut serial) = restored_with(folder.path(), "b", own("tap1")).unwrap();
        check_bytes(&mut serial);
        drop(origin);
    });
}
