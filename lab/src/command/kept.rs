//! `hugekit lab --list`: the records that were kept, a line or two for each.

use std::fmt::Write;

use hugekit::error_chain;
use hugekit_lab::record::Record;
use hugekit_lab::record::archive::{Archive, Kept};
use hugekit_machine::plain;

use hugekit_terminal::text::{COLUMNS, wrap, write_out};

pub(super) fn list() -> anyhow::Result<()> {
    let archive = Archive::of_user()?;
    Ok(write_out(&render(&archive.list()?, &archive.folder().display().to_string()))?)
}

fn render(kept: &[Kept], folder: &str) -> String {
    if kept.is_empty() {
        return format!("no records in {folder}; `hugekit lab` keeps one of each run\n");
    }
    let mut text = String::new();
    let indent = kept.iter().map(|kept| kept.id.len()).max().unwrap_or(0) + 2;
    for Kept { id, record } in kept {
        let id = plain(id);
        let about = match record {
            Ok(record) => describe(record),
            Err(error) => plain(&error_chain(error).to_string()),
        };
        let lines = wrap(&about, COLUMNS - indent).join(&format!("\n{:indent$}", ""));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{id:indent$}{lines}");
    }
    text
}

fn describe(record: &Record) -> String {
    let names: Vec<&str> = record.experiments.iter().map(|e| e.name.as_str()).collect();
    let machine = &record.machine;
    format!("{} · {}, {} CPUs · {}", names.join(" "), machine.cpu, machine.cpus, record.command)
}

#[cfg(test)]
mod tests {
    use hugekit_machine::Root;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_listed_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::within(folder.path().to_owned());
        let record = include_str!("../../tests/data/record.json");
        for (id, text) in [("2", record), ("1", "{}")] {
            std::fs::write(folder.path().join(format!("{id}.json")), text).unwrap();
        }
        let text = render(&archive.list().unwrap(), "folder");
        let text = text.replace(&folder.path().display().to_string(), "FOLDER");
        assert!(text.contains("2  stores parallel fault · AMD EPYC, 2 CPUs"), "{text}");
        assert!(text.starts_with("1  FOLDER/1.json cannot be used: it is no record"), "{text}");
    }

    /// A name that fills its line once broke what a test looked for.
    #[test]
    #[ignore = "nightly: it prints many reports"]
    fn a_record_of_every_machine_is_listed_within_the_columns() {
        for description in hugekit_invented_machines::MACHINES {
            let files = description.files().unwrap();
            let text = include_str!("../../tests/data/record.json");
            let mut record = Record::parse(text).unwrap();
            record.machine = hugekit_lab::measure::machine::describe(&Root::at(files.path()));
            let about = describe(&record);
            let kept = Kept { id: "20261121-103512".into(), record: Ok(record) };
            let listed = render(&[kept], "folder");
            assert!(listed.lines().all(|line| line.chars().count() <= COLUMNS), "{listed}");
            let words = listed.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words, format!("20261121-103512 {about}"));
        }
    }

    #[test]
    fn an_empty_archive_says_where_it_is() {
        assert!(render(&[], "/a/b").contains("no records in /a/b"));
    }
}
