//! `hugekit pager` as users start it: a VM is served, and the next pager takes it over.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_delta::Chain;
use hugekit_guests::{Pages, Request, SmallVmm, pattern_at};
use hugekit_testing::processes::Killed;
use hugekit_testing::trials::{Checks, skipped, trials};
use libtest_mimic::Arguments;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const LEN: u64 = 8 << 20;
const SEED: u64 = 3;
const LONGEST_WAIT: Duration = Duration::from_secs(60);

fn main() {
    hugekit_guests::small_vmm::run_if_asked();
    let checks: Checks = &[
        ("pager_that_is_stopped_is_followed_by_the_next", stopped_and_followed),
        ("pager_with_its_units_capabilities_takes_over", with_capabilities_of_unit),
        ("pager_of_deltas_shows_the_last_state", deltas),
        ("pager_of_an_image_of_a_broker_shows_it", image_of_a_broker),
        ("pager_without_its_memory_file_says_so", without_a_file),
        ("second_pager_at_a_socket_says_so", second_at_a_socket),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials(checks, None)).exit();
}

/// A pager, which is killed when this is dropped.
struct Pager {
    child: Killed,
    log: PathBuf,
}

impl Pager {
    fn start(folder: &Path) -> Self {
        Self::spawn(folder, &mut command(folder))
    }

    fn spawn(folder: &Path, command: &mut Command) -> Self {
        let log = folder.join("log");
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let pager = Self { child: Killed(child), log };
        pager.await_words("listening at");
        pager
    }

    fn await_words(&self, words: &str) {
        let until = Instant::now() + LONGEST_WAIT;
        while !fs::read_to_string(&self.log).unwrap().contains(words) {
            assert!(Instant::now() < until, "{words:?} is not in the log");
            sleep(Duration::from_millis(2));
        }
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

fn command(folder: &Path) -> Command {
    let mut command = command_without_memory(folder);
    command.arg("--file").arg(folder.join("memory.bin"));
    command
}

fn command_without_memory(folder: &Path) -> Command {
    let mut command = hugekit();
    command.arg("pager").arg("--socket").arg(folder.join("pager.sock")).arg("--no-prefetch");
    command
}

fn hugekit() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugekit"));
    command.stdin(Stdio::null());
    command
}

fn memory() -> Vec<u8> {
    (0..LEN).step_by(8).flat_map(|address| pattern_at(address, SEED).to_le_bytes()).collect()
}

fn folder_with_memory() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("memory.bin"), memory()).unwrap();
    folder
}

/// Every byte that a VM of this pager shows.
fn check(folder: &Path) {
    let socket = folder.join("pager.sock");
    let mut vmm = SmallVmm::start(&socket, &[LEN], Pages::Base).unwrap();
    let verify = Request::Verify { start: 0, len: LEN, seed: SEED };
    assert_eq!(vmm.serial.ask(verify).unwrap(), 0);
}

fn deltas() {
    let folder = TempDir::new().unwrap();
    let paths = ["0.delta", "1.delta"].map(|name| folder.path().join(name));
    let mut chain = Chain::new(LEN);
    let mut before = memory();
    before[1 << 20..2 << 20].fill(7);
    for (path, state) in paths.iter().zip([before, memory()]) {
        let file = fs::File::create_new(path).unwrap();
        let mut saving = chain.save(&file).unwrap();
        saving.write_all(&state).unwrap();
        saving.finish().unwrap();
    }
    let mut command = command_without_memory(folder.path());
    let _pager = Pager::spawn(folder.path(), command.arg("--file").args(&paths));
    check(folder.path());
}

fn image_of_a_broker() {
    let folder = folder_with_memory();
    let socket = folder.path().join("broker.sock");
    let mut broker = hugekit();
    let broker = broker.arg("broker").arg("--socket").arg(&socket).stderr(Stdio::null());
    // Ended with this value, as a pager is.
    let _broker = Pager { child: Killed(broker.spawn().unwrap()), log: folder.path().join("none") };
    let until = Instant::now() + LONGEST_WAIT;
    while hugekit_lease::status(&socket).is_err() {
        assert!(Instant::now() < until, "the broker does not listen");
        sleep(Duration::from_millis(2));
    }
    let memory = folder.path().join("memory.bin");
    let mut load = hugekit();
    load.args(["image", "load", "--name", "web", "--socket"]).arg(&socket).arg(memory);
    assert!(load.stdout(Stdio::null()).status().unwrap().success());
    let mut command = command_without_memory(folder.path());
    command.args(["--image", "web", "--broker"]).arg(&socket);
    let _pager = Pager::spawn(folder.path(), &mut command);
    check(folder.path());
}

fn stopped_and_followed() {
    let folder = folder_with_memory();
    let pager = Pager::start(folder.path());
    let socket = folder.path().join("pager.sock");
    let mut vmm = SmallVmm::start(&socket, &[LEN], Pages::Base).unwrap();
    let verify = |start, len| Request::Verify { start, len, seed: SEED };
    assert_eq!(vmm.serial.ask(verify(0, LEN / 2)).unwrap(), 0);
    pager.stop();
    assert!(!socket.exists());
    vmm.serial.send(verify(LEN / 2, LEN / 2)).unwrap();
    let pager = Pager::start(folder.path());
    pager.await_words("taken over");
    assert_eq!(vmm.serial.answer_within(LONGEST_WAIT).unwrap(), 0);
    drop(vmm);
    pager.await_words("ended");
    pager.stop();
}

/// With the capabilities alone that systemd leaves it, where this test may drop the others.
fn with_capabilities_of_unit() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root gives up capabilities");
    }
    let folder = folder_with_memory();
    let first = Pager::start(folder.path());
    let socket = folder.path().join("pager.sock");
    let mut vmm = SmallVmm::start(&socket, &[LEN], Pages::Base).unwrap();
    let verify = |start, len| Request::Verify { start, len, seed: SEED };
    assert_eq!(vmm.serial.ask(verify(0, LEN / 2)).unwrap(), 0);
    drop(first);
    let pager = Pager::spawn(folder.path(), &mut confined(&command(folder.path())));
    pager.await_words("taken over");
    assert_eq!(vmm.serial.ask(verify(LEN / 2, LEN / 2)).unwrap(), 0);
    pager.await_words("complete after");
    pager.stop();
}

fn confined(pager: &Command) -> Command {
    let unit = include_str!("../systemd/hugekit-pager@.service");
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = set.split(' ').map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let kept: String = names.map(|name| format!(",+{name}")).collect();
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--bounding-set", &format!("-all{kept}"), "--"]);
    command.arg(pager.get_program());
    // All memory comes at last.
    command.args(pager.get_args().filter(|&argument| argument != "--no-prefetch"));
    command.args(["--record", "1"]);
    command
}

fn without_a_file() {
    let folder = TempDir::new().unwrap();
    let output = command(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("error: memory file"), "{said}");
}

fn second_at_a_socket() {
    let folder = folder_with_memory();
    let _first = Pager::start(folder.path());
    let output = command(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("another pager listens at") && said.contains("remedy:"), "{said}");
}
