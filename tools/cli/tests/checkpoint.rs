//! `hugekit checkpoint`, `hugekit fork` and `hugekit clone` as users start them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::slice;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{
    Firecracker, Pages, Request, Serial, SmallVmm, Snapshot, await_end_of_output, lacking, program,
};
use hugekit_testing::huge_cache::check_is_huge;
use hugekit_testing::processes::Killed;
use hugekit_testing::trials::{Checks, trials};
use libtest_mimic::Arguments;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MEMORY: u64 = 64;
const WRITE: Request = Request::Write { start: 16 << 20, len: 32 << 20, seed: 7 };
const VERIFY: Request = Request::Verify { start: 16 << 20, len: 32 << 20, seed: 7 };
const LONGEST_WAIT: Duration = Duration::from_secs(60);

fn main() {
    hugekit_guests::small_vmm::run_if_asked();
    let guests: Checks = &[
        ("vm_that_a_pager_has_left_is_saved_and_restored", saved_and_restored),
        ("vm_is_forked_and_its_child_is_forked_again", forked),
        ("snapshot_is_cloned", cloned),
        ("saved_vm_is_restored_from_a_layout_and_from_what_is_unpacked_of_it", packed),
    ];
    let others: Checks = &[("api_that_does_not_answer_is_an_error", no_api)];
    let trials = [trials(guests, lacking()), trials(others, None)].into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn hugekit(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugekit"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A pager of a memory file and its deltas.
fn pager(folder: &Path, memory: &[PathBuf]) -> Killed {
    pager_of(folder, "--file", memory)
}

fn pager_of(folder: &Path, kind: &str, memory: &[PathBuf]) -> Killed {
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut command = hugekit(&["pager", "--record", "0", "--socket"]);
    command.arg(folder.join("p.sock")).arg(kind).args(memory).stderr(log);
    let pager = Killed(command.spawn().unwrap());
    await_words(folder, "listening at");
    pager
}

fn await_words(folder: &Path, words: &str) {
    let until = Instant::now() + LONGEST_WAIT;
    while !fs::read_to_string(folder.join("log")).unwrap().contains(words) {
        assert!(Instant::now() < until, "{words:?} is not in the log");
        sleep(Duration::from_millis(2));
    }
}

fn restore(folder: &Path, name: &str, state: &Path, memory: &[PathBuf]) -> Firecracker {
    let _pager = pager(folder, memory);
    restore_by_pager(folder, name, state)
}

fn restore_by_pager(folder: &Path, name: &str, state: &Path) -> Firecracker {
    let vmm = Firecracker::start(folder, name).unwrap();
    // The pager has the memory.
    let from = Snapshot { state: state.to_owned(), memory: PathBuf::new() };
    vmm.load_by_handler(&from, &folder.join("p.sock"), true).unwrap();
    // Not of an earlier VM, which this pager may have taken over.
    await_words(folder, &format!("{}: complete", vmm.pid()));
    vmm
}

fn save(folder: &Path, pid: i32, name: &str, to: &str, previous: &[&str]) -> Output {
    let mut command = hugekit(&["checkpoint", "--json", "-", "--pid", &pid.to_string(), "--api"]);
    command.arg(folder.join(name)).arg("--output").arg(folder.join(to));
    if !previous.is_empty() {
        command.arg("--delta").args(previous.iter().map(|name| folder.join(name)));
    }
    command.output().unwrap()
}

/// A guest that has written its words, and that needs no pager any more.
fn guest(folder: &Path) -> Firecracker {
    let first = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin").unwrap();
    origin.boot(MEMORY, Pages::Base).unwrap();
    origin.serial.ask(WRITE).unwrap();
    origin.save(&first).unwrap();
    drop(origin);
    restore(folder, "vm", &first.state, slice::from_ref(&first.memory))
}

fn cloned() {
    let folder = TempDir::new().unwrap();
    let snapshot = Snapshot::in_folder(folder.path());
    let mut origin = Firecracker::start(folder.path(), "origin").unwrap();
    origin.boot(MEMORY, Pages::Base).unwrap();
    origin.serial.ask(WRITE).unwrap();
    origin.save(&snapshot).unwrap();
    drop(origin);
    check_clones(folder.path(), &snapshot, "c", &["--copy"], "copied");
    let warm = hugekit(&["warm"]).arg(&snapshot.memory).output().unwrap();
    if !warm.status.success() {
        eprintln!("clones of a warmed file: {}", String::from_utf8_lossy(&warm.stdout));
        return;
    }
    check_clones(folder.path(), &snapshot, "w", &[], "mapped");
    check_clones(folder.path(), &snapshot, "d", &["--copy"], "copied");
}

/// Two clones, by the way that the report names.
fn check_clones(folder: &Path, snapshot: &Snapshot, name: &str, more: &[&str], way: &str) {
    let serials = ["1", "2"].map(|number| ForkedGuest::pipes(folder, &format!("{name}{number}")));
    let script =
        format!("exec \"$0\" --api-sock \"$1\" --level Off < {name}{{}}.in > {name}{{}}.out");
    let api = format!("{name}{{}}.sock");
    let mut command = hugekit(&["clone", "-n", "2", "--api", &api, "--json", "-", "--state"]);
    command.arg(&snapshot.state).arg("--memory").arg(&snapshot.memory).args(more);
    command.args(["--", "sh", "-c", &script]).arg(program().unwrap()).arg("{api}");
    let output = command.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["way"], way);
    for (number, serial) in serials.into_iter().enumerate() {
        let clone = &report["clones"][number];
        assert_eq!(clone["api"], format!("{name}{}.sock", number + 1));
        let mut guest = ForkedGuest { pid: clone["pid"].as_i64().unwrap() as i32, serial };
        assert_eq!(guest.serial.ask(VERIFY).unwrap(), 0, "words differ");
    }
}

/// A child of `hugekit fork`, whose serial port is two named pipes.
struct ForkedGuest {
    pid: i32,
    serial: Serial,
}

impl ForkedGuest {
    fn pipes(folder: &Path, name: &str) -> Serial {
        let [to, from] = ["in", "out"].map(|end| {
            let path = folder.join(format!("{name}.{end}"));
            mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
            fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
        });
        Serial::of_files(to, from)
    }
}

impl Drop for ForkedGuest {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL);
    }
}

