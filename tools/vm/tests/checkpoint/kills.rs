//! Checkpoints that are killed: the VM runs on, and the output is whole or absent.
//!
//! A proxy of the API holds back an answer, and the checkpoint is killed before it knows that the
//! VMM has carried out the request. `random_kills.rs` kills at any moment.

use std::fs;
use std::path::PathBuf;

use hugekit_guests::{Pages, Request, Snapshot};
use hugekit_testing::processes::happens;
use hugekit_vm::checkpoint::{CheckpointError, CheckpointOptions, checkpoint};
use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::child;
use crate::pager_child::PagerChild;
use crate::proxy::{Act, Proxy, holding};
use crate::random_kills::check_words;
use crate::scene::{
    LEN, LONGEST_WAIT, PagerThread, SEED, START, Scene, check_file, partial_folders, registered,
    trial,
};

/// The requests of a checkpoint after which the VM is paused, protected, and runs.
const REQUESTS: [&str; 3] = ["Paused", "/snapshot/create", "Resumed"];

pub(crate) fn trials() -> Vec<Trial> {
    let base = |name: &str, check: fn()| trial(&format!("kills::{name}"), Pages::Base, check);
    let each = |pages: Pages| {
        let name = format!("kills::{pages:?}::checkpoint_killed_at_a_request_leaves_nothing");
        trial(&name.to_lowercase(), pages, move || killed_at_requests(pages))
    };
    let others = [
        base("vm_runs_on_while_its_checkpoint_is_stopped", stopped_at_requests),
        base("delta_killed_at_a_request_leaves_nothing", delta_killed_at_requests),
        base("checkpoint_killed_when_its_output_is_there_is_whole", killed_when_whole),
        base("next_checkpoint_releases_memory_if_the_guard_was_killed_too", guard_killed),
        base("vm_whose_pager_is_killed_is_saved_when_it_is_complete", pager_killed),
    ];
    [Pages::Base, Pages::Hugetlb2M].into_iter().map(each).chain(others).collect()
}

pub(crate) fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// Returns when all threads of the process have ended.
pub(crate) fn kill_and_await_end(pid: i32) {
    let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    kill(pid);
    let longest = Timespec::try_from(LONGEST_WAIT).unwrap();
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&longest)).unwrap();
    assert_eq!(ended, 1, "the process does not end");
}

fn killed_at_requests(pages: Pages) {
    let mut scene = Scene::start(pages);
    for request in REQUESTS {
        kill_at(&mut scene, request, &[]);
    }
    checkpoint(&scene.options()).unwrap();
    check_file(&scene.saved().memory, SEED);
}

/// As by Ctrl-Z. When the checkpoint goes on, it fails.
fn stopped_at_requests() {
    let mut scene = Scene::start(Pages::Base);
    for request in REQUESTS {
        let (hold, came, go_on) = holding(request);
        let (proxy, options) = through_proxy(&scene, hold);
        let child = child::start(&options);
        came.recv_timeout(LONGEST_WAIT).unwrap();
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        go_on.send(()).unwrap();
        scene.vmm.serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        let is_free = || registered(scene.vmm.pid()) == 0;
        assert!(happens(is_free), "memory is protected still");
        kill_process(pid, Signal::CONT).unwrap();
        let said = child::said(child);
        assert!(said.contains("this process was stopped"), "{said}");
        drop(proxy);
        scene.check_absent();
        scene.check_runs_free();
    }
    checkpoint(&scene.options()).unwrap();
    check_file(&scene.saved().memory, SEED);
}

/// The next delta leads to the words of its moment.
fn delta_killed_at_requests() {
    let mut scene = Scene::start(Pages::Base);
    let full = scene.folder.path().join("full");
    checkpoint(&CheckpointOptions { output: full.clone(), ..scene.options() }).unwrap();
    let previous = [full.clone()];
    for request in REQUESTS {
        kill_at(&mut scene, request, &previous);
    }
    scene.vmm.serial.ask(Request::Write { start: START, len: LEN / 4, seed: 5 }).unwrap();
    checkpoint(&CheckpointOptions { previous: previous.into(), ..scene.options() }).unwrap();
    check_words(&full, &scene.output(), [SEED, 5]);
}

