//! Checkpoints that are killed at random moments: the VM runs on, and the output is whole or absent.
//!
//! `HUGEKIT_CHECKPOINT_KILLS` is how many of each kind, instead of the usual few.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_checkpoint::{CheckpointError, checkpoint};
use hugekit_guests::{Pages, Request};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::child;
use crate::scene::{
    LEN, LONGEST_WAIT, SEED, START, Scene, check_file, partial_folders, registered, trial,
};

const USUAL: u32 = 12;

pub(crate) fn kills() -> u32 {
    std::env::var("HUGEKIT_CHECKPOINT_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(USUAL)
}

pub(crate) fn trials() -> Vec<Trial> {
    let name = "kills::checkpoint_that_is_killed_is_whole_or_absent";
    let mut trials: Vec<Trial> = [Pages::Base, Pages::Hugetlb2M]
        .into_iter()
        .map(|pages| {
            trial(&format!("{name}_{pages:?}").to_lowercase(), pages, move || killed(pages))
        })
        .collect();
    let name = "kills::next_checkpoint_releases_memory_if_the_guard_was_killed_too";
    trials.push(trial(name, Pages::Base, guard_killed));
    trials
}

pub(crate) fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// While the guest writes the words that are there already.
fn killed(pages: Pages) {
    let mut scene = Scene::start(pages);
    let mut whole = 0;
    let longest = usual_time(&mut scene);
    for _ in 0..kills() {
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        let mut child = child::start(&scene.settings());
        sleep(longest.mul_f64(fastrand::f64()));
        child.kill().unwrap();
        child.wait().unwrap();
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        await_free(&scene);
        if scene.output().exists() {
            check_file(&scene.saved().memory, SEED);
            assert!(scene.saved().state.exists());
            fs::remove_dir_all(scene.output()).unwrap();
            whole += 1;
        }
        scene.check_absent();
        scene.check_runs_free();
    }
    assert!(child::start(&scene.settings()).wait().unwrap().success());
    check_file(&scene.saved().memory, SEED);
    eprintln!("{pages:?}: {whole} of {} were whole, in {longest:?}", kills());
}

/// Twice that of one that is not killed: the guest does not write meanwhile.
fn usual_time(scene: &mut Scene) -> Duration {
    let since = Instant::now();
    assert!(child::start(&scene.settings()).wait().unwrap().success());
    let time = since.elapsed();
    fs::remove_dir_all(scene.output()).unwrap();
    scene.check_runs_free();
    time.mul_f64(2.0)
}

/// The guard works when its parent has ended.
fn await_free(scene: &Scene) {
    let until = Instant::now() + LONGEST_WAIT;
    while registered(scene.vmm.pid()) > 0 || partial_folders(scene.folder.path()) > 0 {
        assert!(Instant::now() < until, "the guard leaves something");
        sleep(Duration::from_millis(2));
    }
}

/// A process that was killed claims the VM until the kernel has ended it.
fn save_when_the_guard_has_ended(scene: &Scene) {
    let until = Instant::now() + LONGEST_WAIT;
    loop {
        match checkpoint(&scene.settings()) {
            Err(CheckpointError::InUse { .. }) if Instant::now() < until => {
                sleep(Duration::from_millis(2));
            }
            saved => {
                saved.unwrap();
                return;
            }
        }
    }
}

fn guard_killed() {
    let mut scene = Scene::start(Pages::Base);
    let mut child = child::start(&scene.settings());
    let until = Instant::now() + LONGEST_WAIT;
    while registered(scene.vmm.pid()) == 0 {
        assert!(Instant::now() < until, "it protects nothing");
    }
    let pid = child.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().for_each(|guard| kill(guard.parse().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    // The guest may have been left paused.
    let _ = scene.vmm.resume();
    if scene.output().exists() {
        fs::remove_dir_all(scene.output()).unwrap();
    }
    save_when_the_guard_has_ended(&scene);
    check_file(&scene.saved().memory, SEED);
    scene.check_runs_free();
}
