//! `hugekit checkpoint` and `hugekit fork` as users start them, after `hugekit pager`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Firecracker, Pages, Request, Serial, Snapshot, lacking, program};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MEMORY: u64 = 64;
const WRITE: Request = Request::Write { start: 16 << 20, len: 32 << 20, seed: 7 };
const VERIFY: Request = Request::Verify { start: 16 << 20, len: 32 << 20, seed: 7 };
const LONGEST_WAIT: Duration = Duration::from_secs(60);

fn main() {
    let trials = vec![
        Trial::ignorable_test("vm_that_a_pager_has_left_is_saved_and_restored", || {
            Ok(match lacking() {
                Some(reason) => Completion::ignored_with(reason),
                None => {
                    saved_and_restored();
                    Completion::Completed
                }
            })
        }),
        Trial::ignorable_test("vm_is_forked_and_its_child_is_forked_again", || {
            Ok(match lacking() {
                Some(reason) => Completion::ignored_with(reason),
                None => {
                    forked();
                    Completion::Completed
                }
            })
        }),
        Trial::test("api_that_does_not_answer_is_an_error", || {
            no_api();
            Ok::<(), Failed>(())
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A process, which is killed when this is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hugekit(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugekit"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn pager(folder: &Path, memory: &Path) -> Started {
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut command = hugekit(&["pager", "--record", "0", "--socket"]);
    command.arg(folder.join("p.sock")).arg("--file").arg(memory).stderr(log);
    let pager = Started(command.spawn().unwrap());
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

fn restore(folder: &Path, name: &str, from: &Snapshot) -> Firecracker {
    let _pager = pager(folder, &from.memory);
    let vmm = Firecracker::start(folder, name).unwrap();
    vmm.load_by_handler(from, &folder.join("p.sock"), true).unwrap();
    await_words(folder, "left to the kernel");
    vmm
}

fn save(folder: &Path, pid: i32, name: &str) -> Output {
    let mut command = hugekit(&["checkpoint", "--json", "-", "--pid", &pid.to_string(), "--api"]);
    command.arg(folder.join(name)).arg("--output").arg(folder.join("saved"));
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
    let vmm = restore(folder, "vm", &first);
    // A snapshot at the moment of serial output cannot be restored on machines without hardware
    // virtualization.
    sleep(Duration::from_millis(300));
    vmm
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
fn fork(folder: &Path, pid: i32, vm: &str, count: usize) -> Vec<ForkedGuest> {
    let names = (1..=count).map(|number| format!("{vm}.{number}"));
    let serials: Vec<Serial> = names.map(|name| ForkedGuest::pipes(folder, &name)).collect();
    let mut command = hugekit(&["fork", "--json", "-", "--pid", &pid.to_string(), "--api"]);
    command.arg(folder.join(vm)).args(["--children", &count.to_string(), "--"]);
    let script = "exec \"$0\" --api-sock \"$1\" --id child --level Off < \"$1.in\" > \"$1.out\"";
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
    let mut children = fork(folder, vmm.pid(), "vm.api", 2);
    assert_eq!(vmm.serial.ask(VERIFY).unwrap(), 0);
    for child in &mut children {
        assert_eq!(child.serial.ask(VERIFY).unwrap(), 0);
    }
    sleep(Duration::from_millis(300));
    let mut grandchildren = fork(folder, children[1].pid, "vm.api.2", 1);
    assert_eq!(grandchildren[0].serial.ask(VERIFY).unwrap(), 0);
}

fn saved_and_restored() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut vmm = guest(folder);
    let saved = save(folder, vmm.pid(), "vm.api");
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    let report: Value = serde_json::from_slice(&saved.stdout).unwrap();
    assert_eq!(report["way"], "write-protected");
    assert_eq!(report["memory_bytes"], MEMORY << 20);
    assert!(report["paused_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(vmm.serial.ask(VERIFY).unwrap(), 0);
    let place = folder.join("saved");
    let second = Snapshot { state: place.join("vmstate"), memory: place.join("memory") };
    let mut child = restore(folder, "child", &second);
    assert_eq!(child.serial.ask(VERIFY).unwrap(), 0);
    let again = save(folder, vmm.pid(), "vm.api");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("exists already") && said.contains("remedy:"), "{said}");
}

fn no_api() {
    let folder = TempDir::new().unwrap();
    let saved = save(folder.path(), std::process::id() as i32, "none.api");
    let said = String::from_utf8_lossy(&saved.stderr);
    assert!(!saved.status.success() && said.contains("did not answer"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
