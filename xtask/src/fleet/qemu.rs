//! The emulator: how a machine of the table is described to it, and how it is watched.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hugekit_programs::Emulator;

use super::frames::{Frame, Report};
use super::kernels::Architecture;
use super::machine::Machine;
use crate::debian::{Debian, Piece, remedies};

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Accelerator {
    /// This machine's CPU, through /dev/kvm
    Kvm,
    /// The emulator, on any machine
    Tcg,
}

/// How long a kernel may take until it runs the first process: emulated beside other work, a few dozen seconds.
const BOOT_TCG: Duration = Duration::from_secs(300);

/// The same on this machine's CPU, which is as fast as the host's own boot. A kernel that KVM cannot run here prints
/// nothing more at some point and never ends.
const BOOT_KVM: Duration = Duration::from_secs(25);

/// How much longer than a command's own bound the guest may take to say how it ended.
const GRACE: Duration = Duration::from_secs(120);

static X86: Piece = Piece {
    name: "emulator of x86-64",
    remedy: "apt-get install qemu-system-x86",
    packages: &["qemu-system-x86"],
    arm64_packages: &[],
};

static ARM: Piece = Piece {
    name: "emulator of aarch64",
    remedy: "apt-get install qemu-system-arm",
    packages: &["qemu-system-arm"],
    arm64_packages: &[],
};

fn parts(architecture: Architecture) -> (&'static str, &'static Piece, Debian) {
    let (name, piece) = match architecture {
        Architecture::X86_64 => ("qemu-system-x86_64", &X86),
        Architecture::Aarch64 => ("qemu-system-aarch64", &ARM),
    };
    (name, piece, Debian::new("fleet", crate::target_dir("fleet").join(name)))
}

fn starts(program: &Path, debian: &Debian) -> bool {
    debian.answer(program, &["--version"]).is_some()
}

/// Fetches the emulator of this machine's own instructions if there is none, for tests that start a guest on their own.
/// Without success, they say what they lack.
pub(crate) fn fetch() {
    if let Err(error) = Qemu::find(Architecture::X86_64) {
        eprintln!("no emulator: {error:#}");
    }
}

/// The emulator's program.
#[derive(Debug)]
pub(super) struct Qemu {
    program: PathBuf,
    debian: Debian,
}

impl Qemu {
    /// The machine's own, or one that is fetched.
    pub(super) fn find(architecture: Architecture) -> Result<Self> {
        let (name, piece, debian) = parts(architecture);
        if debian.either(name, starts).is_none() {
            debian.fetch(&[piece])?;
        }
        let program = debian.either(name, starts).with_context(|| format!("no {name}"))?;
        Ok(Self { program, debian })
    }

    /// What is missing as long as nothing is fetched.
    pub(super) fn lacking(architecture: Architecture) -> Option<String> {
        let (name, piece, debian) = parts(architecture);
        debian.either(name, starts).is_none().then(|| remedies(&[piece]))
    }

    /// Boots the machine, and returns what it has said until it was off, or hung and was ended.
    pub(super) fn run(
        &self,
        machine: &Machine,
        accelerator: Accelerator,
        files: &Files,
    ) -> Result<Report> {
        let emulator = Emulator::new(&self.program, self.debian.unpacked().clone());
        let mut command = emulator.command();
        command.args(arguments(machine, accelerator, files)?);
        fs::write(files.path("command"), format!("{command:?}\n"))?;
        let errors = File::create(files.path("qemu.log"))?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn();
        let mut guest = Guest(child.context("cannot start the emulator")?);
        let lines = guest.lines(&files.path("results.log"))?;
        watch(machine, accelerator, &lines)
    }
}

/// Where a machine's files are: `target/fleet/NAME`.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) qemu: Qemu,
}

impl Files {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Emulated without `cmpxchg16b`: under QEMU 7.2, Linux 6.12 died twice right behind one in its allocator, with flags that
/// no instruction sets, and has not without.
fn cpu(machine: &Machine, accelerator: Accelerator) -> String {
    let is_emulated_x86 =
        accelerator == Accelerator::Tcg && machine.kernel.architecture == Architecture::X86_64;
    if is_emulated_x86 { format!("{},-cx16", machine.cpu) } else { machine.cpu.to_owned() }
}

fn arguments(machine: &Machine, accelerator: Accelerator, files: &Files) -> Result<Vec<String>> {
    let text = |path: PathBuf| path.to_str().map(str::to_owned).context("a path that is text");
    let kvm = accelerator == Accelerator::Kvm;
    let mut all: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));
    add(&["-nodefaults", "-display", "none", "-no-reboot"]);
    add(&["-accel", if kvm { "kvm" } else { "tcg,thread=multi" }]);
    add(&["-cpu", &cpu(machine, accelerator), "-m", &format!("{}M", machine.mib)]);
    add(&["-kernel", &text(files.kernel.clone())?, "-initrd", &text(files.path("initramfs"))?]);
    add(&["-serial", &format!("file:{}", text(files.path("console.log"))?)]);
    add(&["-append", &command_line(machine)]);
    match machine.kernel.architecture {
        Architecture::X86_64 => add(&["-machine", "pc", "-serial", "stdio"]),
        Architecture::Aarch64 => {
            add(&["-machine", "virt,gic-version=3"]);
            add(&["-chardev", "stdio,id=results", "-device", "pci-serial,chardev=results"]);
        }
    }
    add(&["-smp", &format!("{0},sockets={0},cores=1,threads=1", machine.cpus)]);
    for words in nodes(machine) {
        add(&[words[0].as_str(), words[1].as_str()]);
    }
    if machine.swap_mib > 0 {
        let disk = files.path("swap");
        File::create(&disk)?.set_len((machine.swap_mib as u64) << 21)?;
        add(&["-drive", &format!("if=none,id=swap,format=raw,file={}", text(disk)?)]);
        add(&["-device", "nvme,drive=swap,serial=swap"]);
    }
    Ok(all)
}

