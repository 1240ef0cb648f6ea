//! Keeping a record in the repository: without the parts that the page does not need, which are most of its bytes.

use std::path::Path;

use anyhow::{Result, ensure};
use hugekit_lab::record::archive::Archive;
use hugekit_lab::record::{Experiment, Ratio, Record};

use super::page::Page;

/// Adds the record of a file to a folder. All ratios are kept, and the cases that the page has.
pub(crate) fn keep(folder: &Path, file: &str, page: &Page) -> Result<()> {
    let mut record = Record::read(Path::new(file))?;
    ensure!(!record.experiments.is_empty(), "{file}: no experiment in it");
    record.command = without_file(&record.command);
    record.experiments.iter_mut().for_each(|experiment| compact(experiment, page));
    println!("kept as {}", Archive::within(folder.to_owned()).keep(&record)?);
    Ok(())
}

/// The place of the record on the machine that made it says nothing.
fn without_file(command: &str) -> String {
    let mut words = command.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "--json" => _ = words.next(),
            "--no-record" => {}
            word => kept.push(word),
        }
    }
    kept.join(" ")
}

fn compact(experiment: &mut Experiment, page: &Page) {
    let Experiment { cases, ratios, noise, .. } = experiment;
    cases.retain(|case| page.has(&case.id));
    for case in cases {
        case.published.clear();
        case.samples.iter_mut().for_each(|sample| *sample = rounded(*sample));
    }
    for Ratio { median, min, max, published, .. } in ratios {
        published.clear();
        [median, min, max].into_iter().for_each(|value| *value = rounded(*value));
    }
    noise.iter_mut().for_each(|noise| noise.counters.clear());
    experiment.elsewhere.clear();
    experiment.distributions.clear();
    experiment.timelines.clear();
    experiment.sequences.clear();
}

/// Keeps four digits, because runs differ by more than the rest.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().expect("a printed number is a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_kept_without_the_record_s_file() {
        let command = "hugekit lab stores --json a/b.json --quick --no-record";
        assert_eq!(without_file(command), "hugekit lab stores --quick");
    }

    #[test]
    fn four_digits_are_kept() {
        assert_eq!([1234.56, 0.012_345_6, 0.0].map(rounded), [1235.0, 0.012_35, 0.0]);
    }
}
