//! A pager as a process, which can be killed: this program again.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_sys::memfd;
use hugekit_vm::oci::PackedVm;
use hugekit_vm::pager::{Event, Pager, PagerOptions, Source, SourceError};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use serde::{Deserialize, Serialize};

const ARGUMENT: &str = "hugekit-test-pager";

/// How long a test waits for what a pager or a VM is to do.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a pager is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) memory: PathBuf,
    pub(crate) around: u64,
    pub(crate) prefetch: bool,
    pub(crate) stay: bool,
    pub(crate) record_ms: u64,
    pub(crate) startup_ms: u64,
    pub(crate) patience_ms: u64,
    /// Whether the pager copies the memory file to memory, which it seals.
    pub(crate) sealed: bool,
    /// Whether the memory is a layout.
    pub(crate) packed: bool,
    pub(crate) users: Vec<u32>,
    /// The limit of open files, if it is another one.
    pub(crate) files: Option<u64>,
    /// Whether the pager makes a mistake when it has recorded a working set.
    pub(crate) errs: bool,
}

impl Options {
    pub(crate) fn new(memory: &Path) -> Self {
        let memory = memory.to_owned();
        Self {
            memory,
            around: 2 << 20,
            prefetch: true,
            stay: false,
            record_ms: 0,
            startup_ms: 100,
            patience_ms: 600_000,
            sealed: false,
            packed: false,
            users: Vec::new(),
            files: None,
            errs: false,
        }
    }
}

/// A pager, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct PagerProcess {
    child: Child,
    pub(crate) socket: PathBuf,
    log: PathBuf,
}

impl PagerProcess {
    pub(crate) fn start(folder: &Path, options: &Options) -> Self {
        let (socket, log) = (folder.join("pager.sock"), folder.join("pager.log"));
        let said = File::options().create(true).append(true).open(&log).unwrap();
        let before = fs::read_to_string(&log).unwrap().len();
        let child = Command::new(std::env::current_exe().unwrap())
            .arg(ARGUMENT)
            .arg(&socket)
            .arg(serde_json::to_string(options).unwrap())
            .stdin(Stdio::piped())
            .stderr(said)
            .spawn()
            .unwrap();
        let pager = Self { child, socket, log };
        pager.await_line_behind(before, "listening");
        pager
    }

    /// Has it do nothing any more. Its socket is still there.
    pub(crate) fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.child.id());
        let until = Instant::now() + LONGEST_WAIT;
        while !fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(Instant::now() < until, "the pager does not stop");
            sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all of its threads sleep.
    pub(crate) fn await_idle(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_idle = |task: io::Result<fs::DirEntry>| {
            fs::read_to_string(task.unwrap().path().join("stat")).unwrap().contains(") S ")
        };
        let until = Instant::now() + LONGEST_WAIT;
        while !fs::read_dir(&tasks).unwrap().all(is_idle) {
            assert!(Instant::now() < until, "the pager does not sleep");
            sleep(Duration::from_millis(1));
        }
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for a line of its log that holds these words.
    pub(crate) fn await_line(&self, words: &str) -> String {
        self.await_line_behind(0, words)
    }

    pub(crate) fn await_line_behind(&self, start: usize, words: &str) -> String {
        let until = Instant::now() + LONGEST_WAIT;
        loop {
            let log = self.log();
            // The last line may not be whole yet.
            let mut whole = log[start..].split_inclusive('\n').filter_map(|l| l.strip_suffix('\n'));
            if let Some(line) = whole.find(|line| line.contains(words)) {
                return line.to_owned();
            }
            assert!(Instant::now() < until, "no line with {words:?} in the log:\n{log}");
            sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for PagerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the pager's log:\n{}", self.log());
        }
    }
}

/// Runs the pager and ends the process, if the process was started for that. It ends with its
/// standard input, too.
pub(crate) fn run_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_none_or(|argument| argument != ARGUMENT) {
        return;
    }
    let options: Options = serde_json::from_str(&arguments[2]).unwrap();
    if let Some(files) = options.files {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    let of_pager = PagerOptions {
        around: options.around,
        prefetch: options.prefetch,
        stay: options.stay,
        record: Duration::from_millis(options.record_ms),
        startup: Duration::from_millis(options.startup_ms),
        patience: Duration::from_millis(options.patience_ms),
        users: options.users,
        ..PagerOptions::default()
    };
    let memory = &options.memory;
    let source = match (options.sealed, options.packed) {
        (true, _) => sealed(memory),
        (_, true) => Source::of_packed(PackedVm::open(memory).unwrap()),
        _ => Source::open(memory),
    };
    let pager = Pager::start(arguments[1].as_ref(), of_pager, source.unwrap()).unwrap();
    eprintln!("listening");
    let stop = io::stdin();
    let tell = |event| {
        eprintln!("{event}");
        assert!(!options.errs || !matches!(event, Event::Recorded { .. }), "as the test wants it");
    };
    pager.run(stop.as_fd(), &tell).unwrap();
    std::process::exit(0);
}

/// The file as an image has it: sealed memory with the same holes.
fn sealed(path: &Path) -> Result<Source, SourceError> {
    let from = File::open(path).unwrap();
    let len = from.metadata().unwrap().len();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = File::from(memfd_create("hugekit-test-image", flags).unwrap());
    memory.set_len(len).unwrap();
    for offset in (0..len).step_by(4096) {
        let mut page = [0; 4096];
        from.read_exact_at(&mut page, offset).unwrap();
        if page != [0; 4096] {
            memory.write_all_at(&page, offset).unwrap();
        }
    }
    memfd::seal_contents(&memory).unwrap();
    Source::of_memory(memory, path.to_owned(), vec![(path.to_owned(), from)])
}
