//! Children of a running guest: their bytes, the guest's, and those of a twin.

use std::fs;
use std::ops::Range;
use std::path::Path;

use hugekit_guests::{
    Firecracker, Pages, Request, Serial, Snapshot, await_end_of_output, sum_of_pattern,
};
use hugekit_vm::checkpoint::{
    CheckpointError, CheckpointOptions, ForkError, ForkOptions, ForkReport, RunningVm, Way,
    checkpoint, fork,
};
use libtest_mimic::Trial;

use crate::child;
use crate::family::{ForkedGuest, child_of, fork_vm, fork_with};
use crate::kills::kill_and_await_end;
use crate::proxy::{Proxy, holding_resume};
use crate::scene::{
    LEN, LONGEST_WAIT, PagerThread, SEED, START, Scene, check_file, check_pattern, nightly, origin,
    trial,
};

type Check = (&'static str, Pages, fn(Pages));

const CHECKS: &[Check] = &[
    ("children_have_the_moment_of_the_pause", Pages::Base, moment),
    ("children_have_the_moment_of_the_pause", Pages::Hugetlb2M, one_child),
    ("children_are_saved_and_forked_again", Pages::Base, again),
    ("end_states_are_those_of_a_twin_that_was_never_paused", Pages::Base, twin),
    ("vm_that_was_paused_stays_paused_and_its_children_run", Pages::Base, paused_before),
    ("firecracker_that_saves_no_state_alone_is_forked_by_a_stock_snapshot", Pages::Base, stock),
    ("child_that_does_not_start_ends_the_others", Pages::Base, no_program),
    ("child_that_cannot_be_restored_ends_the_others", Pages::Base, not_restored),
    ("socket_that_exists_is_refused_and_kept", Pages::Base, socket_exists),
    ("vm_that_ends_in_the_copy_leaves_no_children", Pages::Base, ended),
];

pub(crate) fn trials() -> Vec<Trial> {
    let of = |&(name, pages, check): &Check| {
        trial(&format!("forks::{pages:?}::{name}").to_lowercase(), pages, move || check(pages))
    };
    let silent = nightly(
        "it waits for a minute",
        "forks::base::child_that_never_asks_for_its_memory_ends_the_others",
        Pages::Base,
        never_connects,
    );
    CHECKS.iter().map(of).chain([silent]).collect()
}

fn moment(pages: Pages) {
    check_moment(pages, &["a", "b"]);
}

/// Children need huge pages of their own.
fn one_child(pages: Pages) {
    check_moment(pages, &["a"]);
}

/// The guest writes other words as soon as it runs again, before anything is copied.
fn check_moment(pages: Pages, names: &[&str]) {
    let mut scene = Scene::start(pages);
    let (mut children, report) = fork_before_writes(&mut scene, names);
    assert_eq!(report.way, Way::WriteProtected);
    assert!(report.faults > 0 && report.children.len() == names.len());
    for child in &mut children {
        child.check(SEED);
    }
    check_pattern(&mut scene.vmm, 1);
    // Writes of one are seen by no other.
    let [child, ..] = &mut children[..] else { panic!("no child") };
    child.serial.ask(Request::Write { start: START, len: LEN, seed: 2 }).unwrap();
    child.check(2);
    check_pattern(&mut scene.vmm, 1);
    for other in &mut children[1..] {
        other.check(SEED);
    }
    scene.check_runs_free();
}

/// The answer that the VM runs again is held back until the guest has written everything.
fn fork_before_writes(scene: &mut Scene, names: &[&str]) -> (Vec<ForkedGuest>, ForkReport) {
    let (hold, does_run, wrote) = holding_resume();
    let proxy = Proxy::start(&scene.api(), hold);
    let (options, folder) = (through(scene, &proxy), scene.folder.path().to_owned());
    std::thread::scope(|scope| {
        let forking = scope.spawn(move || fork_with(options, &folder, names).unwrap());
        does_run.recv_timeout(LONGEST_WAIT).unwrap();
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: 1 }).unwrap();
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        wrote.send(()).unwrap();
        forking.join().unwrap()
    })
}

fn through(scene: &Scene, proxy: &Proxy) -> ForkOptions {
    ForkOptions::new(scene.options_through(&proxy.socket).vm, Vec::new())
}

fn fork_scene(scene: &Scene, names: &[&str]) -> Result<Vec<ForkedGuest>, ForkError> {
    fork_vm(&scene.api(), names).map(|(children, _)| children)
}

