//! Deltas of a VM that runs on: bytes, chains, and what is refused.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use hugekit_delta::apply;
use hugekit_guests::{Firecracker, Pages, Request, Snapshot};
use hugekit_image::{Image, ImageBuilder, ImageError};
use hugekit_vm::checkpoint::{
    CheckpointError, CheckpointOptions, CheckpointReport, Way, checkpoint, state_of,
};
use hugekit_vm::pager::Source;
use libtest_mimic::Trial;

use crate::proxy::{Proxy, also_saving_to};
use crate::scene::{LEN, LONGEST_WAIT, MIB, PagerThread, SEED, START, Scene, check_pattern, trial};

type Check = (&'static str, fn(Pages));

const CHECKS: &[Check] = &[
    ("deltas_lead_to_stock_snapshots_of_the_same_pauses", same_as_stock),
    ("chain_of_three_restores_by_pager", restores),
    ("delta_by_a_stock_snapshot_has_its_bytes", by_stock_snapshot),
];

/// What each delta changes: the first bytes of what the guest has written.
const CHANGED: u64 = 3 * MIB;

pub(crate) fn trials() -> Vec<Trial> {
    let pages = [Pages::Base, Pages::Hugetlb2M];
    let of = |pages: Pages| {
        CHECKS.iter().map(move |&(name, check)| {
            trial(&format!("{pages:?}::{name}").to_lowercase(), pages, move || check(pages))
        })
    };
    let name = "deltas::checkpoints_that_do_not_follow_on_each_other_are_refused";
    let refused = trial(name, Pages::Base, refused);
    pages.into_iter().flat_map(of).chain([refused]).collect()
}

/// A VM, and its checkpoints so far, the oldest first.
struct Series {
    scene: Scene,
    folders: Vec<PathBuf>,
}

impl Series {
    /// Of a guest that writes nothing yet: a full one.
    fn start(pages: Pages) -> Self {
        let mut series = Self { scene: Scene::start(pages), folders: Vec::new() };
        let report = series.save(&series.scene.api());
        assert_eq!((report.way, report.delta_bytes), (Way::WriteProtected, None));
        series
    }

    fn options(&self, api: &Path) -> CheckpointOptions {
        CheckpointOptions {
            output: self.scene.folder.path().join(format!("saved-{}", self.folders.len())),
            previous: self.folders.clone(),
            ..self.scene.options_through(api)
        }
    }

    fn save(&mut self, api: &Path) -> CheckpointReport {
        let options = self.options(api);
        let report = checkpoint(&options).unwrap();
        self.folders.push(options.output);
        report
    }

    fn ask(&mut self, request: Request) {
        self.scene.vmm.serial.ask(request).unwrap();
    }

    fn memory(&self) -> PathBuf {
        self.folders[0].join("memory")
    }

    fn deltas(&self) -> impl Iterator<Item = File> {
        let path = |folder: &PathBuf| folder.join("memory.delta");
        self.folders[1..].iter().map(move |folder| File::open(path(folder)).unwrap())
    }

    /// The memory after the last delta.
    fn bytes(&self) -> Vec<u8> {
        let (mut bytes, mut state) = (fs::read(self.memory()).unwrap(), state_of(&self.memory()));
        assert!(state.is_some());
        for mut delta in self.deltas() {
            state = Some(apply(&mut bytes, state, &mut delta).unwrap());
        }
        bytes
    }

    fn image(&self) -> ImageBuilder<'static> {
        let sources = [File::open(self.memory()).unwrap()].into_iter().chain(self.deltas());
        sources.fold(Image::builder("chain"), ImageBuilder::source)
    }
}

/// The guest writes without a pause, also in the pauses of the copies.
fn same_as_stock(pages: Pages) {
    let mut series = Series::start(pages);
    let stock = series.scene.folder.path().join("stock");
    let proxy = Proxy::start(&series.scene.api(), also_saving_to(&stock));
    for round in 1..=3 {
        let len = round * 8 * MIB;
        let writes = 1..=40;
        for seed in writes.clone() {
            series.scene.vmm.serial.send(Request::Write { start: START, len, seed }).unwrap();
        }
        series.scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        let report = series.save(&proxy.socket);
        assert_eq!(report.way, Way::WriteProtected);
        assert!(report.copied_bytes < len + 2 * MIB, "{report:?}");
        assert!(fs::read(&stock).unwrap() == series.bytes(), "bytes differ");
        for _ in writes.skip(1) {
            series.scene.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        }
    }
    series.ask(Request::Write { start: START, len: LEN, seed: SEED });
    series.scene.check_runs_free();
}

