//! A VMM without a guest, for what a guest here cannot be asked to do: give memory back. Needs no
//! virtualization. The test itself answers to the requests of an API.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hugekit_guests::{Pages, Request, SmallVmm, pattern_at};
use hugekit_testing::trials::{self, Checks};
use hugekit_vm::checkpoint::{
    CheckpointError, CheckpointOptions, CheckpointReport, RunningVm, SeriesOptions, checkpoint,
    checkpoint_series, state_of,
};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::proxy::{Act, Proxy};
use crate::scene::{LONGEST_WAIT, MIB, PagerThread, SEED, registered};
use crate::series::Follower;

const MEMORY: u64 = 32 * MIB;

const CHECKS: Checks = &[
    ("small::memory_given_back_in_the_copy_is_saved", given_back),
    ("small::memory_written_and_given_back_in_a_loop_is_saved", loop_of_all),
    ("small::pages_that_are_not_there_are_zero_and_never_waited_for", not_there),
    ("small::write_before_the_saved_moment_belongs_to_it", written_before),
    ("small::device_that_writes_at_each_save_is_saved_with_its_write", written_at_each_save),
    ("small::regions_of_any_sizes_are_saved", regions_of_any_sizes),
    ("small::memory_that_can_be_plugged_in_is_saved_if_the_sum_is_right", pluggable_memory),
    ("small::moment_that_is_not_saved_leaves_no_bytes", other_moment),
    ("small::memory_given_back_is_zero_in_a_delta", given_back_before_a_delta),
    ("small::vmm_of_a_series_writes_before_it_answers", writes_before_answers),
    ("small::memory_given_back_in_a_series_is_zero_in_the_next_one", given_back_in_a_series),
];

pub(crate) fn trials() -> Vec<Trial> {
    trials::trials(CHECKS, None)
}

/// At which request of its API the VMM is to do something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// When it is asked whether it runs.
    Look,
    Pause,
    Snapshot,
    /// When the state is written.
    Answer,
    Resume,
}

/// A complete VMM, whose API waits at some requests until it may go on.
struct Small {
    vmm: SmallVmm,
    folder: TempDir,
    memory: Vec<u8>,
    api: Proxy,
    came: Receiver<()>,
    go_on: Sender<()>,
    /// How often it waits.
    stops: usize,
}

impl Small {
    /// Memory with the pattern in its first part, `data` bytes.
    fn start(data: u64, at: &[At]) -> Self {
        Self::with_regions(data, at, &[MEMORY], "{}")
    }

    /// Memory of these regions. `pluggable` is the API's answer to the question for more memory.
    fn with_regions(data: u64, at: &[At], regions: &[u64], pluggable: &'static str) -> Self {
        let folder = TempDir::new().unwrap();
        let (path, socket) = (folder.path().join("memory.bin"), folder.path().join("p.sock"));
        let words = (0..data).step_by(8).flat_map(|at| pattern_at(at, SEED).to_le_bytes());
        let mut memory: Vec<u8> = words.collect();
        memory.resize(MEMORY as usize, 0);
        let all = regions.iter().sum::<u64>();
        fs::write(&path, &memory).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(all).unwrap();
        let pager = PagerThread::start(socket.clone(), &path, true);
        let vmm = SmallVmm::start(&socket, regions, Pages::Base).unwrap();
        pager.await_complete();
        let (comes, came) = channel();
        let (go_on, gone_on) = channel();
        let stops = at.len();
        let mut at: VecDeque<At> = at.iter().copied().collect();
        let wait = move |now| {
            if at.front() == Some(&now) {
                at.pop_front();
                comes.send(()).unwrap();
                gone_on.recv_timeout(LONGEST_WAIT).unwrap();
            }
        };
        let api = Proxy::start(&folder.path().join("api"), answering(wait, pluggable));
        Self { vmm, folder, memory, api, came, go_on, stops }
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    fn options(&self) -> CheckpointOptions {
        let vm = RunningVm::behind_proxy(self.vmm.pid(), self.api.socket.clone());
        CheckpointOptions::new(vm, self.output())
    }

    /// Saves it while `act` is done at each of the requests.
    fn save_while(
        &mut self,
        act: impl FnMut(&mut SmallVmm),
    ) -> Result<CheckpointReport, CheckpointError> {
        self.save_as_while(&self.options(), act)
    }

    fn save_as_while(
        &mut self,
        options: &CheckpointOptions,
        mut act: impl FnMut(&mut SmallVmm),
    ) -> Result<CheckpointReport, CheckpointError> {
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| checkpoint(options));
            for _ in 0..self.stops {
                // A VMM may have fewer requests than it would stop at.
                let until = Instant::now() + LONGEST_WAIT;
                while self.came.recv_timeout(Duration::from_millis(10)).is_err() {
                    if saving.is_finished() {
                        return saving.join().unwrap();
                    }
                    assert!(Instant::now() < until, "no request");
                }
                act(&mut self.vmm);
                self.go_on.send(()).unwrap();
            }
            saving.join().unwrap()
        })
    }

    fn saved(&self) -> Vec<u8> {
        fs::read(self.output().join("memory")).unwrap()
    }

    fn check_free(&self) {
        assert_eq!(registered(self.vmm.pid()), 0, "mappings are registered still");
    }
}