fn again(_: Pages) {
    let mut scene = Scene::start(Pages::Base);
    let mut child = fork_scene(&scene, &["a"]).unwrap().remove(0);
    child.check(SEED);
    child.serial.ask(Request::Write { start: START, len: LEN, seed: 3 }).unwrap();
    await_end_of_output(child.pid).unwrap();
    let (mut grandchildren, _) = fork_vm(&child.api, &["a-a", "a-b"]).unwrap();
    child.serial.ask(Request::Write { start: START, len: LEN, seed: 4 }).unwrap();
    for grandchild in &mut grandchildren {
        grandchild.check(3);
    }
    let vm = RunningVm::new(child.api.clone());
    checkpoint(&CheckpointOptions::new(vm, scene.output())).unwrap();
    check_file(&scene.saved().memory, 4);
    child.check(4);
    scene.check_runs_free();
}

/// Firecracker has its devices `VMClock` and `VMGenID` there, which show a guest each restore.
const RESTORES: Range<usize> = 0xd_e000..0xe_0000;

/// The guest is in the middle of a write when it is forked. It and its children then do the same as
/// a guest that was never paused.
fn twin(_: Pages) {
    let (folder, snapshot) = origin(Pages::Base);
    let folder = folder.path();
    let mut twin = restored(folder, "twin", &snapshot);
    let mut vmm = restored(folder, "clone", &snapshot);
    let write = Request::Write { start: START, len: LEN, seed: 5 };
    twin.serial.send(write).unwrap();
    vmm.serial.send(write).unwrap();
    let api = folder.join("clone.api");
    let (mut children, _) = fork_vm(&api, &["a", "b"]).unwrap();
    let serials = children.iter_mut().map(|child| &mut child.serial);
    for serial in serials.chain([&mut twin.serial, &mut vmm.serial]) {
        go_on(serial);
    }
    await_end_of_output(vmm.pid()).unwrap();
    children.iter().for_each(|child| await_end_of_output(child.pid).unwrap());
    let files = |name: &str| Snapshot {
        state: folder.join(format!("{name}.state")),
        memory: folder.join(format!("{name}.memory")),
    };
    twin.save(&files("twin")).unwrap();
    vmm.save(&files("clone")).unwrap();
    children.iter().zip(["a", "b"]).for_each(|(child, name)| child.save(&files(name)));
    let right = fs::read(files("twin").memory).unwrap();
    for name in ["clone", "a", "b"] {
        let found = fs::read(files(name).memory).unwrap();
        let pages = (0..right.len()).step_by(4096).map(|start| start..start + 4096);
        let differs = |page: &Range<usize>| found[page.clone()] != right[page.clone()];
        let bytes = pages.filter(differs).flatten().filter(|&at| found[at] != right[at]);
        let places: Vec<usize> = bytes.filter(|at| !RESTORES.contains(at)).take(64).collect();
        assert!(places.is_empty(), "{name} differs from its twin at {places:x?}");
    }
}

fn restored(folder: &Path, name: &str, snapshot: &Snapshot) -> Firecracker {
    let pager = PagerThread::start(folder.join(format!("{name}.p")), &snapshot.memory, true);
    let vmm = Firecracker::start(folder, name).unwrap();
    vmm.load_by_handler(snapshot, &pager.socket, true).unwrap();
    pager.await_complete();
    vmm
}

/// The end of the write is answered by all that were in the middle of it.
fn go_on(serial: &mut Serial) {
    let half = LEN / 2;
    serial.send(Request::Write { start: START + half, len: half, seed: 6 }).unwrap();
    serial.send(Request::Sum { start: START, len: half }).unwrap();
    let sum = sum_of_pattern(START, half, 5);
    while serial.answer_within(LONGEST_WAIT).unwrap() != sum {}
}

fn paused_before(_: Pages) {
    let mut scene = Scene::start(Pages::Base);
    scene.vmm.pause().unwrap();
    let (mut children, report) = fork_vm(&scene.api(), &["a"]).unwrap();
    assert!(report.paused_ms == 0.0);
    children[0].check(SEED);
    scene.vmm.serial.send(Request::Reply).unwrap();
    assert!(scene.vmm.is_paused().unwrap(), "it runs");
    scene.vmm.resume().unwrap();
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    scene.check_runs_free();
}

