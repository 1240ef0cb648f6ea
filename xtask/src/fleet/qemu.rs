//! The emulator: how a guest is described to it, and how it is watched.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hugekit_programs::Emulator;

use super::boot::Files;
use super::guest::Guest;
use super::report::{Pace, Report};

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

/// Boots a guest, and returns what it has reported until it was off, or hung and was ended.
pub(super) fn run(guest: &Guest, accelerator: Accelerator, files: &Files) -> Result<Report> {
    let name = files.qemu.programs.first().context("an emulator is a program")?;
    let program =
        files.qemu.either(name, |program, package| package.said(program, &["--version"]).is_some());
    let emulator =
        Emulator::new(program.with_context(|| format!("no {name}"))?, files.qemu.unpacked());
    let mut command = emulator.command();
    command.args(arguments(guest, accelerator, files)?);
    fs::write(files.folder.join("command"), format!("{command:?}\n"))?;
    let errors = File::create(files.folder.join("qemu.log"))?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn();
    let mut running = Running(child.context("cannot start the emulator")?);
    let lines = running.lines(&files.folder.join("results.log"))?;
    let mut report = Report::default();
    let mut bound = if accelerator == Accelerator::Kvm { BOOT_KVM } else { BOOT_TCG };
    let mut since = Instant::now();
    while !report.is_whole {
        let Ok(line) = lines.recv_timeout(bound.saturating_sub(since.elapsed())) else { break };
        bound = match report.read(&line) {
            Pace::Output => continue,
            Pace::Begins => Duration::from_secs(super::SECONDS) + GRACE,
            Pace::Soon if report.release.is_none() => continue,
            Pace::Soon => GRACE,
        };
        since = Instant::now();
    }
    Ok(report)
}

/// Emulated without `cmpxchg16b`: under QEMU 7.2, Linux 6.12 died twice right behind one in its allocator, with flags that
/// no instruction sets, and has not without.
fn cpu(guest: &Guest, accelerator: Accelerator) -> String {
    let is_emulated_x86 = accelerator == Accelerator::Tcg && !guest.kernel.arm;
    if is_emulated_x86 { format!("{},-cx16", guest.cpu) } else { guest.cpu.to_owned() }
}

fn arguments(guest: &Guest, accelerator: Accelerator, files: &Files) -> Result<Vec<String>> {
    let text = |path: PathBuf| path.to_str().map(str::to_owned).context("a path that is text");
    let kvm = accelerator == Accelerator::Kvm;
    let mut all: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));
    add(&["-nodefaults", "-display", "none", "-no-reboot"]);
    add(&["-accel", if kvm { "kvm" } else { "tcg,thread=multi" }]);
    add(&["-cpu", &cpu(guest, accelerator), "-m", &format!("{}M", guest.mib)]);
    add(&[
        "-kernel",
        &text(files.kernel.clone())?,
        "-initrd",
        &text(files.folder.join("initramfs"))?,
    ]);
    add(&["-serial", &format!("file:{}", text(files.folder.join("console.log"))?)]);
    add(&["-append", &command_line(guest)]);
    if guest.kernel.arm {
        add(&["-machine", "virt,gic-version=3"]);
        add(&["-chardev", "stdio,id=results", "-device", "pci-serial,chardev=results"]);
    } else {
        add(&["-machine", "pc", "-serial", "stdio"]);
    }
    add(&["-smp", &format!("{0},sockets={0},cores=1,threads=1", guest.cpus)]);
    for words in nodes(guest) {
        add(&[words[0].as_str(), words[1].as_str()]);
    }
    if guest.swap_mib > 0 {
        let disk = files.folder.join("swap");
        File::create(&disk)?.set_len((guest.swap_mib as u64) << 21)?;
        add(&["-drive", &format!("if=none,id=swap,format=raw,file={}", text(disk)?)]);
        add(&["-device", "nvme,drive=swap,serial=swap"]);
    }
    Ok(all)
}

/// Nodes of equal parts, in a row: a neighbour is at 20, and each node more on the way adds 10, as on boards where
/// sockets are not all linked with each other.
fn nodes(guest: &Guest) -> Vec<[String; 2]> {
    if guest.nodes < 2 {
        return Vec::new();
    }
    let numbers = 0..guest.nodes;
    let (cpus, mib) = (guest.cpus / guest.nodes, guest.mib / guest.nodes);
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
fn command_line(guest: &Guest) -> String {
    let console = if guest.kernel.arm { "ttyAMA0" } else { "ttyS0" };
    let mut line = format!(
        "console={console} rdinit=/init panic=-1 loglevel=5 nowatchdog mitigations=off sysrq_always_enabled"
    );
    for (size, pages) in [("1G", guest.reserved_1g), ("2M", guest.reserved_2m)] {
        if pages > 0 {
            line += &format!(" hugepagesz={size} hugepages={pages}");
        }
    }
    line
}

/// An emulator that ends when this value is dropped.
#[derive(Debug)]
struct Running(Child);

impl Running {
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_in_a_row_are_farther_the_more_lie_between() {
        assert_eq!([distance(0, 0), distance(0, 1), distance(3, 0)], [10, 20, 40]);
    }
}
