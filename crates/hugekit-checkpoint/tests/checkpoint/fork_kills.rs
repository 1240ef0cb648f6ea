//! Forks whose command, child or VM is killed at random moments.
//!
//! `HUGEKIT_CHECKPOINT_KILLS` is how many of each kind, instead of the usual few.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request};
use libtest_mimic::Trial;

use crate::child::{self, CHILDREN};
use crate::forks::{check_no_children, processes_with};
use crate::kills::{kill, kills};
use crate::scene::{LEN, LONGEST_WAIT, SEED, START, Scene, registered, trial};

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Command,
    Child,
    Vm,
}

pub(crate) fn trials() -> Vec<Trial> {
    [Victim::Command, Victim::Child, Victim::Vm]
        .into_iter()
        .map(|victim| {
            let name = format!("forks::kills::fork_whose_{victim:?}_is_killed_leaves_nothing");
            trial(&name.to_lowercase(), Pages::Base, move || killed(victim))
        })
        .collect()
}

fn killed(victim: Victim) {
    let mut scene = Scene::start(Pages::Base);
    let longest = usual_time(&mut scene);
    let mut whole = 0;
    for _ in 0..kills() {
        whole += u32::from(kill_one(&mut scene, victim, longest));
        if victim == Victim::Vm {
            scene = scene.restarted();
        }
    }
    eprintln!("{victim:?}: {whole} of {} were whole, in {longest:?}", kills());
}

/// While the guest writes the words that are there already. Whether children are left, which are
/// whole then.
fn kill_one(scene: &mut Scene, victim: Victim, longest: Duration) -> bool {
    scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    let mut command = child::start_fork(scene.vmm.pid(), &scene.api());
    // Most of the time passes when the memory of the VM is copied already.
    sleep(longest.mul_f64(fastrand::f64().powi(2)));
    match victim {
        Victim::Command => command.kill().unwrap(),
        Victim::Child => {
            let found = processes_with(&scene.folder.path().join("b.api"));
            found.into_iter().for_each(kill);
        }
        Victim::Vm => kill(scene.vmm.pid()),
    }
    let status = command.wait().unwrap();
    await_guard(scene);
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
fn await_guard(scene: &Scene) {
    let until = Instant::now() + LONGEST_WAIT;
    while processes_with(&scene.api()).iter().any(|&pid| pid != scene.vmm.pid()) {
        assert!(Instant::now() < until, "the guard does not end");
        sleep(Duration::from_millis(2));
    }
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