fn stock(_: Pages) {
    let mut scene = Scene::start(Pages::Base);
    let refused = "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n";
    let proxy = Proxy::start(
        &scene.api(),
        Box::new(move |request, _| {
            let is_state_alone = request.contains("\"mem_file_path\":\"/\"");
            is_state_alone.then(|| refused.to_owned())
        }),
    );
    let options = through(&scene, &proxy);
    let (mut children, report) = fork_with(options, scene.folder.path(), &["a"]).unwrap();
    assert_eq!(report.way, Way::StockSnapshot);
    children[0].check(SEED);
    scene.check_runs_free();
}

/// Neither a process nor a socket of a child is left.
pub(crate) fn check_no_children(folder: &Path, names: &[&str]) {
    for name in names {
        let api = folder.join(format!("{name}.api"));
        assert!(!api.exists(), "the socket of {name} is left");
        let found = processes_with(&api);
        assert!(found.is_empty(), "{name} is left: {found:?}");
    }
}

/// Processes with this argument.
pub(crate) fn processes_with(argument: &Path) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let argument = argument.as_os_str().as_encoded_bytes();
    // A process of this test has it within its options.
    let in_json = [b"\"", argument, b"\""].concat();
    let has =
        |part: &[u8]| part == argument || part.windows(in_json.len()).any(|bytes| bytes == in_json);
    numbers
        .filter(|pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).any(has)
        })
        .collect()
}

fn no_program(_: Pages) {
    let mut scene = Scene::start(Pages::Base);
    let folder = scene.folder.path();
    let (first, _serial) = child_of(folder, "a");
    let (mut second, _other) = child_of(folder, "b");
    let options = |second| {
        let children = vec![first.clone(), second];
        ForkOptions::new(scene.vm(), children)
    };
    second.command = vec!["false".into()];
    let error = fork(&options(second.clone())).unwrap_err();
    assert!(matches!(error, ForkError::Ended { number: 2, .. }), "{error}");
    second.command = vec!["/no/such/program".into()];
    let error = fork(&options(second)).unwrap_err();
    assert!(matches!(error, ForkError::Start { number: 2, .. }), "{error}");
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    check_no_children(folder, &["a", "b"]);
    scene.check_runs_free();
}

fn not_restored(_: Pages) {
    let mut scene = Scene::start(Pages::Base);
    let folder = scene.folder.path();
    let (first, _serial) = child_of(folder, "a");
    let (mut second, _other) = child_of(folder, "b");
    second.load.insert("no_such_field".to_owned(), true.into());
    let options = ForkOptions::new(scene.vm(), vec![first, second]);
    let error = fork(&options).unwrap_err();
    assert!(matches!(error, ForkError::Restore { number: 2, .. }), "{error}");
    check_no_children(folder, &["a", "b"]);
    scene.check_runs_free();
}

/// Its VMM says that it has restored the child.
fn never_connects() {
    let mut scene = Scene::start(Pages::Base);
    let folder = scene.folder.path();
    let (first, _serial) = child_of(folder, "a");
    let (mut second, _other) = child_of(folder, "b");
    second.command = child::answering(&second.api);
    let options = ForkOptions::new(scene.vm(), vec![first, second]);
    let error = fork(&options).unwrap_err();
    assert!(matches!(error, ForkError::NotConnected { number: 2, .. }), "{error}");
    check_no_children(folder, &["a", "b"]);
    scene.check_runs_free();
}

fn socket_exists(_: Pages) {
    let mut scene = Scene::start(Pages::Base);
    let folder = scene.folder.path();
    fs::write(folder.join("b.api"), "kept").unwrap();
    let refused = fork_scene(&scene, &["a", "b"]).map(|_| ()).unwrap_err();
    assert!(matches!(refused, ForkError::Exists { number: 2, .. }), "{refused}");
    assert_eq!(fs::read_to_string(folder.join("b.api")).unwrap(), "kept");
    check_no_children(folder, &["a"]);
    scene.check_runs_free();
}

fn ended(_: Pages) {
    let scene = Scene::start(Pages::Base);
    let pid = scene.vmm.pid();
    let proxy = Proxy::start(
        &scene.api(),
        Box::new(move |request, forward| {
            let answer = forward(request);
            if request.contains("Resumed") {
                kill_and_await_end(pid);
            }
            Some(answer)
        }),
    );
    let options = through(&scene, &proxy);
    let forked = fork_with(options, scene.folder.path(), &["a", "b"]).map(|_| ());
    let ended = matches!(forked, Err(ForkError::Vm(CheckpointError::Ended { .. })));
    assert!(ended, "{forked:?}");
    check_no_children(scene.folder.path(), &["a", "b"]);
}
