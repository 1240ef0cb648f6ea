//! Saved bytes, restored bytes, and the VM that runs on.

use std::fs;

use hugekit_guests::{Firecracker, Pages, Request};
use hugekit_vm::checkpoint::{CheckpointReport, Way, checkpoint};
use libtest_mimic::Trial;

use crate::proxy::{Proxy, also_saving_to, holding_resume};
use crate::scene::{
    LEN, LONGEST_WAIT, PagerThread, SEED, START, Scene, check_file, check_pattern, trial,
};

type Check = (&'static str, fn(Pages));

const CHECKS: &[Check] = &[
    ("memory_is_that_of_a_stock_snapshot_of_the_same_pause", same_as_stock),
    ("output_restores_by_file_and_by_pager_while_the_vm_writes", restores),
    ("vm_that_was_paused_stays_paused", paused_before),
    ("firecracker_that_saves_no_state_alone_is_saved_by_a_stock_snapshot", stock_snapshot),
];

pub(crate) fn trials() -> Vec<Trial> {
    let pages = [Pages::Base, Pages::Hugetlb2M];
    let of = |pages: Pages| {
        CHECKS.iter().map(move |&(name, check)| {
            trial(&format!("{pages:?}::{name}").to_lowercase(), pages, move || check(pages))
        })
    };
    pages.into_iter().flat_map(of).collect()
}

/// The guest writes everywhere and without a pause.
fn same_as_stock(pages: Pages) {
    const WRITES: u64 = 60;
    let mut scene = Scene::start(pages);
    let stock = scene.folder.path().join("stock");
    let proxy = Proxy::start(&scene.api(), also_saving_to(&stock));
    for seed in 1..=WRITES {
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed }).unwrap();
    }
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    let options = scene.options_through(&proxy.socket);
    let report = checkpoint(&options).unwrap();
    assert_eq!(report.way, Way::WriteProtected);
    assert!(fs::read(&stock).unwrap() == fs::read(scene.saved().memory).unwrap(), "bytes differ");
    for _ in 1..WRITES {
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    }
    check_pattern(&mut scene.vmm, WRITES);
    scene.check_runs_free();
}

/// The guest writes other words as soon as it runs again, before anything is copied.
fn restores(pages: Pages) {
    let mut scene = Scene::start(pages);
    let report = save_before_writes(&mut scene);
    assert!(report.faults > 0);
    check_pattern(&mut scene.vmm, 1);
    check_file(&scene.saved().memory, SEED);
    let (saved, folder) = (scene.saved(), scene.folder.path());
    if pages == Pages::Base {
        let mut by_file = Firecracker::start(folder, "by-file").unwrap();
        by_file.load_by_file(&saved, &saved.memory, true).unwrap();
        check_pattern(&mut by_file, SEED);
    }
    let pager = PagerThread::start(folder.join("q.sock"), &saved.memory, false);
    let mut by_pager = Firecracker::start(folder, "by-pager").unwrap();
    by_pager.load_by_handler(&saved, &pager.socket, true).unwrap();
    check_pattern(&mut by_pager, SEED);
    drop(by_pager);
    scene.check_runs_free();
}

/// The answer that the VM runs again is held back until the guest has written everything.
fn save_before_writes(scene: &mut Scene) -> CheckpointReport {
    let (hold, does_run, wrote) = holding_resume();
    let proxy = Proxy::start(&scene.api(), hold);
    let options = scene.options_through(&proxy.socket);
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| checkpoint(&options).unwrap());
        does_run.recv_timeout(LONGEST_WAIT).unwrap();
        scene.vmm.serial.send(Request::Write { start: START, len: LEN, seed: 1 }).unwrap();
        scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        wrote.send(()).unwrap();
        saving.join().unwrap()
    })
}

fn paused_before(pages: Pages) {
    let mut scene = Scene::start(pages);
    scene.vmm.pause().unwrap();
    let report = checkpoint(&scene.options()).unwrap();
    assert!(report.paused_ms == 0.0);
    check_file(&scene.saved().memory, SEED);
    scene.vmm.serial.send(Request::Reply).unwrap();
    assert!(scene.vmm.is_paused().unwrap(), "it runs");
    scene.vmm.resume().unwrap();
    scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    scene.check_runs_free();
}

fn stock_snapshot(pages: Pages) {
    let mut scene = Scene::start(pages);
    let refused = "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n";
    let proxy = Proxy::start(
        &scene.api(),
        Box::new(move |request, _| {
            let is_state_alone = request.contains("\"mem_file_path\":\"/\"");
            is_state_alone.then(|| refused.to_owned())
        }),
    );
    let options = scene.options_through(&proxy.socket);
    let report = checkpoint(&options).unwrap();
    assert_eq!(report.way, Way::StockSnapshot);
    assert!(report.to_string().contains("by a stock snapshot"), "{report}");
    check_file(&scene.saved().memory, SEED);
    scene.check_runs_free();
}
