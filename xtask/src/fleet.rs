//! `cargo xtask fleet`: other kernels, nodes, CPUs and limits than this machine's, as small guests that run the
//! library's tests. The guests are in fleet.toml.

mod become_command;
mod boot;
mod counted;
mod doctor;
mod guest;
mod kernels;
mod modules;
mod nested;
mod qemu;
mod record;
mod report;

use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;

use crate::count::Count;
pub(crate) use become_command::Become;
use boot::{Files, Programs};
use guest::{FleetTable, Guest, Run};
use qemu::Accelerator;
use report::Report;

/// After this many seconds a command in a guest counts as hung: many times what any takes emulated on a busy machine.
const SECONDS: u64 = 1200;

/// An emulated guest is booted at most this often.
const BOOTS: usize = 3;

/// Guests that run side by side.
const AT_ONCE: usize = 2;

/// Boots small guests and runs the library's tests in them. Missing files are fetched into
/// `target/fleet`, where each guest's logs are, too
#[derive(Debug, Args)]
pub(crate) struct Fleet {
    /// These guests: `--list` names them
    #[arg(long, num_args = 1..)]
    only: Vec<String>,
    /// Print the guests; boot none
    #[arg(long)]
    list: bool,
    /// The accelerator that executes the guests' instructions; by default KVM if a guest boots on it
    #[arg(long)]
    accel: Option<Accelerator>,
    /// Write the table of xtask/src/fleet/README.md from the last run of each guest; boot none
    #[arg(long)]
    record: bool,
    /// Compare kernels by `hugekit lab`, in guests whose instructions are counted, or with `--accel kvm` by time
    #[arg(long)]
    compare_kernels: bool,
    /// Run this instead of what the table says, such as `doctor` or `"fork one_moment"`; may be repeated
    #[arg(long)]
    run: Vec<String>,
}

/// KVM has not booted a guest, so it boots none.
static KVM_FAILS: AtomicBool = AtomicBool::new(false);

/// The names of all guests.
#[cfg(test)]
pub(crate) fn guests() -> Result<Vec<String>> {
    Ok(FleetTable::read()?.guest.into_iter().map(|guest| guest.name).collect())
}

/// Does the work for each of these, two at a time: one guest leaves a third of two CPUs idle.
fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<R>>>> = items.iter().map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(index) =
                    Some(next.fetch_add(1, Relaxed)).filter(|&at| at < items.len())
                {
                    *done[index].lock().unwrap() = Some(work(&items[index]));
                }
            });
        }
    });
    done.into_iter().map(|one| one.into_inner().unwrap().expect("all were done")).collect()
}

impl Fleet {
    pub(crate) fn run(&self) -> Result<bool> {
        let mut table = FleetTable::read()?;
        if self.list {
            table.guest.iter().for_each(|guest| println!("{}: {}", guest.name, guest.about));
            return Ok(true);
        }
        if self.compare_kernels {
            return kernels::compare(&table, self.accel.unwrap_or(Accelerator::Counted));
        }
        if self.record {
            return record::write(&table).map(|()| true);
        }
        table.guest.retain(|guest| self.only.is_empty() || self.only.contains(&guest.name));
        ensure!(table.guest.len() >= self.only.len(), "no such guest: see --list");
        let (mut programs, mut ready) = (Programs::default(), Vec::new());
        let mut count = Count::default();
        for mut guest in table.guest {
            if !self.run.is_empty() {
                guest.runs = self.run.iter().cloned().map(Run::from).collect();
                (guest.left_out, guest.counters) = (Vec::new(), Vec::new());
            }
            match programs.prepare(&guest) {
                Ok(files) => ready.push((guest, files)),
                Err(error) => count.skip(format!("guest {}: {error:#}", guest.name)),
            }
        }
        self.boot_all(&ready, &mut count)?;
        println!();
        count.print_skipped();
        count.print_as_tests();
        Ok(count.failed == 0)
    }

    fn boot_all(&self, guests: &[(Guest, Files)], count: &mut Count) -> Result<()> {
        let counts = at_once(guests, |(guest, files)| self.boot_one(guest, files))?;
        counts.iter().for_each(|one| count.add(one));
        Ok(())
    }

    fn boot_one(&self, guest: &Guest, files: &Files) -> Result<Count> {
        let since = Instant::now();
        let report = self.report(guest, files)?;
        let (counted, commands) = report.outcome(guest);
        let (release, seconds) =
            (report.release.as_deref().unwrap_or("none"), since.elapsed().as_secs());
        println!("\n{}: {}: Linux {release}, {seconds} s", guest.name, guest.about);
        commands.iter().for_each(|line| println!("  {line}"));
        if self.run.is_empty() {
            record::keep(guest, release, &counted)?;
        }
        Ok(counted)
    }

    /// On KVM if it boots this guest, else emulated: again if its kernel has died before it ran anything. Kernels patch
    /// their own instructions while they boot, and other CPUs that QEMU emulates in parallel may execute one that is half
    /// patched.
    fn report(&self, guest: &Guest, files: &Files) -> Result<Report> {
        // Of this machine's CPU nobody knows whether its guests can have guests.
        let accelerator = self.accel.or(guest.nested.then_some(Accelerator::Tcg));
        if let Some(accelerator) = accelerator {
            return qemu::run(guest, accelerator, files);
        }
        let same = guest.kernel.arm == cfg!(target_arch = "aarch64");
        let opens = || File::options().read(true).write(true).open("/dev/kvm").is_ok();
        if same && !KVM_FAILS.load(Relaxed) && opens() {
            let report = qemu::run(guest, Accelerator::Kvm, files)?;
            if report.release.is_some() {
                return Ok(report);
            }
            println!("KVM has not brought up {}: guests are emulated", guest.name);
            KVM_FAILS.store(true, Relaxed);
        }
        for _ in 1..BOOTS {
            let report = qemu::run(guest, Accelerator::Tcg, files)?;
            if report.release.is_some() {
                return Ok(report);
            }
            println!("the kernel of {} has not come up, emulated: once more", guest.name);
        }
        qemu::run(guest, Accelerator::Tcg, files)
    }
}
