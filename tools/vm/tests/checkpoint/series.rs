//! Series of checkpoints: each one reads only memory that was written since the one before.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hugekit_delta::{StateId, apply};
use hugekit_guests::{Pages, Request};
use hugekit_machine::processes::ProcessFolder;
use hugekit_testing::processes::happens;
use hugekit_vm::checkpoint::{
    CheckpointError, CheckpointOptions, CheckpointReport, SeriesOptions, checkpoint_series,
    state_of,
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::child;
use crate::kills::{kill, save_when_it_is_free};
use crate::proxy::{Proxy, also_saving_to};
use crate::scene::{
    LEN, LONGEST_WAIT, MIB, SEED, START, Scene, check_file, partial_folders, registered, trial,
};

/// At once, one after the other.
const AT_ONCE: Duration = Duration::ZERO;

pub(crate) fn trials() -> Vec<Trial> {
    let pages = [Pages::Base, Pages::Hugetlb2M];
    let each = |pages: Pages| {
        let name = |name: &str| format!("{pages:?}::series_{name}").to_lowercase();
        [
            trial(&name("leads_to_stock_snapshots_of_the_same_pauses"), pages, move || {
                same_as_stock(pages);
            }),
            trial(&name("copies_only_what_was_written"), pages, move || few_writes(pages)),
        ]
    };
    let base = |name: &str, check: fn()| trial(&format!("series::{name}"), Pages::Base, check);
    let others = [
        base("vm_that_ends_ends_its_series", vm_ends),
        base("series_that_is_killed_releases_the_vm", killed),
        base("series_that_is_stopped_makes_a_last_checkpoint_if_asked", stopped),
        base("vm_runs_on_while_its_series_is_stopped", stopped_by_signal),
        base("folder_that_holds_anything_is_refused", folder_in_use),
    ];
    pages.into_iter().flat_map(each).chain(others).collect()
}

/// The memory after each checkpoint.
#[derive(Default)]
pub(crate) struct Follower {
    pub(crate) bytes: Vec<u8>,
    state: Option<StateId>,
}

impl Follower {
    /// Of a folder with all memory, or with a delta of the one before.
    pub(crate) fn follow(&mut self, folder: &Path) {
        let memory = folder.join("memory");
        assert!(folder.join("vmstate").exists());
        if memory.exists() {
            (self.bytes, self.state) = (fs::read(&memory).unwrap(), state_of(&memory));
            return;
        }
        let mut delta = File::open(folder.join("memory.delta")).unwrap();
        self.state = Some(apply(&mut self.bytes, self.state, &mut delta).unwrap());
    }
}

/// A series that nothing but its count stops.
pub(crate) fn run(
    options: &CheckpointOptions,
    series: &SeriesOptions,
    each: &mut dyn FnMut(&Path, &CheckpointReport),
) -> Result<(), CheckpointError> {
    let (stop, _keep) = UnixStream::pair().unwrap();
    checkpoint_series(options, series, stop.as_fd(), each)
}

fn at_once(count: u64) -> SeriesOptions {
    SeriesOptions { count: Some(count), ..SeriesOptions::new(AT_ONCE) }
}

/// The guest writes without a pause, other memory in each round, and after two deltas comes a full
/// checkpoint.
fn same_as_stock(pages: Pages) {
    const COUNT: u64 = 6;
    const WRITES: u64 = 200;
    let mut scene = Scene::start(pages);
    let stock = scene.folder.path().join("stock");
    let proxy = Proxy::start(&scene.api(), also_saving_to(&stock));
    let options = scene.options_through(&proxy.socket);
    let series = SeriesOptions { deltas: 2, ..at_once(COUNT) };
    let write = |round: u64| Request::Write {
        start: START + round % 7 * 3 * MIB,
        len: (round % 5 + 1) * 2 * MIB,
        seed: round,
    };
    (0..WRITES).for_each(|round| scene.vmm.serial.send(write(round)).unwrap());
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    let (mut follower, mut is_full) = (Follower::default(), Vec::new());
    run(&options, &series, &mut |folder, report| {
        follower.follow(folder);
        assert!(fs::read(&stock).unwrap() == follower.bytes, "bytes differ in {folder:?}");
        is_full.push(report.delta_bytes.is_none());
    })
    .unwrap();
    assert_eq!(is_full, [true, false, false, true, false, false]);
    for _ in 1..WRITES {
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    }
    scene.check_runs_free();
}

/// Writes beside a checkpoint are in this one or the next, and little other memory is read.
fn few_writes(pages: Pages) {
    const CHANGED: u64 = 3 * MIB;
    let mut scene = Scene::start(pages);
    let (options, series, mut follower) = (scene.options(), at_once(5), Follower::default());
    let (mut read, mut changed) = (Vec::new(), 0);
    let place = |seed| START + seed * 5 * MIB;
    run(&options, &series, &mut |folder, report| {
        follower.follow(folder);
        read.push(report.read_bytes);
        changed += report.delta_bytes.map_or(0, |_| report.copied_bytes);
        let seed = read.len() as u64;
        // The write waits until this has returned.
        let write = Request::Write { start: place(seed), len: CHANGED, seed };
        scene.vmm.serial.send(write).unwrap();
    })
    .unwrap();
    // Of all memory, at least the pattern. Later, the written memory, and a few huge pages more.
    assert!(read[0] > LEN && read[1..].iter().all(|&bytes| bytes < 24 * MIB), "{read:?}");
    assert!(changed >= CHANGED, "{changed}");
    for seed in 1..=5 {
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        let verify = Request::Verify { start: place(seed), len: CHANGED, seed };
        assert_eq!(scene.vmm.serial.ask(verify).unwrap(), 0);
    }
    scene.check_runs_free();
}

fn vm_ends() {
    let scene = Scene::start(Pages::Base);
    let pid = scene.vmm.pid();
    let series = SeriesOptions::new(Duration::from_secs(600));
    let ended = run(&scene.options(), &series, &mut |_, _| kill(pid));
    assert!(matches!(ended, Err(CheckpointError::Ended { .. })), "{ended:?}");
    check_file(&scene.output().join("000001/memory"), SEED);
}

/// Between two checkpoints, or in a later one.
fn killed() {
    let mut scene = Scene::start(Pages::Base);
    let mut series = child::start_series(&scene.options());
    assert!(happens(|| scene.output().join("000002").exists()), "there is no second checkpoint");
    assert!(happens(|| registered(scene.vmm.pid()) > 0), "nothing is protected");
    series.kill().unwrap();
    series.wait().unwrap();
    let is_free = || registered(scene.vmm.pid()) == 0 && partial_folders(&scene.output()) == 0;
    assert!(happens(is_free), "the guard leaves something");
    scene.check_runs_free();
    let folders: [PathBuf; 2] = ["000001", "000002"].map(|name| scene.output().join(name));
    let mut follower = Follower::default();
    folders.iter().for_each(|folder| follower.follow(folder));
    fs::remove_dir_all(scene.output()).unwrap();
    save_when_it_is_free(&scene);
}

/// As by Ctrl-Z between two checkpoints, when memory is protected. The next one has what was written meanwhile.
fn stopped_by_signal() {
    let mut scene = Scene::start(Pages::Base);
    let mut series = child::start_stopping_series(&scene.options());
    let process = ProcessFolder::open(series.id() as i32).unwrap();
    assert!(happens(|| process.stat().unwrap().state == b'T'), "the series does not stop");
    scene.vmm.serial.ask(Request::Write { start: START, len: LEN, seed: 9 }).unwrap();
    assert!(happens(|| registered(scene.vmm.pid()) == 0), "memory is protected still");
    kill_process(Pid::from_child(&series), Signal::CONT).unwrap();
    let second = scene.output().join("000002");
    assert!(happens(|| second.exists()), "there is no second checkpoint");
    series.kill().unwrap();
    series.wait().unwrap();
    let mut follower = Follower::default();
    [scene.output().join("000001"), second].iter().for_each(|folder| follower.follow(folder));
    let last = scene.folder.path().join("last");
    fs::write(&last, &follower.bytes).unwrap();
    check_file(&last, 9);
    assert!(happens(|| registered(scene.vmm.pid()) == 0), "the guard leaves something");
    scene.check_runs_free();
}

/// A series that waits for its next checkpoint for a long time.
fn stopped() {
    for save_at_end in [false, true] {
        let mut scene = Scene::start(Pages::Base);
        let options = scene.options();
        let series = SeriesOptions { save_at_end, ..SeriesOptions::new(Duration::from_secs(600)) };
        let (stop, stopper) = UnixStream::pair().unwrap();
        let (told, tells) = std::sync::mpsc::channel();
        let mut follower = Follower::default();
        let count = std::thread::scope(|scope| {
            let series = scope.spawn(|| {
                let each = &mut |_: &Path, _: &CheckpointReport| told.send(()).unwrap();
                checkpoint_series(&options, &series, stop.as_fd(), each).unwrap();
            });
            tells.recv_timeout(LONGEST_WAIT).unwrap();
            scene.vmm.serial.ask(Request::Write { start: START, len: LEN, seed: 9 }).unwrap();
            drop(stopper);
            series.join().unwrap();
            1 + tells.try_iter().count()
        });
        assert_eq!(count, 1 + usize::from(save_at_end));
        let folder = |number| scene.output().join(format!("{number:06}"));
        (1..=count).for_each(|number| follower.follow(&folder(number)));
        let last = scene.folder.path().join("last");
        fs::write(&last, &follower.bytes).unwrap();
        check_file(&last, if save_at_end { 9 } else { SEED });
        scene.check_runs_free();
    }
}

fn folder_in_use() {
    let mut scene = Scene::start(Pages::Base);
    fs::create_dir(scene.output()).unwrap();
    fs::write(scene.output().join("other"), "kept").unwrap();
    let refused = run(&scene.options(), &at_once(1), &mut |_, _| panic!("it was saved"));
    assert!(matches!(refused, Err(CheckpointError::Exists { .. })), "{refused:?}");
    scene.check_runs_free();
}
