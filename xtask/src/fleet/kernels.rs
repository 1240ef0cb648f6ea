//! `cargo xtask fleet --compare-kernels`: the published form, a workload on kernels before and after a change.
//!
//! By default the emulator counts instructions. They are the same on each machine, and in each run. With `--accel kvm` the
//! lab measures times on this machine's CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::at_once;
use super::boot::{Files, Programs};
use super::counted::{self, CountedCase};
use super::guest::{FleetTable, Guest, Run};
use super::qemu::{self, Accelerator};
use super::report::Report;
use crate::run::{succeed, target_dir};

/// The experiments whose cases depend on the kernel, in as few rounds as there can be: counts hardly vary. Each returns the
/// pages that it has reserved.
const RUNS: [&str; 2] = [
    "lab demand --setup --rounds 2 --memory 2GiB --no-record --json -",
    "lab fork --setup --rounds 2 --memory 2GiB --no-record --json -",
];

/// Enough for the cases of 1 GiB.
const MIB: usize = 10240;

/// A CPU that TCG has, without the instruction that clears a page byte by byte in the eyes of the emulator.
const CPU: &str = "EPYC-Milan,-erms";

/// For the command line of all compared kernels: memory lies at the same addresses in each boot.
const FIXED: &str = "nokaslr norandmaps";

/// The ways in which each kernel is booted: a name, and options for its command line.
const BOOTS: [(&str, &str); 3] = [
    ("plain", "mitigations=off init_on_alloc=0"),
    ("mitigations", "init_on_alloc=0"),
    ("init_on_alloc", "mitigations=off init_on_alloc=1"),
];

/// Compares the kernels of the table's list.
pub(super) fn compare(table: &FleetTable, accelerator: Accelerator) -> Result<bool> {
    match accelerator {
        Accelerator::Kvm => compare_times(table),
        Accelerator::Counted => count_all(table),
        Accelerator::Tcg => anyhow::bail!(
            "the speed of an emulator says nothing of a kernel: --accel counted or kvm"
        ),
    }
}

/// Counts the instructions of each kernel, booted in each way, and writes one table for each way.
fn count_all(table: &FleetTable) -> Result<bool> {
    let mut programs = Programs::default();
    let mut tables = String::new();
    for (way, options) in BOOTS {
        let guests = guests(table, way, options)?;
        let files =
            guests.iter().map(|guest| programs.prepare(guest)).collect::<Result<Vec<_>>>()?;
        let ready: Vec<_> = guests.iter().zip(&files).collect();
        let counted: Vec<_> = at_once(&ready, |(guest, files)| count(guest, files))?;
        tables += &format!("## {options}\n\n{}\n", counted::table(&counted));
    }
    println!(
        "Instructions; demand: of one page that is touched, fork: of one fork of 1 GiB.\n\n{tables}"
    );
    fs::write(target_dir("fleet").join("counted.md"), tables)?;
    Ok(true)
}

/// Boots a guest and returns its release, and the instructions of each case.
fn count(guest: &Guest, files: &Files) -> Result<(String, Vec<CountedCase>)> {
    let report = qemu::run(guest, Accelerator::Counted, files)?;
    let release = report.release.as_ref();
    let release =
        release.with_context(|| format!("the kernel of {} has not come up", guest.name))?;
    ensure!(
        release.starts_with(&guest.kernel.release),
        "{} runs Linux {release}, not {}",
        guest.name,
        guest.kernel.release
    );
    println!("{}: Linux {release}", guest.name);
    let mut all = Vec::new();
    for (index, record) in printed_records(&files.folder, &report)?.iter().enumerate() {
        let (record, cases) = counted::in_instructions(record)?;
        keep(&files.folder, index, &record)?;
        all.extend(cases);
    }
    Ok((release.clone(), all))
}

