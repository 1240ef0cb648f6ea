//! Checkpoints that are killed at random moments.

use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request, pattern_at};
use hugekit_testing::seed::random;
use hugekit_vm::checkpoint::{CheckpointOptions, checkpoint, state_of};
use libtest_mimic::Trial;

use crate::child;
use crate::kills::await_free;
use crate::scene::{LEN, LONGEST_WAIT, SEED, START, Scene, check_file, nightly};

/// Kills of one test.
const KILLS: u32 = 60;

/// Why a test is not in CI.
pub(crate) const REASON: &str = "it kills at random moments";

pub(crate) fn trials() -> Vec<Trial> {
    let name = "kills::checkpoint_that_is_killed_is_whole_or_absent";
    let each = |pages: Pages| {
        let name = format!("{name}_{pages:?}").to_lowercase();
        nightly(REASON, &name, pages, move || killed(pages))
    };
    let name = "kills::delta_that_is_killed_is_whole_or_absent";
    let delta = nightly(REASON, name, Pages::Base, deltas_killed);
    [Pages::Base, Pages::Hugetlb2M].into_iter().map(each).chain([delta]).collect()
}

/// While the guest writes the words that are there already.
fn killed(pages: Pages) {
    let (mut scene, mut random) = (Scene::start(pages), random());
    let mut whole = 0;
    let longest = usual_time(&mut scene);
    for _ in 0..KILLS {
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        let mut child = child::start(&scene.options());
        sleep(longest.mul_f64(random.f64()));
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
    assert!(child::start(&scene.options()).wait().unwrap().success());
    check_file(&scene.saved().memory, SEED);
    eprintln!("{pages:?}: {whole} of {KILLS} were whole, in {longest:?}");
}

/// While the guest writes other words. The delta that is whole leads to the words of its moment.
fn deltas_killed() {
    let (mut scene, mut random) = (Scene::start(Pages::Base), random());
    let full = scene.folder.path().join("full");
    checkpoint(&CheckpointOptions { output: full.clone(), ..scene.options() }).unwrap();
    let options = CheckpointOptions { previous: vec![full.clone()], ..scene.options() };
    let longest = usual_time(&mut scene);
    let mut whole = 0;
    for seed in 0..u64::from(KILLS) {
        let mut child = child::start(&options);
        sleep(longest.mul_f64(random.f64()));
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
    eprintln!("{whole} of {KILLS} were whole, in {longest:?}");
}

/// Each word has the pattern of one of these: the guest may be writing at the moment that is saved.
pub(crate) fn check_words(full: &Path, delta: &Path, seeds: [u64; 2]) {
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
    assert!(child::start(&scene.options()).wait().unwrap().success());
    let time = since.elapsed();
    fs::remove_dir_all(scene.output()).unwrap();
    scene.check_runs_free();
    time.mul_f64(2.0)
}
