//! Tests as lists of functions, which a machine skips if it lacks what they need.
use std::fmt::Display;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use libtest_mimic::{Completion, Failed, Trial};

/// A list of functions with their names. Words in quotes stand before the name that follows them.
#[macro_export]
macro_rules! checks {
    ($($($words:literal)? $name:ident),* $(,)?) => {
        &[$((concat!($($words,)? stringify!($name)), $name)),*]
    };
}

pub type Checks = &'static [(&'static str, fn())];

/// The panic of [`skip`].
struct Skipped(String);

/// Ends a test on a machine that cannot run it: the test counts as skipped, for this reason. Only
/// in the thread that [`completion`] runs the test in.
pub fn skip(reason: impl Into<String>) -> ! {
    // Not a panic: nothing is printed.
    resume_unwind(Box::new(Skipped(reason.into())))
}

/// Says that the calling test, one of the standard harness, which knows no such end, skips a part or all of itself: then
/// it returns. Not captured, so that the list of skipped tests has it.
pub fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("test {} ... ignored ({reason})\n", thread.name().unwrap_or("of a thread"));
    // One call, so that no other thread's line gets in between.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Runs a test that may [`skip`].
pub fn completion(check: impl FnOnce()) -> Result<Completion, Failed> {
    let Err(thrown) = catch_unwind(AssertUnwindSafe(check)) else {
        return Ok(Completion::Completed);
    };
    match thrown.downcast::<Skipped>() {
        Ok(skipped) => Ok(Completion::ignored_with(skipped.0)),
        Err(panic) => resume_unwind(panic),
    }
}

/// A test of that name. A name that begins with `[nightly: REASON] ` makes an ignored test, which `--ignored` runs.
/// `label` stands before the rest of the name.
pub fn marked(
    label: &str,
    name: &str,
    run: impl FnOnce() -> Result<Completion, Failed> + Send + 'static,
) -> Trial {
    let marked = name.strip_prefix('[').and_then(|name| name.split_once("] "));
    let (kind, name) = marked.unwrap_or(("", name));
    let trial = Trial::ignorable_test(format!("{label}{name}"), run);
    trial.with_kind(kind).with_ignored_flag(!kind.is_empty())
}

/// Each check as a test.
pub fn trials(checks: Checks, lacking: Option<String>) -> Vec<Trial> {
    let trial = |&(name, check): &(&'static str, fn())| {
        unless_lacking(marked("", name, move || completion(check)), lacking.as_deref())
    };
    checks.iter().map(trial).collect()
}

/// The test. It is skipped if there is a reason why this machine cannot run it.
pub fn unless_lacking(trial: Trial, lacking: Option<&str>) -> Trial {
    let Some(reason) = lacking.map(str::to_owned) else { return trial };
    let (kind, is_ignored) = (trial.kind().to_owned(), trial.has_ignored_flag());
    let skipped = Trial::ignorable_test(trial.name(), move || Ok(Completion::ignored_with(reason)));
    skipped.with_kind(kind).with_ignored_flag(is_ignored)
}

/// The test, which only the nightly run does.
pub fn nightly(reason: &str, trial: Trial) -> Trial {
    trial.with_kind(format!("nightly: {reason}")).with_ignored_flag(true)
}