/// Nodes of equal parts, in a row: a neighbour is at 20, and each node more on the way adds 10, as on boards where
/// sockets are not all linked with each other.
fn nodes(machine: &Machine) -> Vec<[String; 2]> {
    if machine.nodes < 2 {
        return Vec::new();
    }
    let numbers = 0..machine.nodes;
    let (cpus, mib) = (machine.cpus / machine.nodes, machine.mib / machine.nodes);
    let mut all = Vec::new();
    for node in numbers.clone() {
        all.push(["-object".to_owned(), format!("memory-backend-ram,id=memory{node},size={mib}M")]);
        let (first, last) = (node * cpus, node * cpus + cpus - 1);
        let described = format!("node,nodeid={node},memdev=memory{node},cpus={first}-{last}");
        all.push(["-numa".to_owned(), described]);
    }
    for (from, to) in numbers.clone().flat_map(|from| numbers.clone().map(move |to| (from, to))) {
        if from != to {
            let distance = distance(from, to);
            all.push(["-numa".to_owned(), format!("dist,src={from},dst={to},val={distance}")]);
        }
    }
    all
}

/// As ACPI has it: 10 to itself.
pub(super) fn distance(from: usize, to: usize) -> usize {
    10 + 10 * from.abs_diff(to)
}

/// No part of a test is judged by the time it takes, and emulation makes all slow: what watches for that is off.
fn command_line(machine: &Machine) -> String {
    let console = match machine.kernel.architecture {
        Architecture::X86_64 => "ttyS0",
        Architecture::Aarch64 => "ttyAMA0",
    };
    let mut line = format!(
        "console={console} rdinit=/init panic=-1 loglevel=5 nowatchdog mitigations=off sysrq_always_enabled"
    );
    for (size, pages) in [("1G", machine.reserved.pages_1g), ("2M", machine.reserved.pages_2m)] {
        if pages > 0 {
            line += &format!(" hugepagesz={size} hugepages={pages}");
        }
    }
    line
}

/// An emulator that ends with this value.
#[derive(Debug)]
struct Guest(Child);

impl Guest {
    /// What the guest says, line by line, which is kept in a file, too.
    fn lines(&mut self, log: &Path) -> Result<Receiver<String>> {
        let output = self.0.stdout.take().context("the output was asked for")?;
        let mut log = File::create(log)?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                let _ = writeln!(log, "{}", line.trim_end_matches('\r'));
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(receiver)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes in what the guest says until it is off, its emulator has ended, or it has taken longer than it may.
fn watch(machine: &Machine, accelerator: Accelerator, lines: &Receiver<String>) -> Result<Report> {
    let mut report = Report::default();
    let mut bound = match accelerator {
        Accelerator::Kvm => BOOT_KVM,
        Accelerator::Tcg => BOOT_TCG,
    };
    let mut since = Instant::now();
    while !report.is_whole {
        let line = match lines.recv_timeout(bound.saturating_sub(since.elapsed())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
        };
        let frame = Frame::read(&line);
        match &frame {
            Frame::Output(_) | Frame::Refused { .. } | Frame::Still { .. } => {}
            Frame::Up { .. } | Frame::End { .. } | Frame::Off => {
                (since, bound) = (Instant::now(), GRACE);
            }
            Frame::Begin { name } => {
                let Some(run) = machine.runs.iter().find(|run| run.name() == *name) else {
                    bail!("the guest runs {name}, which is not in the table");
                };
                (since, bound) = (Instant::now(), Duration::from_secs(run.seconds) + GRACE);
            }
        }
        report.take(frame);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_in_a_row_are_farther_the_more_lie_between() {
        assert_eq!([distance(0, 0), distance(0, 1), distance(3, 0)], [10, 20, 40]);
    }
}
