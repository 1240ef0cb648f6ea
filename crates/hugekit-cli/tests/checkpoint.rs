//! `hugekit checkpoint` as users start it, after `hugekit pager`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Firecracker, Pages, Request, Snapshot, lacking};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
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

fn saved_and_restored() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let first = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin").unwrap();
    origin.boot(MEMORY, Pages::Base).unwrap();
    origin.serial.ask(WRITE).unwrap();
    origin.save(&first).unwrap();
    drop(origin);
    let mut vmm = restore(folder, "vm", &first);
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
