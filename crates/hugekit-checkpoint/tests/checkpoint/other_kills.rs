//! Kills of other processes than the checkpoint: of the VM that it saves, and of the pager that
//! still supplies the memory of this VM.
//!
//! `HUGEKIT_CHECKPOINT_KILLS` is how many of each kind, instead of the usual few.

use std::fs;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request, Snapshot};
use libtest_mimic::Trial;

use crate::child;
use crate::kills::{asked, kill, save_when_it_is_free, usual_time};
use crate::pager_child::PagerChild;
use crate::scene::{
    LEN, LONGEST_WAIT, PagerThread, SEED, START, Scene, check_file, registered, trial,
};

/// Each kill needs a VM of its own.
const USUAL: u32 = 3;

fn kills() -> u32 {
    asked().unwrap_or(USUAL)
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("kills::checkpoint_whose_vm_is_killed_is_whole_or_absent", Pages::Base, vm_killed),
        trial(
            "kills::vm_whose_pager_is_killed_is_saved_when_it_is_complete",
            Pages::Base,
            pager_killed,
        ),
    ]
}

/// While the guest writes the words that are there already.
fn vm_killed() {
    let mut scene = Scene::start(Pages::Base);
    let longest = usual_time(&mut scene);
    let mut whole = 0;
    for _ in 0..kills() {
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        let child = child::start(&scene.settings());
        random_wait(longest);
        kill(scene.vmm.pid());
        whole += u32::from(check_end(&scene, child));
        scene = scene.restarted();
    }
    eprintln!("VM: {whole} of {} were whole, in {longest:?}", kills());
}

/// Mostly a short one: `longest` is that of a busy machine.
fn random_wait(longest: Duration) {
    sleep(longest.mul_f64(fastrand::f64().powi(2)));
}

/// The checkpoint has ended by itself, and its status is that of the output, which is removed.
/// Whether there was output.
fn check_end(scene: &Scene, mut child: Child) -> bool {
    let status = await_end(&mut child);
    let is_whole = scene.output().exists();
    assert_eq!(status.code(), Some(i32::from(!is_whole)), "{}", child::said(child));
    if is_whole {
        check_file(&scene.saved().memory, SEED);
        assert!(scene.saved().state.exists());
        fs::remove_dir_all(scene.output()).unwrap();
    } else {
        assert!(!child::said(child).trim().is_empty(), "no error is printed");
    }
    scene.check_absent();
    is_whole
}

fn await_end(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + LONGEST_WAIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < until, "the checkpoint does not end");
        sleep(Duration::from_millis(2));
    }
}

/// The next pager takes the VM over, if it is not complete. Before that, the checkpoint is refused.
fn pager_killed() {
    let (mut scene, longest) = time_to_complete(Scene::start(Pages::Base));
    let memory = Snapshot::in_folder(scene.folder.path()).memory;
    let (mut saved, mut taken_over) = (0, 0);
    for _ in 0..kills() {
        let mut pager = PagerChild::start(scene.folder.path().join("q.sock"), &memory);
        scene = scene.served_by(&pager.socket);
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        random_wait(longest / 2);
        let child = child::start(&scene.settings());
        random_wait(longest / 2);
        pager.kill();
        random_wait(longest / 2);
        let next = PagerThread::start(pager.socket.clone(), &memory, true);
        saved += u32::from(check_end(&scene, child));
        taken_over += u32::from(await_complete(&scene));
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        drop(next);
        save_when_it_is_free(&scene);
        check_file(&scene.saved().memory, SEED);
        fs::remove_dir_all(scene.output()).unwrap();
        scene.check_runs_free();
    }
    let kills = kills();
    eprintln!("pager: {saved} of {kills} saved, {taken_over} taken over, in {longest:?}");
}

/// Twice that of a pager that is not killed.
fn time_to_complete(scene: Scene) -> (Scene, Duration) {
    let since = Instant::now();
    let scene = scene.restarted();
    (scene, since.elapsed().mul_f64(2.0))
}

/// Whether the VM was not complete at first.
fn await_complete(scene: &Scene) -> bool {
    let until = Instant::now() + LONGEST_WAIT;
    let mut waited = false;
    while registered(scene.vmm.pid()) > 0 {
        assert!(Instant::now() < until, "the VM is not complete");
        waited = true;
        sleep(Duration::from_millis(2));
    }
    waited
}
