//! VMs that end, or that other programs resume or pause meanwhile; VMs that cannot be saved; two
//! checkpoints at once; a full disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use hugekit_guests::{Firecracker, Pages, Request};
use hugekit_vm::checkpoint::{
    CheckpointError, CheckpointOptions, ControlError, RunningVm, VmProspects, checkpoint,
};
use libtest_mimic::Trial;

use crate::child;
use crate::kills::kill_and_await_end;
use crate::proxy::{Proxy, request};
use crate::scene::{LEN, LONGEST_WAIT, PagerThread, SEED, START, Scene, check_file, origin, trial};
use hugekit_testing::trials::skipped;

type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("hostile::vm_that_ends_before_it_is_saved_leaves_nothing", ended_before),
    ("hostile::vm_that_ends_in_the_copy_leaves_nothing", ended_in_the_copy),
    ("hostile::vm_that_another_program_resumes_is_not_saved", resumed_by_another),
    ("hostile::vm_that_another_program_pauses_is_saved_and_stays_paused", paused_by_another),
    ("hostile::vm_that_was_booted_is_refused", booted),
    ("hostile::vm_that_a_pager_serves_is_refused", served),
    ("hostile::api_of_another_vmm_is_refused", other_api),
    ("hostile::second_checkpoint_at_once_is_refused_or_follows", two_at_once),
    ("hostile::full_disk_leaves_nothing", || full_disk(false)),
    ("hostile::disk_that_becomes_full_in_a_delta_leaves_nothing", || full_disk(true)),
];

pub(crate) fn trials() -> Vec<Trial> {
    CHECKS.iter().map(|&(name, check)| trial(name, Pages::Base, check)).collect()
}

/// Saves a VM through a proxy that does something at a kind of request.
fn save_with(
    scene: &Scene,
    at: &'static str,
    act: impl Fn(&str, &dyn Fn(&str) -> String) -> Option<String> + Send + 'static,
) -> Result<(), CheckpointError> {
    let proxy = Proxy::start(
        &scene.api(),
        Box::new(
            move |request, forward| {
                if request.contains(at) { act(request, forward) } else { None }
            },
        ),
    );
    let options = scene.options_through(&proxy.socket);
    checkpoint(&options).map(|_| ())
}

fn ended_before() {
    let scene = Scene::start(Pages::Base);
    let pid = scene.vmm.pid();
    let saved = save_with(&scene, "/snapshot/create", move |_, _| {
        kill_and_await_end(pid);
        Some(String::new())
    });
    assert!(matches!(saved, Err(CheckpointError::Ended { .. })), "{saved:?}");
    scene.check_absent();
}

fn ended_in_the_copy() {
    let scene = Scene::start(Pages::Base);
    let pid = scene.vmm.pid();
    let saved = save_with(&scene, "Resumed", move |request, forward| {
        let answer = forward(request);
        kill_and_await_end(pid);
        Some(answer)
    });
    assert!(matches!(saved, Err(CheckpointError::Ended { .. })), "{saved:?}");
    scene.check_absent();
}

fn resumed_by_another() {
    let mut scene = Scene::start(Pages::Base);
    let saved = save_with(&scene, "/snapshot/create", |_, forward| {
        let answer = forward(&request("PATCH", "/vm", "{\"state\": \"Resumed\"}"));
        assert!(answer.contains("204") || answer.contains("400"), "{answer}");
        None
    });
    assert!(
        matches!(saved, Err(CheckpointError::Control(ControlError::Refused { .. }))),
        "{saved:?}"
    );
    scene.check_absent();
    scene.check_runs_free();
}

fn paused_by_another() {
    let mut scene = Scene::start(Pages::Base);
    save_with(&scene, "Resumed", |request_, forward| {
        let answer = forward(request_);
        assert!(forward(&request("PATCH", "/vm", "{\"state\": \"Paused\"}")).contains("204"));
        Some(answer)
    })
    .unwrap();
    check_file(&scene.saved().memory, SEED);
    scene.vmm.resume().unwrap();
    scene.check_runs_free();
}

