//! The tour: what a user would gain on this machine, measured with real memory and processes.
//!
//! This process only starts others, waits for them and prints, so that it hears a signal at once and ends them. Memory is
//! theirs: if it turns out to be short, one of them is killed, and the tour says so and goes on.

mod broker;
mod fork;
mod part;
mod process;
mod redis;
mod restore;
mod room;
mod snapshot;
mod start;
mod stop;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use hugekit_machine::plain;
use hugekit_machine::size::{GIB, Size};
use indicatif::ProgressBar;

use self::part::{NotHere, PartResult};
use self::stop::{Interrupted, TourStop};
use super::helper::Wrong;
use crate::progress;
use hugekit_terminal::outcome::INTERRUPTED;
use hugekit_terminal::outcome::Remedied;
use hugekit_terminal::text::{COLUMNS, say, wrap, write_to_reader};

/// State that the parts share.
struct Tour {
    stop: TourStop,
    bar: ProgressBar,
    /// Bytes of the largest part, if there is room.
    size: usize,
}

struct TourPart {
    title: &'static str,
    /// Steps of the progress bar.
    steps: u64,
    run: fn(&Tour) -> anyhow::Result<PartResult>,
}

const PARTS: [TourPart; 4] = [
    TourPart { title: fork::TITLE, steps: fork::STEPS, run: fork::run },
    TourPart { title: snapshot::TITLE, steps: snapshot::STEPS, run: snapshot::run },
    TourPart { title: start::TITLE, steps: start::STEPS, run: start::run },
    TourPart { title: restore::TITLE, steps: restore::STEPS, run: restore::run },
];

/// The exit code is a failure only if a byte was wrong: a part that this machine cannot do says why.
pub(super) fn run(size: Option<Size>) -> anyhow::Result<ExitCode> {
    let steps = PARTS.iter().map(|part| part.steps).sum();
    let stop = TourStop::new().context("signals cannot be heard")?;
    let bar = progress::of_steps(steps);
    let tour = Tour { stop, bar, size: size.map_or(GIB, |Size(bytes)| bytes) };
    let told = tour.tell();
    tour.bar.finish_and_clear();
    match told {
        // The processes and files of the part are gone: it ended by an error.
        Err(error) if error.is::<Interrupted>() => {
            say("interrupted; nothing is left behind");
            Ok(ExitCode::from(INTERRUPTED))
        }
        told => told,
    }
}

impl Tour {
    fn tell(&self) -> anyhow::Result<ExitCode> {
        let mut code = ExitCode::SUCCESS;
        if !self.print(&beginning(self.size))? {
            return Ok(code);
        }
        let mut ahead = 0;
        for part in &PARTS {
            ahead += part.steps;
            let text = match (part.run)(self) {
                Ok(found) => found.to_string(),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => {
                    if error.is::<Wrong>() {
                        code = ExitCode::FAILURE;
                    }
                    not_here(part.title, &error)
                }
            };
            if !self.print(&format!("\n{text}"))? {
                break;
            }
            self.bar.set_position(ahead);
        }
        self.print(&end())?;
        Ok(code)
    }

    /// Returns true if a reader is left, which `head` is not when it has seen enough.
    fn print(&self, text: &str) -> std::io::Result<bool> {
        self.bar.suspend(|| write_to_reader(text))
    }

    /// Shows this in the progress bar from here on.
    fn does(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn step(&self) {
        self.bar.inc(1);
    }
}

fn not_here(title: &'static str, error: &anyhow::Error) -> String {
    let remedy = error.downcast_ref().map(|Remedied { remedy, .. }| plain(remedy));
    let is_wrong = error.is::<Wrong>();
    NotHere { title, is_wrong, reason: plain(&format!("{error:#}")), remedy }.to_string()
}

fn beginning(size: usize) -> String {
    let about = format!(
        "Each part works on {} or less, which it compares byte by byte. No setting is changed, and \
         Ctrl-C leaves nothing behind.",
        Size(size)
    );
    paragraph(&format!("{}.", room::facts())) + &paragraph(&about)
}

fn end() -> String {
    let mut text = "\n".to_owned();
    text += &paragraph(
        "Read on: README.md, docs/redis.md, docs/snapshot.md, docs/qemu.md and docs/firecracker.md. `hugekit doctor` \
         prints what this machine supports, and `hugekit demo --help` other comparisons.",
    );
    if let Ok(program) = std::env::current_exe() {
        let folder = std::env::current_dir().unwrap_or_default();
        let program = program.strip_prefix(folder).unwrap_or(&program);
        text += &paragraph(&format!("`hugekit` is {}.", name_of(program)));
    }
    text
}

fn name_of(program: &Path) -> String {
    plain(&program.to_string_lossy())
}

fn paragraph(text: &str) -> String {
    wrap(text, COLUMNS).join("\n") + "\n"
}
