//! Checkpoints that are killed at random moments: the VM runs on, and the output is whole or absent.
//!
//! `HUGEKIT_CHECKPOINT_KILLS` is how many of each kind, instead of the usual few.

use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_checkpoint::{CheckpointError, Settings, checkpoint, state_of};
use hugekit_guests::{Pages, Request, pattern_at};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::child;
use crate::scene::{
    LEN, LONGEST_WAIT, SEED, START, Scene, check_file, partial_folders, registered, trial,
};

const USUAL: u32 = 4;

pub(crate) fn kills() -> u32 {
    asked().unwrap_or(USUAL)
}

/// How many kills are asked for.
pub(crate) fn asked() -> Option<u32> {
    std::env::var("HUGEKIT_CHECKPOINT_KILLS").ok()?.parse().ok()
}

pub(crate) fn trials() -> Vec<Trial> {
    let name = "kills::checkpoint_that_is_killed_is_whole_or_absent";
    let mut trials: Vec<Trial> = [Pages::Base, Pages::Hugetlb2M]
        .into_iter()
        .map(|pages| {
            trial(&format!("{name}_{pages:?}").to_lowercase(), pages, move || killed(pages))
        })
        .collect();
    let name = "kills::delta_that_is_killed_is_whole_or_absent";
    trials.push(trial(name, Pages::Base, deltas_killed));
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

/// While the guest writes other words. The delta that is whole leads to the words of its moment.
fn deltas_killed() {
    let mut scene = Scene::start(Pages::Base);
    let full = scene.folder.path().join("full");
    checkpoint(&Settings { output: full.clone(), ..scene.settings() }).unwrap();
    let settings = Settings { previous: vec![full.clone()], ..scene.settings() };
    let longest = usual_time(&mut scene);
    let mut whole = 0;
    for seed in 0..u64::from(kills()) {
        let mut child = child::start(&settings);
        sleep(longest.mul_f64(fastrand::f64()));
        let write = Request::Write { start: START, len: LEN, seed };
        scene.vmm.serial.send(write).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        await_free(&scene);
        if scene.output().exists() {
            check_words(&full, &scene.output(), [SEED, seed]);
            fs::remove_dir_all(scene.output()).unwrap();
            whole += 1;
        }
        scene.check_absent();
        scene.check_runs_free();
    }
    eprintln!("{whole} of {} were whole, in {longest:?}", kills());
}

/// Each word has the pattern of one of these: the guest may be writing at the moment that is saved.
fn check_words(full: &Path, delta: &Path, seeds: [u64; 2]) {
    let memory = full.join("memory");
    let (mut bytes, state) = (fs::read(&memory).unwrap(), state_of(&memory));
    let mut file = File::open(delta.join("memory.delta")).unwrap();
    hugekit_delta::apply(&mut bytes, state, &mut file).unwrap();
    assert!(delta.join("vmstate").exists());
    let words = bytes[START as usize..(START + LEN) as usize].chunks_exact(8);
    for (word, at) in words.zip((START..).step_by(8)) {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        assert!(seeds.iter().any(|&seed| pattern_at(at, seed) == word), "{at:#x}: {word:#x}");
    }
}

/// Twice that of one that is not killed: the guest does not write meanwhile.
pub(crate) fn usual_time(scene: &mut Scene) -> Duration {
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

/// A process that was killed claims the VM until the kernel has ended it. So does a pager until it
/// has put the memory of a complete VM on huge pages.
pub(crate) fn save_when_it_is_free(scene: &Scene) {
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
    save_when_it_is_free(&scene);
    check_file(&scene.saved().memory, SEED);
    scene.check_runs_free();
}
