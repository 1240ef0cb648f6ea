//! Guests with a vsock: Firecracker writes an event into the guest's memory whenever its state is saved, as long as the
//! guest's 8 buffers last.

use std::fs;
use std::path::{Path, PathBuf};

use hugekit_guests::{Firecracker, Pages, Request, Snapshot};
use hugekit_vm::checkpoint::{
    ChildOptions, CloneMemory, CloneOptions, DeviceError, ForkError, ForkOptions, SeriesOptions,
    checkpoint, fork, start_clones,
};
use hugekit_vm::pager::Source;
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::family::{ForkedGuest, child_of};
use crate::forks::check_no_children;
use crate::scene::{LEN, MEMORY, SEED, START, Scene, check_file, check_pattern, trial};
use crate::series::{Follower, run};

const BUFFERS: u64 = 8;
const NAMES: [&str; 2] = ["a", "b"];

pub(crate) fn trials() -> Vec<Trial> {
    let base = |name: &str, check: fn()| trial(&format!("vsock::{name}"), Pages::Base, check);
    vec![
        base("events_of_each_save_are_in_the_saved_memory", saved),
        base("events_are_in_deltas_of_a_series", series),
        base("children_have_sockets_of_their_own", forked),
        base("children_without_sockets_of_their_own_are_refused", forked_without),
        base("clones_have_sockets_of_their_own", cloned),
        base("clones_without_sockets_of_their_own_leave_nothing", cloned_without),
    ]
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("vsock.sock")
}

/// A snapshot of a guest whose driver of the vsock is ready, and that has written the pattern. Nothing listens at the
/// socket any more.
fn origin() -> (TempDir, Snapshot) {
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    origin.add_vsock(&socket(folder.path())).unwrap();
    origin.boot(MEMORY, Pages::Base).unwrap();
    assert_eq!(origin.serial.ask(Request::Events).unwrap(), 0);
    origin.serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    origin.save(&snapshot).unwrap();
    drop(origin);
    fs::remove_file(socket(folder.path())).unwrap();
    assert_eq!(events_in(&fs::read(&snapshot.memory).unwrap()), 1);
    (folder, snapshot)
}

fn events_in(memory: &[u8]) -> u64 {
    let at = Firecracker::events() as usize;
    u16::from_le_bytes(memory[at..at + 2].try_into().unwrap()).into()
}

/// The guest reads the count behind all that was written at the save.
fn saved() {
    let mut scene = Scene::in_folder(origin().0);
    let mut before = 1;
    for number in 0..=BUFFERS {
        checkpoint(&scene.options()).unwrap();
        check_file(&scene.saved().memory, SEED);
        let saved = events_in(&fs::read(scene.saved().memory).unwrap());
        assert!(saved > before || saved == BUFFERS, "{saved} after {before}");
        assert_eq!(scene.vmm.serial.ask(Request::Events).unwrap(), saved, "number {number}");
        before = saved;
        if number < BUFFERS {
            fs::remove_dir_all(scene.output()).unwrap();
        }
    }
    check_pattern(&mut scene.vmm, SEED);
    let (saved, folder) = (scene.saved(), scene.folder);
    drop(scene.vmm);
    fs::remove_file(socket(folder.path())).unwrap();
    let mut restored = Firecracker::start(folder.path(), "restored").unwrap();
    restored.load_by_file(&saved, &saved.memory, true).unwrap();
    assert_eq!(restored.serial.ask(Request::Events).unwrap(), BUFFERS);
    check_pattern(&mut restored, SEED);
}

fn series() {
    let mut scene = Scene::in_folder(origin().0);
    let (mut follower, mut before) = (Follower::default(), 1);
    let series =
        SeriesOptions { count: Some(BUFFERS), ..SeriesOptions::new(std::time::Duration::ZERO) };
    run(&scene.options(), &series, &mut |folder, _| {
        follower.follow(folder);
        let saved = events_in(&follower.bytes);
        assert!(saved > before || saved == BUFFERS, "{saved} after {before}");
        before = saved;
    })
    .unwrap();
    assert_eq!(scene.vmm.serial.ask(Request::Events).unwrap(), before);
    scene.check_runs_free();
}

/// A child that listens at a socket of its own.
fn child_with_vsock(folder: &Path, name: &str) -> (ChildOptions, hugekit_guests::Serial) {
    let (mut child, serial) = child_of(folder, name);
    child.own.vsock = Some(vsock_of(folder, name));
    (child, serial)
}

fn vsock_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.vsock"))
}

fn check_children(folder: &Path, children: &mut [ForkedGuest]) {
    assert_eq!(children.len(), NAMES.len());
    for (child, name) in children.iter_mut().zip(NAMES) {
        child.check(SEED);
        assert!(child.serial.ask(Request::Events).unwrap() > 0);
        assert!(vsock_of(folder, name).exists(), "{name} listens nowhere");
    }
}

fn forked() {
    let mut scene = Scene::in_folder(origin().0);
    let folder = scene.folder.path().to_owned();
    let (children, serials): (Vec<_>, Vec<_>) =
        NAMES.map(|name| child_with_vsock(&folder, name)).into_iter().unzip();
    let forked = fork(&ForkOptions::new(scene.vm(), children)).unwrap();
    let mut children = ForkedGuest::all(forked.programs, serials, &forked.report.children);
    check_children(&folder, &mut children);
    scene.check_runs_free();
}

fn forked_without() {
    let mut scene = Scene::in_folder(origin().0);
    let folder = scene.folder.path().to_owned();
    let (first, _serial) = child_with_vsock(&folder, "a");
    let (second, _other) = child_of(&folder, "b");
    let refused = fork(&ForkOptions::new(scene.vm(), vec![first, second])).unwrap_err();
    check_shared(&refused, "the VM", &socket(&folder));
    check_no_children(&folder, &NAMES);
    assert!(!vsock_of(&folder, "a").exists());
    scene.check_runs_free();
}

fn cloned() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let (children, serials): (Vec<_>, Vec<_>) =
        NAMES.map(|name| child_with_vsock(folder, name)).into_iter().unzip();
    let memory = CloneMemory::Copied(Box::new(Source::open(&snapshot.memory).unwrap()));
    let options = CloneOptions::new(snapshot.state.clone(), children);
    let cloned = start_clones(&options, memory).unwrap();
    let mut clones = ForkedGuest::all(cloned.programs, serials, &cloned.report.clones);
    check_children(folder, &mut clones);
    assert!(!socket(folder).exists());
}

fn check_shared(refused: &ForkError, first: &str, socket: &Path) {
    let ForkError::Device(DeviceError::Shared { first: by, second, device, option, .. }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((&**by, &**second, *option), (first, "child 2", Some("--vsock")));
    assert!(device.contains(socket.to_str().unwrap()), "{device}");
}

/// Both would listen where the origin listened.
fn cloned_without() {
    let (folder, snapshot) = origin();
    let folder = folder.path();
    let (children, _serials): (Vec<_>, Vec<_>) =
        NAMES.map(|name| child_of(folder, name)).into_iter().unzip();
    let memory = CloneMemory::Copied(Box::new(Source::open(&snapshot.memory).unwrap()));
    let options = CloneOptions::new(snapshot.state.clone(), children);
    let refused = start_clones(&options, memory).map(drop).unwrap_err();
    check_shared(&refused, "child 1", &socket(folder));
    check_no_children(folder, &NAMES);
    assert!(!socket(folder).exists(), "the socket of a clone that has ended is left");
}