/// Kills a checkpoint when the VMM has carried out a request, while the guest writes the words that
/// are there already.
fn kill_at(scene: &mut Scene, request: &'static str, previous: &[PathBuf]) {
    let (hold, came, go_on) = holding(request);
    let (proxy, options) = through_proxy(scene, hold);
    scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    let mut child = child::start(&CheckpointOptions { previous: previous.into(), ..options });
    came.recv_timeout(LONGEST_WAIT).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The guard resumes the VM through the proxy.
    go_on.send(()).unwrap();
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    await_free(scene);
    drop(proxy);
    scene.check_absent();
    scene.check_runs_free();
}

fn through_proxy(scene: &Scene, act: Act) -> (Proxy, CheckpointOptions) {
    let proxy = Proxy::start(&scene.api(), act);
    let options = scene.options_through(&proxy.socket);
    (proxy, options)
}

fn killed_when_whole() {
    let mut scene = Scene::start(Pages::Base);
    let mut child = child::start(&scene.options());
    assert!(happens(|| scene.output().exists()), "there is no output");
    child.kill().unwrap();
    child.wait().unwrap();
    await_free(&scene);
    check_file(&scene.saved().memory, SEED);
    assert!(scene.saved().state.exists());
    scene.check_runs_free();
}

/// The guard works when its parent has ended.
pub(crate) fn await_free(scene: &Scene) {
    let is_free = || registered(scene.vmm.pid()) == 0 && partial_folders(scene.folder.path()) == 0;
    assert!(happens(is_free), "the guard leaves something");
}

/// A process that was killed claims the VM until the kernel has ended it. So does a pager until it
/// has put the memory of a complete VM on huge pages.
pub(crate) fn save_when_it_is_free(scene: &Scene) {
    let is_saved = || match checkpoint(&scene.options()) {
        Err(CheckpointError::InUse { .. }) => false,
        saved => saved.map(|_| true).unwrap(),
    };
    assert!(happens(is_saved), "the VM is in use");
}

/// The VM is paused and protected then.
fn guard_killed() {
    let mut scene = Scene::start(Pages::Base);
    let (hold, came, go_on) = holding("/snapshot/create");
    let (proxy, options) = through_proxy(&scene, hold);
    let mut child = child::start(&options);
    came.recv_timeout(LONGEST_WAIT).unwrap();
    let pid = child.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert!(!children.is_empty(), "there is no guard");
    children.split_whitespace().for_each(|guard| kill(guard.parse().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    go_on.send(()).unwrap();
    drop(proxy);
    assert!(registered(scene.vmm.pid()) > 0, "nothing is protected");
    scene.vmm.resume().unwrap();
    save_when_it_is_free(&scene);
    check_file(&scene.saved().memory, SEED);
    scene.check_runs_free();
}

/// A VM of which its first pager has supplied a part is refused, and is saved when the next pager has
/// left it.
fn pager_killed() {
    let mut scene = Scene::start(Pages::Base);
    let memory = Snapshot::in_folder(scene.folder.path()).memory;
    let mut pager = PagerChild::start(scene.folder.path().join("q.sock"), &memory, false);
    scene = scene.served_by(&pager.socket);
    scene.vmm.serial.ask(Request::Touch { start: START, len: LEN / 2 }).unwrap();
    pager.kill();
    let refused = checkpoint(&scene.options()).unwrap_err();
    assert!(matches!(refused, CheckpointError::Incomplete { .. }), "{refused}");
    scene.check_absent();
    let next = PagerThread::start(pager.socket.clone(), &memory, true);
    assert!(happens(|| registered(scene.vmm.pid()) == 0), "the VM is not complete");
    drop(next);
    save_when_it_is_free(&scene);
    check_file(&scene.saved().memory, SEED);
    scene.check_runs_free();
}
