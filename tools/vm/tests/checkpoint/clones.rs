//! Clones of a snapshot: VMMs that are started for them.

use std::fs::{self, File};
use std::path::Path;

use hugekit_guests::{Firecracker, Pages, Request, Snapshot};
use hugekit_image::Image;
use hugekit_testing::processes::happens;
use hugekit_vm::checkpoint::{
    CheckpointOptions, CloneMemory, CloneOptions, CloneWay, ForkError, RunningVm, checkpoint,
    start_clones,
};
use hugekit_vm::pager::Source;
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::child;
use crate::family::{ForkedGuest, child_of};
use crate::forks::{check_no_children, processes_with};
use crate::scene::{LEN, MEMORY, MIB, SEED, START, check_file, origin, trial};

const NAMES: [&str; 2] = ["a", "b"];

pub(crate) fn trials() -> Vec<Trial> {
    let base = |name: &str, check: fn()| trial(&format!("clones::{name}"), Pages::Base, check);
    let of = |pages: Pages| {
        let name = format!("clones::{pages:?}::each_clone_has_all_memory_for_itself");
        trial(&name.to_lowercase(), pages, move || copied(pages))
    };
    vec![
        of(Pages::Base),
        of(Pages::Hugetlb2M),
        base("clones_of_an_image_share_it_and_keep_their_writes", mapped),
        base("clone_can_be_saved", saved),
        base("clone_of_an_image_gives_memory_to_its_balloon_and_gets_it_back", balloon),
        base("clone_asks_for_huge_pages_that_its_snapshot_had_not", || other_pages("Transparent")),
        trial(
            "clones::clone_asks_for_reserved_pages_that_its_snapshot_had_not",
            Pages::Hugetlb2M,
            || {
                other_pages("2M");
            },
        ),
        base("file_that_cannot_be_mapped_is_refused_with_the_reason", not_mapped),
        base("file_that_is_no_state_starts_nothing", no_state),
        base("memory_file_that_is_too_short_leaves_nothing", too_short),
        base("command_that_is_killed_leaves_nothing", killed),
    ]
}

fn source(snapshot: &Snapshot) -> CloneMemory {
    CloneMemory::Copied(Box::new(Source::open(&snapshot.memory).unwrap()))
}

/// Clones with these names.
fn clones(
    folder: &Path,
    snapshot: &Snapshot,
    names: &[&str],
    memory: CloneMemory,
) -> Result<Vec<ForkedGuest>, ForkError> {
    let children = names.iter().map(|name| child_of(folder, name));
    let (children, serials): (Vec<_>, Vec<_>) = children.unzip();
    let cloned = start_clones(&CloneOptions::new(snapshot.state.clone(), children), memory)?;
    Ok(ForkedGuest::all(cloned.programs, serials, &cloned.report.clones))
}

fn check_apart(clones: &mut [ForkedGuest]) {
    for clone in &mut *clones {
        clone.check(SEED);
    }
    for (clone, seed) in clones.iter_mut().zip(7..) {
        clone.serial.ask(Request::Write { start: START, len: LEN, seed }).unwrap();
    }
    for (clone, seed) in clones.iter_mut().zip(7..) {
        clone.check(seed);
    }
}

fn copied(pages: Pages) {
    let (folder, snapshot) = origin(pages);
    let names = if pages == Pages::Base { &NAMES[..] } else { &NAMES[..1] };
    let mut clones = clones(folder.path(), &snapshot, names, source(&snapshot)).unwrap();
    assert_eq!(clones.len(), names.len());
    check_apart(&mut clones);
}

/// A copy of an image would be as large for each clone.
fn mapped() {
    let (folder, snapshot) = origin(Pages::Base);
    let image = Image::load(&snapshot.memory).unwrap();
    let memory = CloneMemory::Mapped(File::from(image.into_file()));
    let mut clones = clones(folder.path(), &snapshot, &NAMES, memory).unwrap();
    for clone in &mut clones {
        clone.check(SEED);
        let maps = fs::read_to_string(format!("/proc/{}/maps", clone.pid)).unwrap();
        assert!(maps.contains("/memfd:hugekit"), "{maps}");
    }
    check_apart(&mut clones);
}

fn saved() {
    let (folder, snapshot) = origin(Pages::Base);
    let clones = clones(folder.path(), &snapshot, &NAMES[..1], source(&snapshot)).unwrap();
    let vm = RunningVm::new(clones[0].api.clone());
    let output = folder.path().join("saved");
    checkpoint(&CheckpointOptions::new(vm, output.clone())).unwrap();
    check_file(&output.join("memory"), SEED);
}