/// Measures times on KVM, and compares each kernel with the next one. It succeeds, too, if KVM boots none of them.
fn compare_times(table: &FleetTable) -> Result<bool> {
    let (way, options) = BOOTS[0];
    let (guests, mut programs, mut records) =
        (guests(table, way, options)?, Programs::default(), Vec::new());
    for guest in &guests {
        let files = programs.prepare(guest)?;
        let report = qemu::run(guest, Accelerator::Kvm, &files)?;
        let Some(release) = &report.release else {
            let (name, log) = (&guest.name, files.folder.join("qemu.log"));
            println!(
                "{name}: KVM has not brought up the guest: no kernels are compared; {}",
                log.display()
            );
            return Ok(true);
        };
        println!("{}: Linux {release}", guest.name);
        let printed = printed_records(&files.folder, &report)?;
        let kept =
            printed.iter().enumerate().map(|(index, record)| keep(&files.folder, index, record));
        records.push(kept.collect::<Result<Vec<_>>>()?);
    }
    let lab = programs.built(&guests[0])?.path(&guests[0].runs[0])?;
    for pair in records.windows(2) {
        for (before, after) in pair[0].iter().zip(&pair[1]) {
            succeed(Command::new(lab).arg("--compare").args([before, after]))?;
        }
    }
    Ok(true)
}

/// Returns the guests of the list, in its order, booted in one way, and otherwise alike.
fn guests(table: &FleetTable, way: &str, options: &str) -> Result<Vec<Guest>> {
    let default = table.guest.first().context("the table has a guest")?;
    let guest = |name: &String| {
        let kernel = table.kernels.get(name).with_context(|| format!("no kernel {name}"))?.clone();
        Ok(Guest {
            name: format!("compared-{way}-{name}"),
            kernel_name: name.clone(),
            kernel,
            cpu: CPU.to_owned(),
            cpus: 1,
            mib: MIB,
            reserved_1g: 1,
            boot_options: format!("{FIXED} {options}"),
            runs: RUNS.map(|run| Run::from(run.to_owned())).to_vec(),
            file_systems: false,
            ..default.clone()
        })
    };
    table.compared.iter().map(guest).collect()
}

/// The records that the guest has printed, one of each run.
fn printed_records(folder: &Path, report: &Report) -> Result<Vec<String>> {
    let records: Vec<_> = report.ran.iter().filter_map(|ran| record(&ran.output)).collect();
    let (found, wanted) = (records.len(), RUNS.len());
    ensure!(found == wanted, "{found} records of {wanted} in {}", folder.display());
    Ok(records)
}

/// Writes a record into a file of the guest's folder.
fn keep(folder: &Path, index: usize, record: &str) -> Result<PathBuf> {
    let path = folder.join(format!("record-{index}.json"));
    fs::write(&path, record).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Returns the lines between the outermost braces, without what else the command prints.
fn record(printed: &[String]) -> Option<String> {
    let first = printed.iter().position(|line| line == "{")?;
    let last = printed[first..].iter().rposition(|line| line == "}")?;
    Some(printed[first..=first + last].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_cut_out_of_what_a_guest_prints() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let printed = lines("demand 2MiB\n{\n  \"a\": {\n  }\n}\nwarning: noise");
        assert_eq!(record(&printed).unwrap(), "{\n  \"a\": {\n  }\n}");
        for cut_off in ["", "{\n  \"a\": 1", "no {\n}", "}\n{"] {
            assert_eq!(record(&lines(cut_off)), None, "{cut_off}");
        }
    }

    #[test]
    fn compared_guests_differ_in_their_kernels_only() {
        let (way, options) = BOOTS[0];
        let guests = guests(&FleetTable::read().unwrap(), way, options).unwrap();
        let machine =
            |guest: &Guest| (qemu::arguments(guest, Accelerator::Counted), guest.script());
        for pair in guests.windows(2) {
            assert_eq!(machine(&pair[0]), machine(&pair[1]));
            assert_ne!(pair[0].kernel_name, pair[1].kernel_name);
        }
    }
}
