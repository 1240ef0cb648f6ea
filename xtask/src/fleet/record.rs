//! The rows of the table in xtask/src/fleet/README.md: each guest's last run writes its own.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::guest::{FleetTable, Guest};
use crate::count::Count;
use crate::run::{root, target_dir};

const BEGIN: &str = "<!-- Written by `cargo xtask fleet --record`. -->\n";
const END: &str = "<!-- End. -->\n";
const HEAD: &str =
    "\n| guest | difference | Linux | passed, failed, skipped |\n| --- | --- | --- | --- |\n";

/// Keeps the counts of a guest's run.
pub(super) fn keep(guest: &Guest, release: &str, count: &Count) -> Result<()> {
    Ok(fs::write(path(guest), row(guest, release, count))?)
}

/// Writes the table of all guests into xtask/src/fleet/README.md. A guest without a run here keeps its row.
pub(super) fn write(table: &FleetTable) -> Result<()> {
    let path = root().join("xtask/src/fleet/README.md");
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let (before, rest) =
        text.split_once(BEGIN).context("xtask/src/fleet/README.md has no beginning mark")?;
    let (old, after) = rest.split_once(END).context("xtask/src/fleet/README.md has no end mark")?;
    let rows = table
        .guest
        .iter()
        .map(|guest| fs::read_to_string(self::path(guest)).unwrap_or_else(|_| earlier(old, guest)));
    let rows = rows.collect::<String>();
    Ok(fs::write(&path, format!("{before}{BEGIN}{HEAD}{rows}\n{END}{after}"))?)
}

/// The row of a guest in the old table.
fn earlier(old: &str, guest: &Guest) -> String {
    let Guest { name, about, .. } = guest;
    let row = old.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
    row.map_or_else(|| format!("| `{name}` | {about} | | not run |\n"), |row| format!("{row}\n"))
}

fn path(guest: &Guest) -> PathBuf {
    target_dir("fleet").join(&guest.name).join("counts.md")
}

fn row(guest: &Guest, release: &str, count: &Count) -> String {
    let Count { passed, failed, skipped, .. } = count;
    let failed = if *failed > 0 { format!("**{failed}**") } else { "0".to_owned() };
    let release = release.split(['+', '-']).next().unwrap_or(release);
    format!("| `{}` | {} | {release} | {passed}, {failed}, {skipped} |\n", guest.name, guest.about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_counts_and_one_that_was_not_run_stays() {
        let guest = FleetTable::read().unwrap().guest.swap_remove(0);
        let count = Count { passed: 5, failed: 1, skipped: 2, ..Count::default() };
        let row = row(&guest, "7.3.4+deb13-cloud-amd64", &count);
        let (name, about) = (&guest.name, &guest.about);
        assert_eq!(row, format!("| `{name}` | {about} | 7.3.4 | 5, **1**, 2 |\n"));
        assert_eq!(earlier(&format!("a\n{row}b"), &guest), row);
        assert!(earlier("a", &guest).ends_with("| not run |\n"));
    }
}
