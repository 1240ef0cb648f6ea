//! Kills of other processes than the checkpoint, at random moments: of the VM that it saves, and of
//! the pager that still supplies the memory of this VM.

use std::fs;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request, Snapshot};
use hugekit_testing::seed::random;
use libtest_mimic::Trial;

use crate::child;
use crate::kills::{kill, save_when_it_is_free};
use crate::pager_child::PagerChild;
use crate::random_kills::{REASON, usual_time};
use crate::scene::{
    LEN, LONGEST_WAIT, PagerThread, SEED, START, Scene, check_file, nightly, registered,
};

/// Kills of one test. Each kill needs a VM of its own.
const KILLS: u32 = 30;

pub(crate) fn trials() -> Vec<Trial> {
    let base = |name: &str, check: fn()| nightly(REASON, name, Pages::Base, check);
    vec![
        base("kills::checkpoint_whose_vm_is_killed_is_whole_or_absent", vm_killed),
        base("kills::vm_whose_pager_is_killed_at_any_moment_is_saved", pager_killed),
    ]
}

/// While the guest writes the words that are there already.
fn vm_killed() {
    let (mut scene, mut random) = (Scene::start(Pages::Base), random());
    let longest = usual_time(&mut scene);
    let mut whole = 0;
    for _ in 0..KILLS {
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        let child = child::start(&scene.options());
        random_wait(longest, &mut random);
        kill(scene.vmm.pid());
        whole += u32::from(check_end(&scene, child));
        scene = scene.restarted();
    }
    eprintln!("VM: {whole} of {KILLS} were whole, in {longest:?}");
}

/// Mostly a short one: `longest` is that of a busy machine.
fn random_wait(longest: Duration, random: &mut fastrand::Rng) {
    sleep(longest.mul_f64(random.f64().powi(2)));
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
    let (mut saved, mut taken_over, mut random) = (0, 0, random());
    for _ in 0..KILLS {
        let mut pager = PagerChild::start(scene.folder.path().join("q.sock"), &memory, true);
        scene = scene.served_by(&pager.socket);
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        random_wait(longest / 2, &mut random);
        let child = child::start(&scene.options());
        random_wait(longest / 2, &mut random);
        pager.kill();
        random_wait(longest / 2, &mut random);
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
    eprintln!("pager: {saved} of {KILLS} saved, {taken_over} taken over, in {longest:?}");
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
