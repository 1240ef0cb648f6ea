//! The emulator: how a guest is described to it, and how it is watched.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hugekit_programs::Emulator;

use super::boot::Files;
use super::guest::Guest;
use super::report::{Pace, Report};
use crate::run;

/// The accelerator that executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Accelerator {
    /// This machine's CPU, through /dev/kvm
    Kvm,
    /// The emulator, on any machine
    Tcg,
    /// The emulator with a clock that counts the guest's instructions, one for each nanosecond, on any machine
    Counted,
}

/// The longest time until a kernel runs the first process: emulated beside other work, a few dozen seconds.
const BOOT_TCG: Duration = Duration::from_secs(300);

/// The same on this machine's CPU, which is as fast as the host's own boot. A kernel that KVM cannot run here prints
/// nothing more at some point and never ends.
const BOOT_KVM: Duration = Duration::from_secs(12);

/// The time in which a guest must report the end of a command, after the command's own bound.
const GRACE: Duration = Duration::from_secs(120);

/// Boots a guest, and returns its reports until it was off, or hung and was ended.
pub(super) fn run(guest: &Guest, accelerator: Accelerator, files: &Files) -> Result<Report> {
    let name = files.qemu.programs.first().context("an emulator is a program")?;
    let program =
        files.qemu.either(name, |program, package| package.said(program, &["--version"]).is_some());
    let emulator =
        Emulator::new(program.with_context(|| format!("no {name}"))?, files.qemu.unpacked());
    let mut command = emulator.command();
    command.current_dir(&files.folder).args(arguments(guest, accelerator).split_whitespace());
    command.arg("-kernel").arg(&files.kernel).args(["-append", &command_line(guest)]);
    if guest.swap_mib > 0 {
        File::create(files.folder.join("swap"))?.set_len((guest.swap_mib as u64) << 21)?;
    }
    fs::write(files.folder.join("command"), format!("{command:?}\n"))?;
    let errors = File::create(files.folder.join("qemu.log"))?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn();
    let mut running = Running(child.context("cannot start the emulator")?);
    let lines = run::lines(running.0.stdout.take().context("the output was asked for")?);
    let mut log = File::create(files.folder.join("results.log"))?;
    let mut report = Report::default();
    let mut bound = if accelerator == Accelerator::Kvm { BOOT_KVM } else { BOOT_TCG };
    let mut since = Instant::now();
    while !report.is_whole {
        let Ok(line) = lines.recv_timeout(bound.saturating_sub(since.elapsed())) else { break };
        writeln!(log, "{}", line.trim_end_matches('\r'))?;
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

/// The emulator's arguments, for the folder of the guest's files.
pub(super) fn arguments(guest: &Guest, accelerator: Accelerator) -> String {
    let Guest { cpu, cpus, mib, swap_mib, .. } = guest;
    let is_arm = guest.kernel.arm;
    let (accel, cpu) = match accelerator {
        Accelerator::Kvm => ("kvm", cpu.clone()),
        Accelerator::Tcg if is_arm => ("tcg,thread=multi", cpu.clone()),
        // All that could differ between two boots is fixed.
        Accelerator::Counted => (
            "tcg,thread=single -icount shift=0,sleep=off,align=off -seed 1 -rtc base=2026-01-01,clock=vm",
            format!("{cpu},-cx16"),
        ),
        // Without `cmpxchg16b`: under QEMU 7.2, Linux 6.12 died twice right behind one in its allocator, with flags that no
        // instruction sets, and has not without.
        Accelerator::Tcg => ("tcg,thread=multi", format!("{cpu},-cx16")),
    };
    let mut all = format!(
        "-nodefaults -display none -no-reboot -accel {accel} -cpu {cpu} -m {mib}M -initrd initramfs \
         -serial file:console.log -smp {cpus},sockets={cpus},cores=1,threads=1"
    );
    all += if is_arm {
        " -machine virt,gic-version=3 -chardev stdio,id=results -device pci-serial,chardev=results"
    } else {
        " -machine pc -serial stdio"
    };
    if *swap_mib > 0 {
        all += " -drive if=none,id=swap,format=raw,file=swap -device nvme,drive=swap,serial=swap";
    }
    all + &nodes(guest)
}

/// Nodes of equal parts, in a row: a neighbour is at 20, and each node more on the way adds 10, as on boards where
/// sockets are not all linked with each other.
fn nodes(guest: &Guest) -> String {
    let (cpus, mib) = (guest.cpus / guest.nodes, guest.mib / guest.nodes);
    let mut all = String::new();
    for node in (0..guest.nodes).filter(|_| guest.nodes > 1) {
        let (first, last) = (node * cpus, node * cpus + cpus - 1);
        all += &format!(" -object memory-backend-ram,id=memory{node},size={mib}M");
        all += &format!(" -numa node,nodeid={node},memdev=memory{node},cpus={first}-{last}");
    }
    for (from, to) in (0..guest.nodes).flat_map(|from| (0..guest.nodes).map(move |to| (from, to))) {
        if from != to {
            all += &format!(" -numa dist,src={from},dst={to},val={}", distance(from, to));
        }
    }
    all
}

/// The distance of two nodes in the units of ACPI: 10 to itself.
pub(super) fn distance(from: usize, to: usize) -> usize {
    10 + 10 * from.abs_diff(to)
}

/// No part of a test is judged by the time it takes, and emulation makes all slow: what watches for that is off.
fn command_line(guest: &Guest) -> String {
    let console = if guest.kernel.arm { "ttyAMA0" } else { "ttyS0" };
    let mut line = format!(
        "console={console} rdinit=/init panic=-1 loglevel=5 nowatchdog {} sysrq_always_enabled",
        guest.boot_options
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
