//! A guest that was restored by a pager, which has left it, and checks of its bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use hugekit_guests::{
    Firecracker, HugePages, Pages, Request, Snapshot, await_end_of_output, lacking, pattern_at,
};
use hugekit_vm::checkpoint::{CheckpointOptions, RunningVm};
use hugekit_vm::pager::{Event, Pager, PagerOptions, Source};
use libtest_mimic::{Completion, Failed, Trial};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

/// Memory that guests of these tests have.
pub(crate) const MEMORY: u64 = 48;

/// What a guest has written before it was saved first.
pub(crate) const START: u64 = 8 * MIB;
pub(crate) const LEN: u64 = 32 * MIB;
pub(crate) const SEED: u64 = 0x5eed_0000_1234_5678;

pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What VMs touch first is not recorded.
pub(crate) fn pager_options() -> PagerOptions {
    PagerOptions { record: Duration::ZERO, ..PagerOptions::default() }
}

/// A pager of this process, which ends when this is dropped.
pub(crate) struct PagerThread {
    pub(crate) socket: PathBuf,
    events: mpsc::Receiver<Event>,
    stop: Option<std::os::unix::net::UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl PagerThread {
    pub(crate) fn start(socket: PathBuf, memory: &Path, prefetch: bool) -> Self {
        Self::start_from(socket, Source::open(memory).unwrap(), prefetch)
    }

    pub(crate) fn start_from(socket: PathBuf, source: Source, prefetch: bool) -> Self {
        Self::start_with(socket, source, PagerOptions { prefetch, ..pager_options() })
    }

    pub(crate) fn start_with(socket: PathBuf, source: Source, options: PagerOptions) -> Self {
        let pager = Pager::start(&socket, options, source).unwrap();
        let (came, stop) = std::os::unix::net::UnixStream::pair().unwrap();
        let (sender, events) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let tell = |event| drop(sender.send(event));
            pager.run(std::os::fd::AsFd::as_fd(&came), &tell).unwrap();
        });
        Self { socket, events, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn await_complete(&self) {
        loop {
            match self.events.recv_timeout(LONGEST_WAIT).expect("the VM is not complete") {
                Event::Complete(_) => return,
                Event::Failed { why, .. } => panic!("{why}"),
                Event::Refused { why, .. } => panic!("{why}"),
                _ => {}
            }
        }
    }
}

impl Drop for PagerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A guest in a folder, and nothing else that has to do with it.
pub(crate) struct Scene {
    pub(crate) vmm: Firecracker,
    pub(crate) folder: TempDir,
}

impl Scene {
    /// A guest with the pattern, that needs no pager any more.
    pub(crate) fn start(pages: Pages) -> Self {
        Self::in_folder(origin(pages).0)
    }

    /// Ends the guest, and restores it again from the first snapshot.
    pub(crate) fn restarted(self) -> Self {
        Self::in_folder(self.end())
    }

    /// A guest of the snapshot in the folder, that needs no pager any more.
    pub(crate) fn in_folder(folder: TempDir) -> Self {
        let memory = Snapshot::in_folder(folder.path()).memory;
        let pager = PagerThread::start(folder.path().join("p.sock"), &memory, true);
        let scene = Self::load(folder, &pager.socket);
        pager.await_complete();
        scene
    }

    /// As [`restarted`](Self::restarted), by a pager that may supply its memory still.
    pub(crate) fn served_by(self, pager: &Path) -> Self {
        Self::load(self.end(), pager)
    }

    fn load(folder: TempDir, pager: &Path) -> Self {
        let vmm = Firecracker::start(folder.path(), "clone").unwrap();
        vmm.load_by_handler(&Snapshot::in_folder(folder.path()), pager, true).unwrap();
        Self { vmm, folder }
    }

    fn end(self) -> TempDir {
        self.folder
    }