/// Firecracker maps new memory over a part of a private file mapping that the guest gives back.
fn balloon() {
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    origin.add_balloon().unwrap();
    origin.boot(MEMORY, Pages::Base).unwrap();
    origin.serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    origin.save(&snapshot).unwrap();
    drop(origin);
    let image = Image::load(&snapshot.memory).unwrap();
    let memory = CloneMemory::Mapped(File::from(image.into_file()));
    let mut clones = clones(folder.path(), &snapshot, &NAMES, memory).unwrap();
    let (start, len) = (START + 4 * MIB, 4 * MIB);
    let [first, second] = &mut clones[..] else { panic!("no two clones") };
    let ask = |guest: &mut ForkedGuest, request| guest.serial.ask(request).unwrap();
    assert_eq!(ask(first, Request::Inflate { start, len }), 0);
    assert_eq!(ask(first, Request::NotZero { start, len }), 0);
    assert_eq!(ask(first, Request::Deflate { start, len }), 0);
    ask(first, Request::Write { start, len, seed: SEED });
    first.check(SEED);
    second.check(SEED);
}

/// Firecracker 1.17 takes other pages than those of the snapshot.
fn other_pages(pages: &str) {
    let (folder, snapshot) = origin(Pages::Base);
    let (mut child, serial) = child_of(folder.path(), "a");
    child.load.insert("huge_pages".to_owned(), pages.into());
    let options = CloneOptions::new(snapshot.state.clone(), vec![child]);
    let mut cloned = start_clones(&options, source(&snapshot)).unwrap();
    let program = cloned.programs.remove(0);
    let mut clone = ForkedGuest::new(program, serial, &cloned.report.clones[0]);
    clone.check(SEED);
    clone.serial.ask(Request::Write { start: START, len: LEN, seed: 7 }).unwrap();
    clone.check(7);
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", clone.pid)).unwrap();
    assert_eq!(smaps.contains("KernelPageSize:     2048 kB"), pages == "2M", "{smaps}");
    let output = folder.path().join("saved");
    let vm = RunningVm::new(clone.api.clone());
    checkpoint(&CheckpointOptions::new(vm, output.clone())).unwrap();
    check_file(&output.join("memory"), 7);
}

/// Of no snapshot with reserved pages can a VMM map the file.
fn not_mapped() {
    let (folder, snapshot) = origin(Pages::Base);
    let memory = || CloneMemory::Mapped(File::open(&snapshot.memory).unwrap());
    let clone = |load: &str| {
        let (mut child, serial) = child_of(folder.path(), if load == "2M" { "a" } else { "b" });
        child.load.insert("huge_pages".to_owned(), load.into());
        let options = CloneOptions::new(snapshot.state.clone(), vec![child]);
        start_clones(&options, memory()).map(|cloned| (cloned, serial))
    };
    let refused = clone("2M").map(drop).unwrap_err();
    assert!(refused.needs_copies(), "{refused:?}");
    assert!(refused.remedy().is_some_and(|remedy| remedy.contains("--copy")), "{refused}");
    check_no_children(folder.path(), &NAMES);
    let (mut cloned, serial) = clone("None").unwrap();
    assert_eq!(cloned.report.way, CloneWay::Mapped);
    let mut clone = ForkedGuest::new(cloned.programs.remove(0), serial, &cloned.report.clones[0]);
    clone.check(SEED);
}

fn no_state() {
    let (folder, mut snapshot) = origin(Pages::Base);
    let memory = source(&snapshot);
    snapshot.state = folder.path().join("cut");
    fs::write(&snapshot.state, "no state").unwrap();
    let refused = clones(folder.path(), &snapshot, &NAMES, memory).map(drop).unwrap_err();
    assert!(matches!(refused, ForkError::State { .. }), "{refused}");
    check_no_children(folder.path(), &NAMES);
}

fn too_short() {
    let (folder, snapshot) = origin(Pages::Base);
    let path = folder.path().join("short");
    File::create_new(&path).unwrap().set_len(MEMORY / 2).unwrap();
    let memory = CloneMemory::Copied(Box::new(Source::open(&path).unwrap()));
    let refused = clones(folder.path(), &snapshot, &NAMES, memory).map(drop).unwrap_err();
    assert!(matches!(refused, ForkError::Memory(_) | ForkError::Restore { .. }), "{refused}");
    check_no_children(folder.path(), &NAMES);
}

/// One clone is complete, and the other never asks for its memory.
fn killed() {
    let (folder, snapshot) = origin(Pages::Base);
    let folder = folder.path();
    let children = NAMES.map(|name| child_of(folder, name));
    let (mut children, _serials): (Vec<_>, Vec<_>) = children.into_iter().unzip();
    children[1].command = child::answering(&children[1].api);
    let options = CloneOptions::new(snapshot.state.clone(), children.clone());
    let mut cloning = child::start_clones(&options, &snapshot.memory, folder);
    let is_started = || children.iter().all(|child| !processes_with(&child.api).is_empty());
    assert!(happens(is_started), "no clone is started");
    cloning.kill().unwrap();
    cloning.wait().unwrap();
    let is_gone = || children.iter().all(|child| processes_with(&child.api).is_empty());
    assert!(happens(is_gone), "clones are left");
    let is_removed = || {
        let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        !entries.any(|name| name.to_string_lossy().starts_with(".hugekit"))
    };
    assert!(happens(is_removed), "the folder of the socket is left");
    check_no_children(folder, &NAMES);
}
