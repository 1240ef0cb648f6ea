//! `cargo xtask fleet --compare-kernels`: the published form, a workload on a kernel before and after a change. Only
//! by KVM: the speed of an emulator says nothing of a kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::boot::Programs;
use super::guest::{FleetTable, Guest, Run};
use super::qemu::{self, Accelerator};
use super::report::Report;
use crate::run::succeed;

/// The experiments whose cases depend on the kernel, in as many rounds as a comparison needs.
const RUN: &str = "lab demand fork --setup --rounds 10 --no-record --json -";

/// Enough for the cases of 1 GiB.
const MIB: usize = 6144;

/// Compares each kernel of the table's list with the next one. It succeeds, too, if KVM boots none of them.
pub(super) fn compare(table: &FleetTable) -> Result<bool> {
    let (guests, mut programs, mut records) = (guests(table)?, Programs::default(), Vec::new());
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
        println!("{}: Linux {release}: {RUN}", guest.name);
        records.push(keep(&files.folder, &report)?);
    }
    let lab = programs.built(&guests[0])?.path(&guests[0].runs[0])?;
    for pair in records.windows(2) {
        succeed(Command::new(lab).arg("--compare").args(pair))?;
    }
    Ok(true)
}

/// Returns the guests of the list, in its order, each with the same memory.
fn guests(table: &FleetTable) -> Result<Vec<Guest>> {
    let guest = |name: &String| {
        let guest = table.guest.iter().find(|guest| guest.name == *name);
        let guest = guest.with_context(|| format!("no guest {name}"))?.clone();
        let (name, runs) = (format!("compared-{name}"), vec![Run::from(RUN.to_owned())]);
        Ok(Guest { name, mib: MIB, runs, file_systems: false, ..guest })
    };
    table.compared.iter().map(guest).collect()
}

/// Writes the record that the guest has printed into a file of its folder.
fn keep(folder: &Path, report: &Report) -> Result<PathBuf> {
    let printed = report.ran.first().map_or(&[][..], |ran| &ran.output);
    let record = record(printed).with_context(|| format!("no record in {}", folder.display()))?;
    let path = folder.join("record.json");
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
        let guests = guests(&FleetTable::read().unwrap()).unwrap();
        let machine = |guest: &Guest| (qemu::arguments(guest, Accelerator::Kvm), guest.script());
        for pair in guests.windows(2) {
            assert_eq!(machine(&pair[0]), machine(&pair[1]));
            assert_ne!(pair[0].kernel_name, pair[1].kernel_name);
        }
    }
}
