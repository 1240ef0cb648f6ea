//! Tests as lists of functions, which a machine skips if it lacks what they need.
use libtest_mimic::{Completion, Failed, Trial};

/// A list of functions with their names. Words in quotes stand before the name that follows them.
#[macro_export]
macro_rules! checks {
    ($($($words:literal)? $name:ident),* $(,)?) => {
        &[$((concat!($($words,)? stringify!($name)), $name)),*]
    };
}

pub type Checks = &'static [(&'static str, fn())];

/// Each check as a test. A name that begins with `[nightly: REASON] ` makes an ignored test.
pub fn trials(checks: Checks, lacking: Option<String>) -> Vec<Trial> {
    let trial = |&(name, check): &(&'static str, fn())| {
        let run = move || -> Result<(), Failed> {
            check();
            Ok(())
        };
        let marked = name.strip_prefix("[nightly: ").and_then(|name| name.split_once("] "));
        let trial = match marked {
            Some((reason, name)) => nightly(reason, Trial::test(name, run)),
            None => Trial::test(name, run),
        };
        unless_lacking(trial, lacking.as_deref())
    };
    checks.iter().map(trial).collect()
}

/// The test, skipped if the machine lacks what it needs.
pub fn unless_lacking(trial: Trial, lacking: Option<&str>) -> Trial {
    let Some(reason) = lacking.map(str::to_owned) else { return trial };
    Trial::ignorable_test(trial.name(), move || Ok(Completion::ignored_with(reason)))
}

/// The test, which only the nightly run does.
pub fn nightly(reason: &str, trial: Trial) -> Trial {
    trial.with_kind(format!("nightly: {reason}")).with_ignored_flag(true)
}
