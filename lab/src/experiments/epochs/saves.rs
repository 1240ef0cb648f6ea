//! Saves of a state, one after the other.
//!
//! Before each save, what a second's stores of the writer change is changed, and the writer goes on at its rate while the
//! state is saved. It is *out* when it is in a file in memory, by write(2): the whole snapshot (*full*), or a delta of
//! what was written since the state before (*delta*). *plain* writes the memory as it is, of no point in time.
//!
//! *full* and *plain* overwrite one file, whose pages are there. Each delta is a new file, as in a program, because the
//! next one is compared with those before it.

use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::paced_writer::Pattern;
use crate::record::Unit;
use hugekit_machine::size::Size;

use super::saver::Saver;

const METHODS: [&str; 3] = ["full", "delta", "plain"];

const UNSAVED: &str = "plainly written, it is of no point in time";

pub(super) fn measure(
    saver: &mut Saver,
    pattern: &Pattern,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    let (save, state) = (format!("save-{}", pattern.name), Size(saver.len()));
    rounds.observer.begin(&format!("epochs save {} {state}", pattern.name));
    let (words, mut written, mut last_delta) = (saver.words(), 0, None);
    let names = METHODS.map(|method| format!("{method}/{save}"));
    let mut part = rounds.measure("epochs", Unit::Microseconds, &names, |method| {
        // So that the next delta has what follows, and nothing that is due to others' turns.
        saver.begin_delta()?;
        pattern.write(words, written, pattern.rate);
        written += pattern.rate;
        pattern.during(words, || {
            let began = Instant::now();
            match METHODS[method] {
                "full" => saver.full()?,
                "plain" => saver.plain()?,
                _ => last_delta = Some(saver.delta()?),
            }
            Ok(began.elapsed().as_secs_f64() * 1e6)
        })
    })?;
    part.compare(("full", "delta"), &save, None);
    part.compare(("plain", "full"), &save, Some(UNSAVED));
    part.notices.extend(last_delta.map(|saved| {
        let changed = Size(saved.changed as usize / 4096 * 4096);
        let (name, rate) = (pattern.name, pattern.rate);
        format!(
            "{name}: {rate} stores of 64 bytes a second; the last delta had {changed} of {state}"
        )
    }));
    Ok(part)
}
