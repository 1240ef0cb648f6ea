//! What is kept of each guest's last run, and the table of docs/fleet.md that is made of it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine::{Machine, Rights};
use super::results::Outcome;
use super::table::MACHINES;

const BEGIN: &str = "<!-- Written by `cargo xtask fleet --record`. -->\n";
const END: &str = "<!-- The end of what is written. -->\n";

/// Keeps what came of a guest.
pub(super) fn keep(machine: &Machine, outcome: &Outcome) -> Result<()> {
    let kept = json!({
        "release": outcome.release,
        "passed": outcome.count.passed,
        "failed": outcome.count.failed,
        "skipped": outcome.count.skipped,
        "reasons": outcome.count.reasons,
        "commands": outcome.commands,
        "failures": outcome.failures,
    });
    let path = path(machine);
    fs::write(&path, format!("{kept:#}\n")).with_context(|| format!("no {}", path.display()))
}

fn path(machine: &Machine) -> PathBuf {
    crate::target_dir("fleet").join(machine.name).join("result.json")
}

/// Writes the table of all guests into docs/fleet.md.
pub(super) fn write() -> Result<()> {
    let path = crate::target_dir("").with_file_name("docs").join("fleet.md");
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let mut table = String::from(
        "\n| guest | what it is | Linux | what ran | skipped |\n| --- | --- | --- | --- | --- |\n",
    );
    for machine in MACHINES {
        let kept = match fs::read_to_string(self::path(machine)) {
            Ok(kept) => serde_json::from_str(&kept)?,
            Err(_) => json!({ "release": "", "commands": ["not run yet"] }),
        };
        table += &row(machine, &kept);
    }
    let (before, rest) = text.split_once(BEGIN).context("docs/fleet.md has no beginning mark")?;
    let (_, after) = rest.split_once(END).context("docs/fleet.md has no end mark")?;
    fs::write(&path, format!("{before}{BEGIN}{table}\n{END}{after}"))?;
    Ok(())
}

fn row(machine: &Machine, kept: &Value) -> String {
    let lines = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let mut ran = lines(&kept["commands"]);
    ran.extend(lines(&kept["failures"]).iter().map(|failure| format!("**failed**: {failure}")));
    let reasons = kept["reasons"].as_object().into_iter().flatten();
    let skipped: Vec<String> =
        reasons.map(|(reason, tests)| format!("{tests}: {reason}")).collect();
    format!(
        "| `{}` | {} | {} | {} | {} |\n",
        machine.name,
        described(machine),
        kept["release"].as_str().unwrap_or_default(),
        cell(&ran),
        cell(&skipped)
    )
}

/// Lines within one cell of a table.
fn cell(lines: &[String]) -> String {
    lines.iter().map(|line| line.replace('|', "\\|")).collect::<Vec<_>>().join("<br>")
}

/// All in which it differs from others.
fn described(machine: &Machine) -> String {
    let mut words = vec![
        machine.about.to_owned(),
        format!("{} × {}", machine.cpus, machine.cpu),
        format!("{} MiB", machine.mib),
    ];
    if machine.kernel.page_kib != 4 {
        words.push(format!("pages of {} KiB", machine.kernel.page_kib));
    }
    if machine.nodes > 1 {
        words.push(format!("{} nodes", machine.nodes));
    }
    words.push(format!("THP {}, of shared memory {}", machine.thp, machine.shmem_thp));
    for (pages, size) in
        [(machine.reserved.pages_2m, "2 MiB"), (machine.reserved.pages_1g, "1 GiB")]
    {
        if pages > 0 {
            words.push(format!("{pages} reserved pages of {size}"));
        }
    }
    if machine.swap_mib > 0 {
        words.push(format!("{} MiB of swap", machine.swap_mib));
    }
    match machine.rights {
        Rights::Root => {}
        Rights::User => words.push("an unprivileged user".to_owned()),
        Rights::NoUserfaultfd => words.push("userfaultfd refused by a filter".to_owned()),
    }
    words.join("; ")
}