/// Forks a VM whose API is at `vm` in the folder.
fn fork(folder: &Path, vm: &str, count: usize) -> Vec<ForkedGuest> {
    let names = (1..=count).map(|number| format!("{vm}.{number}"));
    let serials: Vec<Serial> = names.map(|name| ForkedGuest::pipes(folder, &name)).collect();
    let mut command = hugekit(&["fork", "--json", "-", "--api"]);
    command.arg(folder.join(vm)).args(["--children", &count.to_string(), "--"]);
    let script =
        "exec \"$0\" --api-sock \"$1\" --id child --level Off < \"$1.in\" > \"$1.out\" 2>&1";
    command.args(["sh", "-c", script]).arg(program().unwrap()).arg("{api}");
    let forked = command.output().unwrap();
    assert!(forked.status.success(), "{}", String::from_utf8_lossy(&forked.stderr));
    let report: Value = serde_json::from_slice(&forked.stdout).unwrap();
    assert_eq!(report["way"], "write-protected");
    let pids = report["children"].as_array().unwrap().iter().map(|child| &child["pid"]);
    let pids: Vec<i32> = pids.map(|pid| pid.as_i64().unwrap() as i32).collect();
    assert_eq!(pids.len(), count);
    pids.into_iter().zip(serials).map(|(pid, serial)| ForkedGuest { pid, serial }).collect()
}

fn forked() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut vmm = guest(folder);
    let mut children = fork(folder, "vm.api", 2);
    assert_eq!(vmm.serial.ask(VERIFY).unwrap(), 0);
    for child in &mut children {
        assert_eq!(child.serial.ask(VERIFY).unwrap(), 0);
    }
    await_end_of_output(children[1].pid).unwrap();
    let mut grandchildren = fork(folder, "vm.api.2", 1);
    assert_eq!(grandchildren[0].serial.ask(VERIFY).unwrap(), 0);
    check_status(&vmm, &children, &grandchildren[0]);
    let parent = vmm.pid();
    drop(vmm);
    assert!(tree(parent)["memory"].is_null() && tree(parent)["children"][1]["memory"].is_object());
}

/// What `hugekit status` prints of the VM and those below it.
fn tree(pid: i32) -> Value {
    let status = hugekit(&["status", "--json"]).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let vms: Vec<Value> = serde_json::from_slice(&status.stdout).unwrap();
    vms.into_iter().find(|vm| vm["pid"] == pid).expect("the VM is in the status")
}