/// Waits at some requests. A state of zeroes has the right checksum.
fn answering(mut wait: impl FnMut(At) + Send + 'static, pluggable: &'static str) -> Act {
    Box::new(move |request, _| {
        Some(if request.starts_with("GET / ") {
            wait(At::Look);
            with_body("{\"state\": \"Running\"}")
        } else if request.starts_with("GET /machine-config") {
            with_body(&format!("{{\"mem_size_mib\": {}}}", MEMORY / MIB))
        } else if request.starts_with("GET /hotplug/memory") {
            with_body(pluggable)
        } else if request.starts_with("PUT /snapshot/create") {
            wait(At::Snapshot);
            let (_, body) = request.split_once("\r\n\r\n").unwrap();
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            fs::write(body["snapshot_path"].as_str().unwrap(), [0; 16]).unwrap();
            wait(At::Answer);
            "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n".to_owned()
        } else {
            wait(if request.contains("Resumed") { At::Resume } else { At::Pause });
            "HTTP/1.1 204 \r\n\r\n".to_owned()
        })
    })
}

fn with_body(body: &str) -> String {
    format!("HTTP/1.1 200 \r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The thread that gives memory back waits until the memory is copied.
fn given_back() {
    let mut small = Small::start(MEMORY, &[At::Resume]);
    let (start, len) = (4 * MIB, 6 * MIB);
    small
        .save_while(|vmm| {
            vmm.serial.send(Request::Remove { start, len }).unwrap();
            vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        })
        .unwrap();
    assert!(small.saved() == small.memory, "saved bytes differ");
    assert_eq!(small.vmm.serial.ask(Request::NotZero { start, len }).unwrap(), 0);
    small.check_free();
}

/// The VMM works on while the memory is copied.
fn loop_of_all() {
    let mut random = hugekit_testing::seed::random();
    for _ in 0..2 {
        let mut small = Small::start(MEMORY, &[At::Resume]);
        let mut sent = 0;
        small
            .save_while(|vmm| {
                for _ in 0..60 {
                    let start = random.u64(0..MEMORY / MIB - 1) * MIB;
                    let len = random.u64(1..=MIB / 4096) * 4096;
                    let write = Request::Write { start, len, seed: random.u64(..) };
                    vmm.serial.send(write).unwrap();
                    vmm.serial.send(Request::Remove { start, len }).unwrap();
                    sent += 2;
                }
            })
            .unwrap();
        for _ in 0..sent {
            small.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        }
        assert!(small.saved() == small.memory, "saved bytes differ");
        small.check_free();
    }
}

/// Half of the memory was never touched.
fn not_there() {
    let mut small = Small::start(MEMORY / 2, &[At::Resume]);
    let report = small
        .save_while(|vmm| {
            let (start, len) = (MEMORY - 3 * MIB, 2 * MIB);
            vmm.serial.send(Request::Touch { start, len }).unwrap();
            vmm.serial.send(Request::Write { start, len, seed: 1 }).unwrap();
            for _ in 0..2 {
                vmm.serial.answer_within(LONGEST_WAIT).unwrap();
            }
        })
        .unwrap();
    assert!(small.saved() == small.memory, "saved bytes differ");
    assert_eq!(report.copied_bytes, MEMORY / 2);
    small.check_free();
}

/// As devices do that have not finished yet when Firecracker begins to save. What is written to the
/// same memory afterwards is not saved.
fn written_before() {
    let mut small = Small::start(MEMORY, &[At::Snapshot, At::Resume]);
    let (start, len, mut seed) = (8 * MIB, MIB, 0);
    let saved = small.save_while(|vmm| {
        seed += 1;
        vmm.serial.send(Request::Write { start, len, seed }).unwrap();
        vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    });
    saved.unwrap();
    let words = (start..start + len).step_by(8).flat_map(|at| pattern_at(at, 1).to_le_bytes());
    let (first, end) = (start as usize, (start + len) as usize);
    small.memory[first..end].copy_from_slice(&words.collect::<Vec<u8>>());
    assert!(small.saved() == small.memory, "saved bytes differ");
    assert_eq!(small.vmm.serial.ask(Request::Verify { start, len, seed: 2 }).unwrap(), 0);
    small.check_free();
}

/// As a vsock does, which tells the guest of each save by an event.
fn written_at_each_save() {
    let mut small = Small::start(MEMORY, &[At::Snapshot; 20]);
    let (start, len, mut seed) = (8 * MIB, 4096, 0);
    small
        .save_while(|vmm| {
            seed += 1;
            vmm.serial.send(Request::Write { start, len, seed }).unwrap();
            vmm.serial.answer_within(LONGEST_WAIT).unwrap();
        })
        .unwrap();
    let words = (start..start + len).step_by(8).flat_map(|at| pattern_at(at, seed).to_le_bytes());
    let (first, end) = (start as usize, (start + len) as usize);
    small.memory[first..end].copy_from_slice(&words.collect::<Vec<u8>>());
    assert!(small.saved() == small.memory, "saved bytes differ");
    small.check_free();
}

/// Three, which lie beside each other.
fn regions_of_any_sizes() {
    let regions = [13 * MIB, 3 * MIB, MEMORY - 16 * MIB];
    let mut small = Small::with_regions(MEMORY, &[], &regions, "{}");
    for _ in 0..2 {
        small.save_while(|_| {}).unwrap();
        assert!(small.saved() == small.memory, "saved bytes differ");
        fs::remove_dir_all(small.output()).unwrap();
    }
    small.check_free();
}

/// The configuration names less memory than the VM has regions for.
fn pluggable_memory() {
    let regions = [MEMORY, 16 * MIB];
    let with = |pluggable| Small::with_regions(MEMORY, &[], &regions, pluggable);
    let mut right = with("{\"total_size_mib\": 16, \"plugged_size_mib\": 0}");
    right.save_while(|_| {}).unwrap();
    right.memory.resize((MEMORY + 16 * MIB) as usize, 0);
    assert!(right.saved() == right.memory, "saved bytes differ");
    for wrong in ["{}", "{\"total_size_mib\": 32}"] {
        let mut small = with(wrong);
        let refused = small.save_while(|_| {}).unwrap_err();
        assert!(matches!(refused, CheckpointError::OtherSize { .. }), "{refused}");
        assert!(!small.output().exists());
        small.check_free();
    }
}

/// Memory is given back before the first moment, so that moment is not saved. After it, more is given back, for which
/// all memory is copied: that copy has bytes that are zero in the second moment.
fn other_moment() {
    let mut small = Small::start(MEMORY, &[At::Snapshot, At::Answer]);
    let removed = [(2 * MIB, MIB), (8 * MIB, 4 * MIB)];
    let mut requests = removed.map(|(start, len)| Request::Remove { start, len }).into_iter();
    let saved = small.save_while(|vmm| {
        vmm.serial.send(requests.next().unwrap()).unwrap();
        vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    });
    saved.unwrap();
    for (start, len) in removed {
        small.memory[start as usize..][..len as usize].fill(0);
    }
    assert!(small.saved() == small.memory, "saved bytes differ");
    small.check_free();
}

/// Memory that is given back in the first copy or before the second pause is zero in the delta.
fn given_back_before_a_delta() {
    let mut small = Small::start(MEMORY, &[At::Resume]);
    let full = CheckpointOptions { output: small.folder.path().join("full"), ..small.options() };
    let mut removed = [(16 * MIB, MIB), (4 * MIB, 3 * MIB)].into_iter();
    let mut remove = |vmm: &mut SmallVmm| {
        let (start, len) = removed.next().unwrap();
        vmm.serial.send(Request::Remove { start, len }).unwrap();
        vmm.serial.answer_within(LONGEST_WAIT).unwrap();
    };
    small.save_as_while(&full, &mut remove).unwrap();
    (small.stops, small.memory) = (0, fs::read(full.output.join("memory")).unwrap());
    remove(&mut small.vmm);
    let delta = CheckpointOptions { previous: vec![full.output.clone()], ..small.options() };
    small.save_as_while(&delta, |_| {}).unwrap();
    let state = state_of(&full.output.join("memory"));
    let mut file = File::open(small.output().join("memory.delta")).unwrap();
    let contents = hugekit_delta::inspect(&file).unwrap();
    assert_eq!((contents.bytes, contents.zeroes), (0, 4 * MIB));
    file.rewind().unwrap();
    hugekit_delta::apply(&mut small.memory, state, &mut file).unwrap();
    for (start, len) in [(16 * MIB, MIB), (4 * MIB, 3 * MIB)] {
        assert!(small.memory[start as usize..][..len as usize].iter().all(|&byte| byte == 0));
        assert!(small.memory[(start + len) as usize] != 0);
    }
    small.check_free();
}

/// The memory that is given back is protected, and no thread faults at it. It may be read before it is
/// gone, so it is read twice.
fn given_back_in_a_series() {
    let mut small = Small::start(MEMORY, &[]);
    let (options, series) = (small.options(), SeriesOptions::new(Duration::from_millis(20)));
    let (start, len) = (4 * MIB, 3 * MIB);
    let (mut follower, mut read, mut left) = (Follower::default(), Vec::new(), 3);
    let vmm = std::sync::Mutex::new(&mut small.vmm);
    let remove = || vmm.lock().unwrap().serial.ask(Request::Remove { start, len }).unwrap();
    let (stop, stopper) = UnixStream::pair().unwrap();
    let mut stopper = Some(stopper);
    std::thread::scope(|scope| {
        let mut removing = None;
        let each = &mut |folder: &Path, report: &CheckpointReport| {
            follower.follow(folder);
            read.push(report.read_bytes);
            let removing = removing.get_or_insert_with(|| scope.spawn(remove));
            left -= u64::from(removing.is_finished());
            if left == 0 {
                stopper = None;
            }
        };
        checkpoint_series(&options, &series, stop.as_fd(), each).unwrap();
    });
    small.memory[start as usize..][..len as usize].fill(0);
    assert!(follower.bytes == small.memory, "saved bytes differ");
    // The rest of the huge page that was given back in part.
    assert_eq!(read[1..].iter().sum::<u64>(), 2 * MIB, "{read:?}");
    small.check_free();
}

/// As a VMM does whose devices are served by the thread that answers requests. In the second
/// checkpoint the memory is protected.
fn writes_before_answers() {
    let mut small = Small::start(MEMORY, &[At::Look, At::Pause, At::Look, At::Pause]);
    let options = small.options();
    let twice = SeriesOptions { count: Some(2), ..SeriesOptions::new(Duration::ZERO) };
    let (stop, _stopper) = UnixStream::pair().unwrap();
    let mut follower = Follower::default();
    std::thread::scope(|scope| {
        let each = |folder: &Path, _: &CheckpointReport| follower.follow(folder);
        let series =
            scope.spawn(|| checkpoint_series(&options, &twice, stop.as_fd(), &mut { each }));
        for at in 0..small.stops as u64 {
            small.came.recv_timeout(LONGEST_WAIT).unwrap();
            let write = Request::Write { start: at * 4 * MIB, len: MIB, seed: 1 };
            small.vmm.serial.send(write).unwrap();
            small.vmm.serial.answer_within(LONGEST_WAIT).unwrap();
            small.go_on.send(()).unwrap();
        }
        series.join().unwrap().unwrap();
    });
    for start in (0..small.stops as u64).map(|at| at * 4 * MIB) {
        let words = (start..start + MIB).step_by(8).flat_map(|at| pattern_at(at, 1).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        small.memory[start as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    assert!(follower.bytes == small.memory, "saved bytes differ");
    small.check_free();
}
