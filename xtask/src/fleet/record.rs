//! The rows of the table in docs/fleet.md: each guest's last run writes its own.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::guest::{Guest, Rights, Table};
use crate::count::Count;
use crate::run::{root, target_dir};

const BEGIN: &str = "<!-- Written by `cargo xtask fleet --record`. -->\n";
const END: &str = "<!-- The end of what is written. -->\n";
const HEAD: &str =
    "\n| guest | what it is | Linux | what ran | skipped |\n| --- | --- | --- | --- | --- |\n";

/// Keeps what came of a guest.
pub(super) fn keep(guest: &Guest, release: &str, count: &Count, commands: &[String]) -> Result<()> {
    let failures = count.failures.iter().map(|failure| format!("**failed**: {failure}"));
    let ran: Vec<_> = commands.iter().cloned().chain(failures).collect();
    let skipped: Vec<_> =
        count.reasons.iter().map(|(reason, tests)| format!("{tests}: {reason}")).collect();
    let path = path(guest);
    fs::write(&path, row(guest, release, &ran, &skipped))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the table of all guests into docs/fleet.md.
pub(super) fn write(table: &Table) -> Result<()> {
    let path = root().join("docs/fleet.md");
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let (before, rest) = text.split_once(BEGIN).context("docs/fleet.md has no beginning mark")?;
    let (_, after) = rest.split_once(END).context("docs/fleet.md has no end mark")?;
    let none = |guest| row(guest, "", &["not run yet".to_owned()], &[]);
    let rows = table
        .guest
        .iter()
        .map(|guest| fs::read_to_string(self::path(guest)).unwrap_or_else(|_| none(guest)));
    let rows = rows.collect::<String>();
    Ok(fs::write(&path, format!("{before}{BEGIN}{HEAD}{rows}\n{END}{after}"))?)
}

fn path(guest: &Guest) -> PathBuf {
    target_dir("fleet").join(&guest.name).join("row.md")
}

fn row(guest: &Guest, release: &str, ran: &[String], skipped: &[String]) -> String {
    let cell = |lines: &[String]| lines.join("<br>").replace('|', "\\|");
    let (name, what) = (&guest.name, described(guest));
    format!("| `{name}` | {what} | {release} | {} | {} |\n", cell(ran), cell(skipped))
}

/// All in which a guest differs from others.
fn described(guest: &Guest) -> String {
    let mut words = vec![
        format!("{}; {} × {}; {} MiB", guest.about, guest.cpus, guest.cpu, guest.mib),
        format!("THP {}, of shared memory {}", guest.thp, guest.shmem_thp),
    ];
    words.extend(guest.kernel.page_kib.map(|kib| format!("pages of {kib} KiB")));
    for (number, what) in [
        (guest.nodes, "nodes"),
        (guest.reserved_2m, "reserved pages of 2 MiB"),
        (guest.reserved_1g, "reserved pages of 1 GiB"),
        (guest.swap_mib, "MiB of swap"),
    ] {
        if number > usize::from(what == "nodes") {
            words.push(format!("{number} {what}"));
        }
    }
    match guest.rights {
        Rights::Root => {}
        Rights::User => words.push("an unprivileged user".to_owned()),
        Rights::NoUserfaultfd => words.push("userfaultfd refused by a filter".to_owned()),
    }
    words.join("; ")
}
