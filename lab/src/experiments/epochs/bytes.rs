//! Bytes of what is saved, and of the pages that the kernel notes as written.

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::dirty_pages::DirtyPages;
use crate::measure::workloads::paced_writer::Pattern;
use crate::record::Unit;
use hugekit_machine::size::{MIB, Size};

use super::memory::{words, written};
use super::saver::Saver;

const BY_BLOCKS: &str =
    "the kernel's notes are of whole pages, and a delta is of blocks of 4 KiB, found by comparing";

pub(super) fn measure(
    saver: &mut Saver,
    has_reserved: bool,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    let (state, pattern) = (saver.len(), Pattern::uniform(saver.len()));
    rounds.observer.begin(&format!("epochs bytes {} {}", pattern.name, Size(state)));
    let mut methods = vec![
        ("full", None),
        ("delta", None),
        ("wp-async-base", Some(Pages::Base)),
        ("wp-async-thp", Some(Pages::Thp)),
    ];
    methods.extend(has_reserved.then_some(("wp-async-hugetlb", Some(Pages::Hugetlb2M))));
    let label = format!("bytes-{}", pattern.name);
    let names: Vec<_> = methods.iter().map(|(method, _)| format!("{method}/{label}")).collect();
    let mut first = 0;
    let mut part = rounds.measure("epochs", Unit::Mebibytes, &names, |index| {
        first += pattern.rate;
        let bytes = match methods[index] {
            (_, Some(pages)) => noted_bytes(pages, state, &pattern, first)?,
            ("full", None) => state,
            _ => {
                saver.begin_delta()?;
                pattern.write(saver.words(), first, pattern.rate);
                saver.delta()?.written as usize
            }
        };
        Ok(bytes as f64 / MIB as f64)
    })?;
    for (method, noted) in methods.into_iter().filter(|(method, _)| *method != "delta") {
        part.compare((method, "delta"), &label, noted.map(|_| BY_BLOCKS));
    }
    if !has_reserved {
        let left_out = "wp-async-hugetlb left out: too few reserved pages are free; `--setup` (root) reserves them";
        part.notices.push(left_out.to_owned());
    }
    Ok(part)
}

/// Bytes of pages that were written, as the kernel's notes have it.
fn noted_bytes(
    pages: Pages,
    state: usize,
    pattern: &Pattern,
    first: usize,
) -> Result<usize, LabError> {
    let mut memory = written(pages, state)?;
    let notes = DirtyPages::by_wp_async(memory.addresses()).map_err(LabError::notes)?;
    let notes = notes.ok_or_else(|| LabError::notes(rustix::io::Errno::NOSYS))?;
    notes.begin().map_err(LabError::notes)?;
    pattern.write(words(&mut memory), first, pattern.rate);
    Ok(notes.count().map_err(LabError::notes)? * rustix::param::page_size())
}