/// A delta with changes and a delta with none.
fn restores(pages: Pages) {
    let mut series = Series::start(pages);
    series.ask(Request::Write { start: START, len: CHANGED, seed: 5 });
    let first = series.save(&series.scene.api());
    assert!(first.delta_bytes.unwrap() > CHANGED && first.copied_bytes < CHANGED + MIB, "{first}");
    series.scene.await_end_of_output();
    let second = series.save(&series.scene.api());
    assert!(second.copied_bytes < MIB, "{second}");
    let first_state = state_of(&series.memory()).unwrap();
    let image = series.image().state(first_state).load().unwrap();
    let paths = series.folders[1..].iter().map(|folder| folder.join("memory.delta"));
    let files = paths.map(|path| (path.clone(), File::open(path).unwrap())).collect();
    let source = Source::of_memory(image.into_file().into(), series.memory(), files).unwrap();
    let folder = series.scene.folder.path();
    let pager = PagerThread::start_from(folder.join("q.sock"), source, true);
    let state = series.folders[2].join("vmstate");
    let saved = Snapshot { state, memory: series.memory() };
    let mut child = Firecracker::start(folder, "child").unwrap();
    child.load_by_handler(&saved, &pager.socket, true).unwrap();
    let rest = Request::Verify { start: START + CHANGED, len: LEN - CHANGED, seed: SEED };
    for vmm in [&mut child, &mut series.scene.vmm] {
        let changed = Request::Verify { start: START, len: CHANGED, seed: 5 };
        assert_eq!(vmm.serial.ask(changed).unwrap(), 0);
        assert_eq!(vmm.serial.ask(rest).unwrap(), 0);
    }
    drop(child);
    series.ask(Request::Write { start: START, len: LEN, seed: SEED });
    series.scene.check_runs_free();
}

fn by_stock_snapshot(pages: Pages) {
    let mut series = Series::start(pages);
    let proxy = Proxy::start(
        &series.scene.api(),
        Box::new(|request, _| {
            let is_state_alone = request.contains("\"mem_file_path\":\"/\"");
            is_state_alone.then(|| "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n".to_owned())
        }),
    );
    series.ask(Request::Write { start: START, len: CHANGED, seed: 5 });
    let report = series.save(&proxy.socket);
    assert_eq!(report.way, Way::StockSnapshot);
    let bytes = series.bytes();
    let word = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap());
    for (range, seed) in [(START..START + CHANGED, 5), (START + CHANGED..START + LEN, SEED)] {
        assert!(range.step_by(8).all(|at| word(at) == hugekit_guests::pattern_at(at, seed)));
    }
    check_pattern_of_the_rest(&mut series.scene);
}

fn check_pattern_of_the_rest(scene: &mut Scene) {
    scene.vmm.serial.ask(Request::Write { start: START, len: CHANGED, seed: SEED }).unwrap();
    check_pattern(&mut scene.vmm, SEED);
    scene.check_runs_free();
}

/// Of two full checkpoints, a delta follows on the first one.
fn refused() {
    let mut series = Series::start(Pages::Base);
    let first = series.folders.pop().unwrap();
    series.ask(Request::Write { start: START, len: CHANGED, seed: 5 });
    let other = series.options(&series.scene.api());
    let other = CheckpointOptions { output: series.scene.folder.path().join("other"), ..other };
    checkpoint(&other).unwrap();
    series.folders.push(first.clone());
    series.save(&series.scene.api());
    let delta = series.folders.pop().unwrap();
    for previous in [vec![&other.output, &delta], vec![&delta], vec![&first, &other.output]] {
        let previous = previous.into_iter().cloned().collect();
        let output = series.scene.output();
        let options = CheckpointOptions { previous, output, ..series.scene.options() };
        let refused = checkpoint(&options).unwrap_err();
        assert!(matches!(refused, CheckpointError::Previous { .. }), "{refused}");
        assert!(refused.remedy().unwrap().contains("the full one first"));
        series.scene.check_absent();
    }
    let memories = [&first, &other.output].map(|folder| folder.join("memory"));
    let [right, wrong] = memories.map(|memory| {
        let delta = File::open(delta.join("memory.delta")).unwrap();
        let raw = File::open(&memory).unwrap();
        let builder = Image::builder("chain").source(raw).source(delta);
        builder.state(state_of(&memory).unwrap()).load()
    });
    assert!(right.is_ok() && matches!(wrong, Err(ImageError::Delta { nth: 1, .. })), "{wrong:?}");
    check_pattern_of_the_rest(&mut series.scene);
}
