//! `hugekit image list`: what a broker holds, and who has it.

use anyhow::Context;
use clap::Args;
use comfy_table::Table;
use hugekit_image::{FileIdentity, ImageClone, clones};
use hugekit_lease::images;
use hugekit_lease::protocol::ImageRow;
use hugekit_machine::Root;
use hugekit_machine::size::Size;
use serde_json::json;

use super::{AskedBroker, explained};
use hugekit_terminal::text::write_out;

/// Say which images a broker holds, and which processes have mapped them.
///
/// A clone is a process that maps an image. Clones of other users are seen by root only.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Print JSON and nothing else
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: AskedBroker,
}

impl List {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let rows = images::list(&self.broker.socket()).map_err(crate::lease::explained)?;
        let identities: Vec<_> = rows.iter().map(identity).collect();
        let (clones, _) = clones(&Root::default(), &identities).map_err(explained)?;
        let text = if self.json { of_programs(&rows, &clones)? } else { of_people(&rows, &clones) };
        write_out(&text).context("cannot write to standard output")
    }
}

fn identity(row: &ImageRow) -> FileIdentity {
    FileIdentity { device: row.device, inode: row.inode }
}

fn of_programs(rows: &[ImageRow], clones: &[ImageClone]) -> serde_json::Result<String> {
    let rows: Vec<_> = rows.iter().map(|row| of_program(row, clones)).collect();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

fn of_program(row: &ImageRow, clones: &[ImageClone]) -> serde_json::Value {
    let clones = clones.iter().filter(|clone| clone.image == identity(row)).map(|clone| {
        json!({
            "pid": clone.pid,
            "bytes_shared": clone.shared,
            "bytes_private": clone.private,
            "bytes_mapped_by_huge_pages": clone.huge,
        })
    });
    json!({
        "name": row.name.as_str(),
        "bytes": row.facts.bytes,
        "bytes_in_memory": row.facts.present,
        "bytes_on_huge_pages": row.facts.huge,
        "uid": row.uid,
        "for_all": row.is_for_all,
        "dropped": row.is_dropped,
        "seconds": row.age_ms as f64 / 1000.0,
        "clones": clones.collect::<Vec<_>>(),
    })
}

fn of_people(rows: &[ImageRow], clones: &[ImageClone]) -> String {
    if rows.is_empty() {
        return "no images\n".to_owned();
    }
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header([
        "image",
        "size",
        "in memory",
        "huge",
        "user",
        "clones",
        "shared",
        "private",
        "",
    ]);
    for row in rows {
        let own: Vec<_> = clones.iter().filter(|clone| clone.image == identity(row)).collect();
        table.add_row(of_image(row, own.len()));
        for clone in own {
            let mut line = vec![String::new(); 5];
            let pid = format!("pid {}", clone.pid);
            line.extend([pid, size(clone.shared), size(clone.private)]);
            table.add_row(line);
        }
    }
    format!("{table}\n")
}

fn of_image(row: &ImageRow, clones: usize) -> Vec<String> {
    let huge = row.facts.huge.saturating_mul(100).checked_div(row.facts.present).unwrap_or(0);
    let age = row.age_ms / 1000;
    let note = match (row.is_dropped, row.is_for_all) {
        (true, _) => "dropped".to_owned(),
        (false, true) => format!("for all, {age} s old"),
        (false, false) => format!("{age} s old"),
    };
    let (bytes, present) = (size(row.facts.bytes), size(row.facts.present));
    let (huge, uid) = (format!("{} %", huge.min(100)), row.uid.to_string());
    let (none, clones) = (String::new(), clones.to_string());
    vec![row.name.to_string(), bytes, present, huge, uid, clones, none.clone(), none, note]
}

fn size(bytes: u64) -> String {
    Size(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}
