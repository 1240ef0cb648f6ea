//! What is shown of a test run: on a terminal what fails, beneath a line of progress; elsewhere, in a log, everything.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What cargo prints of a step that went well, the step's name behind it.
const STEPS: [&str; 6] =
    ["Compiling ", "Checking ", "Finished ", "Running ", "Doc-tests ", "Blocking "];

/// Beginnings of lines that say of a test that it went well.
const FINE: [&str; 2] = ["running ", "test result: ok"];

pub(super) struct Screen {
    progress: ProgressBar,
}

impl Screen {
    /// Without a terminal on standard error, there is no line of progress.
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{spinner} {elapsed} {pos} tests, {wide_msg}");
        let progress =
            ProgressBar::no_length().with_style(style.expect("the template is constant"));
        progress.enable_steady_tick(Duration::from_millis(200));
        Self { progress }
    }

    pub(super) fn show(&self, line: &str) {
        if self.progress.is_hidden() {
            println!("{line}");
        } else if let Some(step) = step(line) {
            self.progress.set_message(step.to_owned());
        } else if is_of_one_test(line) {
            self.progress.inc(1);
        } else if !is_fine(line) {
            self.progress.println(line);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// What cargo does, if the line is of cargo's and all is well.
fn step(line: &str) -> Option<&str> {
    let step = line.trim_start();
    let is_one = step.len() < line.len() && STEPS.iter().any(|begin| step.starts_with(begin));
    is_one.then_some(step)
}

/// Whether the line says that one test passed or was skipped.
fn is_of_one_test(line: &str) -> bool {
    line.starts_with("test ") && (line.ends_with(" ok") || line.contains(" ... ignored"))
}

fn is_fine(line: &str) -> bool {
    line.trim().is_empty() || FINE.iter().any(|begin| line.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_well_is_left() {
        assert_eq!(step("   Compiling hugekit v0.1.0 (/x)"), Some("Compiling hugekit v0.1.0 (/x)"));
        assert_eq!(
            step("     Running tests/clear.rs (target/x)"),
            Some("Running tests/clear.rs (target/x)")
        );
        assert_eq!(step("Running out of memory"), None);
        assert!(is_of_one_test("test a::b   ... ok"));
        assert!(is_of_one_test("test [skipped: no page] a::b ... ignored"));
        assert!(is_of_one_test("test a::b ... ignored, it takes long"));
        assert!(!is_of_one_test("test a::b   ... FAILED"));
        assert!(is_fine("") && is_fine("running 3 tests"));
        assert!(is_fine("test result: ok. 1 passed; 0 failed; 0 ignored"));
        assert!(!is_fine("test result: FAILED. 1 passed; 1 failed"));
        assert!(!is_fine("thread 'a::b' panicked at src/a.rs:1:1:") && !is_fine("warning: unused"));
    }
}