    pub(crate) fn api(&self) -> PathBuf {
        self.folder.path().join("clone.api")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    pub(crate) fn options(&self) -> CheckpointOptions {
        CheckpointOptions::new(self.vm(), self.output())
    }

    /// With the API of a proxy.
    pub(crate) fn options_through(&self, api: &Path) -> CheckpointOptions {
        let vm = RunningVm::behind_proxy(self.vmm.pid(), api.to_owned());
        CheckpointOptions { vm, ..self.options() }
    }

    pub(crate) fn vm(&self) -> RunningVm {
        RunningVm::new(self.api())
    }

    pub(crate) fn saved(&self) -> Snapshot {
        Snapshot { state: self.output().join("vmstate"), memory: self.output().join("memory") }
    }

    /// Waits until the guest, which runs, is done with its last answer.
    pub(crate) fn await_end_of_output(&self) {
        await_end_of_output(self.vmm.pid()).unwrap();
    }

    /// The guest answers, and its memory is neither protected nor served.
    pub(crate) fn check_runs_free(&mut self) {
        self.vmm.serial.send(Request::Reply).unwrap();
        self.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        self.vmm.serial.send(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
        self.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        check_pattern(&mut self.vmm, SEED);
        assert_eq!(registered(self.vmm.pid()), 0, "mappings are registered still");
    }

    /// Neither the output nor a part of it is there.
    pub(crate) fn check_absent(&self) {
        assert!(!self.output().exists(), "there is output");
        assert_eq!(partial_folders(self.folder.path()), 0, "parts of output are left");
    }
}

/// Snapshots that were taken for earlier tests: no test changes their files.
static ORIGINS: Mutex<Vec<(Pages, TempDir)>> = Mutex::new(Vec::new());

/// Removes the snapshots that [`origin`] has kept.
pub(crate) fn remove_origins() {
    ORIGINS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// A snapshot of a guest that has written its pattern, in a new folder.
pub(crate) fn origin(pages: Pages) -> (TempDir, Snapshot) {
    let mut origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
    if !origins.iter().any(|(of, _)| *of == pages) {
        origins.push((pages, new_origin(pages)));
    }
    let (_, kept) = origins.iter().find(|(of, _)| *of == pages).expect("there is one now");
    let (kept, folder) = (Snapshot::in_folder(kept.path()), TempDir::new().unwrap());
    let snapshot = Snapshot::in_folder(folder.path());
    fs::hard_link(kept.state, &snapshot.state).unwrap();
    fs::hard_link(kept.memory, &snapshot.memory).unwrap();
    (folder, snapshot)
}

fn new_origin(pages: Pages) -> TempDir {
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    origin.boot(MEMORY, pages).unwrap();
    origin.serial.ask(Request::Write { start: START, len: LEN, seed: SEED }).unwrap();
    origin.save(&snapshot).unwrap();
    folder
}

pub(crate) fn check_pattern(vmm: &mut Firecracker, seed: u64) {
    let verify = Request::Verify { start: START, len: LEN, seed };
    assert_eq!(vmm.serial.ask(verify).unwrap(), 0, "words differ");
}

/// The saved memory has the pattern, and zeroes behind it.
pub(crate) fn check_file(memory: &Path, seed: u64) {
    let bytes = fs::read(memory).unwrap();
    assert_eq!(bytes.len() as u64, MEMORY * MIB);
    let (start, end) = (START as usize, (START + LEN) as usize);
    let words = bytes[start..end].chunks_exact(8).zip((START..).step_by(8));
    let differs = |(word, at): (&[u8], u64)| word != pattern_at(at, seed).to_le_bytes();
    assert_eq!(words.filter(|&pair| differs(pair)).count(), 0, "saved words differ");
    assert!(bytes[end..].iter().all(|&byte| byte == 0), "saved words behind are not zero");
}

pub(crate) fn registered(pid: i32) -> usize {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let flags = smaps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.filter(|flags| flags.split(' ').any(|flag| flag == "um" || flag == "uw")).count()
}

pub(crate) fn partial_folders(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".checkpoint-")).count()
}

/// As [`trial`], ignored unless the nightly run asks for it.
pub(crate) fn nightly(
    reason: &str,
    name: &str,
    pages: Pages,
    check: impl FnOnce() + Send + 'static,
) -> Trial {
    hugekit_testing::trials::nightly(reason, trial(name, pages, check))
}

/// A trial for a kind of pages, ignored if this machine cannot run its guest.
pub(crate) fn trial(name: &str, pages: Pages, check: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        let reserve = || HugePages::reserve(pages, MEMORY / 2);
        Ok::<_, Failed>(match lacking().map_or_else(reserve, Err) {
            Err(reason) => Completion::ignored_with(reason),
            Ok(_reserved) => {
                check();
                Completion::Completed
            }
        })
    })
}
