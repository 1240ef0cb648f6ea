//! Forks whose command, child or VM is killed: when the VM runs again and before its memory is
//! copied, and at random moments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request};
use hugekit_testing::processes::happens;
use hugekit_testing::seed::random;
use libtest_mimic::Trial;

use crate::child::{self, CHILDREN};
use crate::forks::{check_no_children, processes_with};
use crate::kills::kill;
use crate::proxy::{Proxy, holding_resume};
use crate::random_kills::REASON;
use crate::scene::{LEN, LONGEST_WAIT, SEED, START, Scene, nightly, registered, trial};

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Command,
    Child,
    Vm,
}

/// Kills of one victim at random moments.
const KILLS: u32 = 30;

pub(crate) fn trials() -> Vec<Trial> {
    let each = |victim: Victim| {
        let name = |end: &str| format!("forks::kills::fork_whose_{victim:?}_is_killed_{end}");
        let name = |end: &str| name(end).to_lowercase();
        [
            trial(&name("leaves_nothing"), Pages::Base, move || killed_in_the_copy(victim)),
            nightly(REASON, &name("at_any_moment_leaves_nothing"), Pages::Base, move || {
                killed_at_random(victim);
            }),
        ]
    };
    [Victim::Command, Victim::Child, Victim::Vm].into_iter().flat_map(each).collect()
}

/// The fork does not know yet that the VM runs again.
fn killed_in_the_copy(victim: Victim) {
    let mut scene = Scene::start(Pages::Base);
    let (hold, came, go_on) = holding_resume();
    let proxy = Proxy::start(&scene.api(), hold);
    let is_whole = kill_one(&mut scene, victim, &proxy.socket, |command| {
        came.recv_timeout(LONGEST_WAIT).unwrap();
        end(command, victim);
        go_on.send(()).unwrap();
    });
    assert!(!is_whole, "children are left");
}

fn killed_at_random(victim: Victim) {
    let (mut scene, mut random) = (Scene::start(Pages::Base), random());
    let longest = usual_time(&mut scene);
    let mut whole = 0;
    for _ in 0..KILLS {
        let api = scene.api();
        let is_whole = kill_one(&mut scene, victim, &api, |command| {
            // Most of the time passes when the memory of the VM is copied already.
            sleep(longest.mul_f64(random.f64().powi(2)));
            end(command, victim);
        });
        whole += u32::from(is_whole);
        if victim == Victim::Vm {
            scene = scene.restarted();
        }
    }
    eprintln!("{victim:?}: {whole} of {KILLS} were whole, in {longest:?}");
}

/// A fork that runs.
struct Forking {
    command: Child,
    vm: i32,
    /// The API of its second child.
    second: PathBuf,
}

fn end(forking: &mut Forking, victim: Victim) {
    match victim {
        Victim::Command => forking.command.kill().unwrap(),
        Victim::Child => processes_with(&forking.second).into_iter().for_each(kill),
        Victim::Vm => kill(forking.vm),
    }
}

/// Has `act` kill the victim while the guest writes the words that are there already. Whether
/// children are left, which are whole then.
fn kill_one(scene: &mut Scene, victim: Victim, api: &Path, act: impl FnOnce(&mut Forking)) -> bool {
    scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    let command = child::start_fork(scene.vmm.pid(), api);
    let second = scene.folder.path().join("b.api");
    let mut forking = Forking { command, vm: scene.vmm.pid(), second };
    act(&mut forking);
    let status = forking.command.wait().unwrap();
    await_guard(scene.vmm.pid(), api);
    if victim != Victim::Vm {
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        assert_eq!(registered(scene.vmm.pid()), 0, "the guard leaves memory protected");
    }
    let is_whole = end_whole_children(scene.folder.path());
    assert!(is_whole || !status.success(), "a child is missing");
    check_left(scene.folder.path());
    if victim != Victim::Vm {
        scene.check_runs_free();
    }
    is_whole
}

/// Twice that of one that is not killed.
fn usual_time(scene: &mut Scene) -> Duration {
    let since = Instant::now();
    assert!(child::start_fork(scene.vmm.pid(), &scene.api()).wait().unwrap().success());
    let time = since.elapsed();
    end_children(scene.folder.path());
    scene.check_runs_free();
    time.mul_f64(1.5)
}

fn end_children(folder: &Path) {
    for name in CHILDREN {
        let api = folder.join(format!("{name}.api"));
        let until = Instant::now() + LONGEST_WAIT;
        while let Some(&pid) = processes_with(&api).first() {
            assert!(Instant::now() < until, "a child does not end");
            kill(pid);
            sleep(Duration::from_millis(2));
        }
        let _ = fs::remove_file(&api);
    }
    remove_pipes(folder);
}

fn remove_pipes(folder: &Path) {
    for name in CHILDREN {
        ["in", "out"].iter().for_each(|end| {
            let _ = fs::remove_file(folder.join(format!("{name}.{end}")));
        });
    }
}

/// The guard works when the command has ended. It has the command's arguments.
fn await_guard(vm: i32, api: &Path) {
    let has_ended = || processes_with(api).iter().all(|&pid| pid == vm);
    assert!(happens(has_ended), "the guard does not end");
}

/// Ends the children of a fork that was complete. Whether it was.
fn end_whole_children(folder: &Path) -> bool {
    let find = |name| processes_with(&folder.join(format!("{name}.api")));
    let found: Vec<i32> = CHILDREN.into_iter().flat_map(find).collect();
    if found.is_empty() {
        return false;
    }
    // One of them may be the victim of a kill after the end.
    found.iter().for_each(|&pid| assert_eq!(registered(pid), 0, "a child is not complete"));
    end_children(folder);
    true
}

/// Neither children nor files are left.
fn check_left(folder: &Path) {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let is_room = |name: &String| name.starts_with(".hugekit-fork-");
    assert!(!names.iter().any(is_room), "the folder of the fork is left");
    check_no_children(folder, &CHILDREN);
    remove_pipes(folder);
}