fn booted() {
    let folder = tempfile::tempdir().unwrap();
    let mut vmm = Firecracker::start(folder.path(), "booted").unwrap();
    vmm.boot(64, Pages::Base).unwrap();
    vmm.serial.ask(Request::Reply).unwrap();
    let (api, output) = (folder.path().join("booted.api"), folder.path().join("saved"));
    let vm = RunningVm::new(api);
    let refused = checkpoint(&CheckpointOptions::new(vm, output.clone())).unwrap_err();
    assert!(matches!(refused, CheckpointError::NoUserfaultfd { .. }), "{refused}");
    let found = VmProspects::of(vmm.pid()).unwrap().expect("it has a VM");
    assert!(matches!(found.save, Err(CheckpointError::NoUserfaultfd { .. })), "{found:?}");
    assert!(found.huge_pages.is_ok() && !found.keeps_layout, "{found:?}");
    assert!(VmProspects::of(std::process::id() as i32).unwrap().is_none());
    assert!(refused.remedy().unwrap().contains("stock snapshot") && !output.exists());
    vmm.serial.ask(Request::Reply).unwrap();
}

/// Also when the pager has ended, and its VM waits for the next one.
fn served() {
    let (folder, snapshot) = origin(Pages::Base);
    let socket = folder.path().join("p.sock");
    let pager = PagerThread::start(socket.clone(), &snapshot.memory, false);
    let mut vmm = Firecracker::start(folder.path(), "clone").unwrap();
    vmm.load_by_handler(&snapshot, &socket, true).unwrap();
    vmm.serial.ask(Request::Reply).unwrap();
    let (api, output) = (folder.path().join("clone.api"), folder.path().join("saved"));
    let options = CheckpointOptions::new(RunningVm::new(api), output);
    let refused = checkpoint(&options).unwrap_err();
    assert!(matches!(refused, CheckpointError::InUse { .. }), "{refused}");
    let is_in_use = |found: &VmProspects| matches!(found.save, Err(CheckpointError::InUse { .. }));
    assert!(VmProspects::of(vmm.pid()).unwrap().as_ref().is_some_and(is_in_use));
    drop(pager);
    let refused = checkpoint(&options).unwrap_err();
    assert!(matches!(refused, CheckpointError::Incomplete { .. }), "{refused}");
    let _pager = PagerThread::start(socket, &snapshot.memory, false);
    crate::scene::check_pattern(&mut vmm, SEED);
}

fn other_api() {
    let scene = Scene::start(Pages::Base);
    let other = Firecracker::start(scene.folder.path(), "other").unwrap();
    let mut options = scene.options();
    options.vm.pid = Some(other.pid());
    let refused = checkpoint(&options).unwrap_err();
    assert!(
        matches!(refused, CheckpointError::Control(ControlError::OtherVmm { .. })),
        "{refused}"
    );
    scene.check_absent();
}

fn two_at_once() {
    let mut scene = Scene::start(Pages::Base);
    let outputs = ["one", "other"].map(|name| scene.folder.path().join(name));
    let options = outputs.clone().map(|output| CheckpointOptions { output, ..scene.options() });
    let children = options.each_ref().map(child::start);
    let ends = children.map(|child| child.wait_with_output().unwrap());
    for (end, output) in ends.iter().zip(&outputs) {
        let said = String::from_utf8_lossy(&end.stdout);
        assert!(end.status.success() == output.exists(), "{said}");
        if end.status.success() {
            check_file(&output.join("memory"), SEED);
        } else {
            assert!(said.contains("another checkpoint"), "{said}");
        }
    }
    assert!(ends.iter().any(|end| end.status.success()), "none was saved");
    scene.check_runs_free();
}

/// On a file system that is too small. Room for a delta is not reserved: the VM runs already.
fn full_disk(is_delta: bool) {
    let mut scene = Scene::start(Pages::Base);
    let mut previous = Vec::new();
    if is_delta {
        checkpoint(&scene.options()).unwrap();
        previous.push(scene.output());
        let write = Request::Write { start: START, len: LEN, seed: 5 };
        scene.vmm.serial.ask(write).unwrap();
    }
    let small = scene.folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&small) else {
        skipped("only root mounts a file system");
        return;
    };
    let options = CheckpointOptions { output: small.join("saved"), previous, ..scene.options() };
    let refused = checkpoint(&options).unwrap_err();
    assert!(matches!(refused, CheckpointError::Output { .. }), "{refused}");
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
    let _ = fs::remove_dir_all(scene.output());
    scene.vmm.serial.send(Request::Reply).unwrap();
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    scene.check_runs_free();
}

/// A file system of 8 MiB.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn tmpfs(at: &'a Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(at);
        mount.status().is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}
