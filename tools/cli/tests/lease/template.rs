//! QEMU's clones of one VM, whose memory is an image.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_programs::firmware;
use serde_json::{Value, json};

use super::Check;
use super::daemon::{Daemon, PATIENCE, program};
use super::qemu::emulator;

pub(crate) const CHECKS: &[Check] = &[("clones_of_qemu_share_an_image", clones)];

const MEMORY: usize = 16 << 20;

/// Where the firmware writes its byte, and where nothing writes.
const WRITTEN: u64 = 0x500;
const FREE: u64 = 9 << 20;

/// A QEMU, which is killed when this is dropped.
struct Machine {
    child: Child,
    monitor: BufReader<UnixStream>,
    /// QEMU's protocol for tests, which reads and writes the guest's memory.
    memory: BufReader<UnixStream>,
}

impl Machine {
    /// Starts the end of a command with the options that all machines here have.
    fn start(folder: &Path, name: &str, mut command: Command, memory: &str) -> Self {
        let socket = |kind: &str| folder.join(format!("{name}.{kind}"));
        let server = |path: &Path| format!("unix:{},server=on,wait=off", path.display());
        let (monitor, memory_socket) = (socket("monitor"), socket("memory"));
        command.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-m", "16M"]);
        command.arg("-bios").arg(folder.join("rom"));
        command.args(["-machine", "pc,memory-backend=m", "-object", memory]);
        command.arg("-debugcon").arg(format!("file:{}", socket("said").display()));
        command.args(["-qmp", &server(&monitor), "-qtest", &server(&memory_socket)]);
        command.args(["-qtest-log", "none"]).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let monitor = connected(&mut child, &monitor);
        let memory = connected(&mut child, &memory_socket);
        let mut machine = Self { child, monitor, memory };
        machine.run("qmp_capabilities", &json!({}));
        machine
    }

    /// Carries out a command of the monitor, and returns its answer.
    fn run(&mut self, command: &str, arguments: &Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.monitor.get_mut(), "{request}").unwrap();
        loop {
            let line = line(&mut self.monitor);
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer["error"].is_null(), "{command}: {line}");
            if !answer["return"].is_null() {
                return answer["return"].clone();
            }
        }
    }

    fn ignore_shared(&mut self) {
        let capability = json!([{"capability": "x-ignore-shared", "state": true}]);
        self.run("migrate-set-capabilities", &json!({"capabilities": capability}));
    }

    fn until(&mut self, query: &str, is_there: impl Fn(&Value) -> bool) {
        let since = Instant::now();
        loop {
            let answer = self.run(query, &json!({}));
            if is_there(&answer) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{query}: {answer}");
            sleep(Duration::from_millis(5));
        }
    }

    fn byte(&mut self, address: u64) -> u8 {
        let answer = self.ask(&format!("readb {address:#x}"));
        let digits = answer.trim().strip_prefix("OK 0x").unwrap_or_else(|| panic!("{answer}"));
        u8::try_from(u64::from_str_radix(digits, 16).unwrap()).unwrap()
    }

    fn write(&mut self, address: u64, byte: u8) {
        let answer = self.ask(&format!("writeb {address:#x} {byte:#x}"));
        assert_eq!(answer.trim(), "OK");
    }

    fn ask(&mut self, request: &str) -> String {
        writeln!(self.memory.get_mut(), "{request}").unwrap();
        line(&mut self.memory)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(from: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    assert!(from.read_line(&mut line).unwrap() > 0, "QEMU has hung up");
    line
}

fn connected(child: &mut Child, socket: &Path) -> BufReader<UnixStream> {
    let since = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            return BufReader::new(stream);
        }
        assert!(child.try_wait().unwrap().is_none(), "QEMU ended");
        assert!(since.elapsed() < PATIENCE, "QEMU does not listen");
        sleep(Duration::from_millis(5));
    }
}

fn backend(path: &str, share: &str) -> String {
    format!("memory-backend-file,id=m,size={MEMORY},mem-path={path},share={share},align=2M")
}

/// Runs a VM until it has written to its memory; saves its memory and the rest of it.
fn save_template(folder: &Path, byte: u8) -> (PathBuf, PathBuf) {
    let (memory, rest) = (folder.join("template"), folder.join("state"));
    let shared = backend(&memory.display().to_string(), "on");
    let mut origin = Machine::start(folder, "origin", emulator().unwrap().command(), &shared);
    let since = Instant::now();
    while std::fs::read(folder.join("origin.said")).unwrap_or_default() != [byte] {
        assert!(since.elapsed() < PATIENCE, "the guest says nothing");
        sleep(Duration::from_millis(5));
    }
    origin.run("stop", &json!({}));
    origin.ignore_shared();
    origin.run("migrate", &json!({"uri": format!("exec:cat > {}", rest.display())}));
    origin.until("query-migrate", |answer| answer["status"] == "completed");
    (memory, rest)
}

/// A VM that goes on where the template was stopped.
fn clone(daemon: &Daemon, name: &str, rest: &Path) -> Machine {
    let mut lease = program();
    lease.args(["lease", "--image", "template", "--socket"]).arg(daemon.socket()).arg("--");
    emulator().unwrap().pass_to(&mut lease);
    lease.args(["-incoming", "defer"]);
    let private = backend("{}", "off");
    let mut clone = Machine::start(daemon.folder.path(), name, lease, &private);
    clone.ignore_shared();
    clone.run("migrate-incoming", &json!({"uri": format!("exec:cat {}", rest.display())}));
    clone.until("query-status", |answer| answer["status"] == "paused");
    clone.run("cont", &json!({}));
    clone
}

fn clones(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = daemon.folder.path();
    let (rom, byte) = firmware();
    std::fs::write(folder.join("rom"), rom).unwrap();
    let (memory, rest) = save_template(folder, byte);
    let before = std::fs::read(&memory).unwrap();
    assert_eq!(before[WRITTEN as usize], byte);
    let mut load = program();
    load.args(["image", "load", "--name", "template", "--socket"]).arg(daemon.socket());
    assert!(load.arg(&memory).status().unwrap().success());
    let (mut one, mut other) = (clone(&daemon, "one", &rest), clone(&daemon, "other", &rest));
    for machine in [&mut one, &mut other] {
        assert_eq!((machine.byte(WRITTEN), machine.byte(FREE)), (byte, 0));
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", machine.child.id())).unwrap();
        let own: Vec<_> = maps.lines().filter(|line| line.contains("hugekit:template")).collect();
        assert!(!own.is_empty() && own.iter().all(|line| line.contains("p ")), "{maps}");
    }
    for address in [WRITTEN, FREE] {
        one.write(address, !byte);
    }
    assert_eq!((one.byte(WRITTEN), one.byte(FREE)), (!byte, !byte));
    assert_eq!((other.byte(WRITTEN), other.byte(FREE)), (byte, 0));
    assert!(std::fs::read(&memory).unwrap() == before, "the template has changed");
}