fn check_status(vmm: &Firecracker, children: &[ForkedGuest], grandchild: &ForkedGuest) {
    let parent = tree(vmm.pid());
    assert!(parent["number"].is_null());
    let second = &parent["children"][1];
    for (vm, pid, number) in [
        (&parent["children"][0], children[0].pid, 1),
        (second, children[1].pid, 2),
        (&second["children"][0], grandchild.pid, 1),
    ] {
        assert!(vm["pid"] == pid && vm["number"] == number, "{parent}");
        let memory = |field: &str| vm["memory"][field].as_u64().unwrap();
        // All that the guest has written, and the file of the VMM.
        assert!(memory("private_bytes") >= 32 << 20 && memory("shared_bytes") > 0, "{parent}");
    }
    assert_eq!(second["children"].as_array().unwrap().len(), 1);
    let status = hugekit(&["status"]).output().unwrap();
    let said = String::from_utf8_lossy(&status.stdout);
    let line = said.lines().find(|line| line.contains(&format!(" {} ", grandchild.pid)));
    assert!(line.is_some_and(|line| line.contains("    child 1")), "{said}");
}

fn saved_and_restored() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut vmm = guest(folder);
    let report = saved(&save(folder, vmm.pid(), "vm.api", "full", &[]));
    assert_eq!(report["memory_bytes"], MEMORY << 20);
    assert!(report["paused_ms"].as_f64().unwrap() > 0.0 && report["delta_bytes"].is_null());
    assert_eq!(vmm.serial.ask(VERIFY).unwrap(), 0);
    let place = |name: &str, file: &str| folder.join(name).join(file);
    let memory = place("full", "memory");
    // The kernel of the guest has a part of more units, and its own words are in 16.
    check_is_huge(folder, 16, |number| {
        let name = format!("huge-{number}");
        saved(&save(folder, vmm.pid(), "vm.api", &name, &[]));
        place(&name, "memory")
    });
    let mut child = restore(folder, "child", &place("full", "vmstate"), &[memory]);
    assert_eq!(child.serial.ask(VERIFY).unwrap(), 0);
    let again = save(folder, vmm.pid(), "vm.api", "full", &[]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("exists already") && said.contains("remedy:"), "{said}");
    deltas(folder, &mut vmm);
    series(folder, &mut vmm);
}

/// A signal ends the series. What the guest wrote meanwhile is in the last checkpoint.
fn series(folder: &Path, vmm: &mut Firecracker) {
    let mut command = hugekit(&["checkpoint", "--every", "600", "--save-at-end", "--json", "-"]);
    command.args(["--pid", &vmm.pid().to_string(), "--api"]).arg(folder.join("vm.api"));
    command.arg("--output").arg(folder.join("series")).stdout(Stdio::piped());
    let mut series = Killed(command.spawn().unwrap());
    let mut lines = BufReader::new(series.0.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let first = next();
    let place = |number: &str, file: &str| folder.join("series").join(number).join(file);
    assert_eq!(first["folder"], place("000001", "").to_string_lossy().trim_end_matches('/'));
    assert!(first["delta_bytes"].is_null(), "{first}");
    vmm.serial.ask(Request::Write { start: 20 << 20, len: 1 << 20, seed: 11 }).unwrap();
    await_end_of_output(vmm.pid()).unwrap();
    kill_process(Pid::from_child(&series.0), Signal::TERM).unwrap();
    let last = next();
    let read = last["read_bytes"].as_u64().unwrap();
    assert!(read >= 1 << 20 && read < first["read_bytes"].as_u64().unwrap() / 2, "{last}");
    assert!(series.0.wait().unwrap().success());
    let memory = [place("000001", "memory"), place("000002", "memory.delta")];
    let mut child = restore(folder, "later", &place("000002", "vmstate"), &memory);
    for vmm in [&mut child, vmm] {
        let verify = Request::Verify { start: 20 << 20, len: 1 << 20, seed: 11 };
        assert_eq!(vmm.serial.ask(verify).unwrap(), 0);
    }
}

/// The VM has a full checkpoint.
fn deltas(folder: &Path, vmm: &mut Firecracker) {
    let changed = |seed| Request::Write { start: 16 << 20, len: 1 << 20, seed };
    let place = |name: &str, file: &str| folder.join(name).join(file);
    vmm.serial.ask(changed(8)).unwrap();
    await_end_of_output(vmm.pid()).unwrap();
    let report = saved(&save(folder, vmm.pid(), "vm.api", "first", &["full"]));
    assert!((1 << 20..8 << 20).contains(&report["delta_bytes"].as_u64().unwrap()), "{report}");
    vmm.serial.ask(changed(9)).unwrap();
    await_end_of_output(vmm.pid()).unwrap();
    saved(&save(folder, vmm.pid(), "vm.api", "second", &["full", "first"]));
    saved(&save(folder, vmm.pid(), "vm.api", "other", &[]));
    let chain = |full| {
        let deltas = ["first", "second"].map(|name| place(name, "memory.delta"));
        [place(full, "memory")].into_iter().chain(deltas).collect::<Vec<PathBuf>>()
    };
    let _pager_of_deltas = pager(folder, &chain("full"));
    let mut later = SmallVmm::start(&folder.join("p.sock"), &[MEMORY << 20], Pages::Base).unwrap();
    for (start, len, seed) in [(16, 1, 9), (17, 31, 7)] {
        let verify = Request::Verify { start: start << 20, len: len << 20, seed };
        assert_eq!(later.serial.ask(verify).unwrap(), 0);
    }
    let pager = hugekit(&["pager", "--socket", "q.sock", "--file"])
        .args(chain("other"))
        .current_dir(folder)
        .output()
        .unwrap();
    for refused in [pager, save(folder, vmm.pid(), "vm.api", "third", &["other", "first"])] {
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("the delta begins with state"), "{said}");
    }
    assert!(!folder.join("third").exists());
}

/// A full checkpoint and a delta go into a layout. The guest is restored from it by a pager, and from its files.
fn packed() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut vmm = guest(folder);
    saved(&save(folder, vmm.pid(), "vm.api", "full", &[]));
    let changed = Request::Write { start: 16 << 20, len: 1 << 20, seed: 8 };
    vmm.serial.ask(changed).unwrap();
    await_end_of_output(vmm.pid()).unwrap();
    saved(&save(folder, vmm.pid(), "vm.api", "first", &["full"]));
    drop(vmm);
    let image = |arguments: &[&str]| {
        let output = hugekit(&["image"]).args(arguments).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let said = image(&["pack", "full", "--delta", "first", "--tag", "v1", "-o", "layout"]);
    assert!(said.contains("in 1 delta;") && said.contains("sha256:"), "{said}");
    let said = image(&["unpack", "layout:v1", "-o", "back", "--json"]);
    let back: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(back["memory_bytes"], MEMORY << 20);
    let pager = pager_of(folder, "--oci", &[folder.join("layout")]);
    let log = fs::read_to_string(folder.join("log")).unwrap();
    let state = log.split("state of the VM: ").nth(1).unwrap().lines().next().unwrap();
    assert_eq!(fs::read(state).unwrap(), fs::read(folder.join("first/vmstate")).unwrap());
    let lazy = restore_by_pager(folder, "lazy", state.as_ref());
    drop(pager);
    let memory = [folder.join("back/memory")];
    let unpacked = restore(folder, "unpacked", &folder.join("back/vmstate"), &memory);
    for mut vmm in [lazy, unpacked] {
        for (start, len, seed) in [(16, 1, 8), (17, 31, 7)] {
            let verify = Request::Verify { start: start << 20, len: len << 20, seed };
            assert_eq!(vmm.serial.ask(verify).unwrap(), 0, "words differ");
        }
    }
    let config: Value = packed_config(&folder.join("layout"));
    assert_eq!(config["vmm"]["name"], "firecracker");
    let version = config["vmm"]["snapshot_version"].as_str().unwrap();
    assert_eq!(version.split('.').count(), 3, "{version}");
}

fn packed_config(layout: &Path) -> Value {
    let blob = |descriptor: &Value| -> Value {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        serde_json::from_slice(&fs::read(layout.join("blobs").join(digest)).unwrap()).unwrap()
    };
    let index = fs::read(layout.join("index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    blob(&blob(&index["manifests"][0])["config"])
}

fn saved(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["way"], "write-protected");
    report
}

fn no_api() {
    let folder = TempDir::new().unwrap();
    let saved = save(folder.path(), std::process::id() as i32, "none.api", "saved", &[]);
    let said = String::from_utf8_lossy(&saved.stderr);
    assert!(!saved.status.success() && said.contains("did not answer"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
