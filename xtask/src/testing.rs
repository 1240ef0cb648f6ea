//! `cargo xtask test`: runs every test there is and counts them, the skipped ones with their reason.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::aarch64::{self, Outcome};
use crate::chromium;
use crate::settings::Settings;

/// What the test runners counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Why tests were skipped, and how many for each reason.
    reasons: BTreeMap<String, usize>,
}

pub(crate) fn run(install: bool) -> Result<ExitCode> {
    let mut count = Count::default();
    let _settings = install.then(Settings::for_tests).transpose()?;
    if install && let Err(error) = chromium::install() {
        eprintln!("no Chromium, and pages are not opened: {error:#}");
    }
    let passed = run_workspace(&mut count)? & run_models(&mut count)?;
    match aarch64::test(install)? {
        Outcome::Passed => count.passed += 1,
        Outcome::Skipped { reason } => count.skip(format!("aarch64 under emulation: {reason}")),
    }
    count.print();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_workspace(count: &mut Count) -> Result<bool> {
    count_tests(&mut crate::command(&["test", "--workspace", "--no-fail-fast"]), count)
}

/// Lets loom explore the interleavings of `parallel`. Its crates are compiled differently, and
/// therefore elsewhere; optimised, because there are many interleavings.
fn run_models(count: &mut Count) -> Result<bool> {
    let target = crate::target_dir().join("loom");
    let arguments = ["test", "--release", "--package", "hugekit", "--lib", "models"];
    let mut cargo = crate::command(&arguments);
    count_tests(cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target), count)
}

/// Runs tests, passing their output on while counting. Returns whether all of them succeeded.
fn count_tests(cargo: &mut Command, count: &mut Count) -> Result<bool> {
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo test")?;
    let output = child.stdout.take().context("the output was asked for")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        count.read(&line);
    }
    Ok(child.wait()?.success())
}

impl Count {
    /// Takes in one line of a test runner's output.
    fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let number = |what: &str| -> usize {
                let before = result.split(what).next().unwrap_or("");
                before.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0)
            };
            self.passed += number(" passed");
            self.failed += number(" failed");
            self.skipped += number(" ignored");
        } else if let Some((_, rest)) = line.split_once("[skipped: ") {
            let reason = rest.split(']').next().unwrap_or(rest);
            *self.reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }

    fn skip(&mut self, reason: String) {
        self.skipped += 1;
        *self.reasons.entry(reason).or_default() += 1;
    }

    fn print(&self) {
        println!();
        for (reason, tests) in &self.reasons {
            println!("skipped {tests}: {reason}");
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_reasons_add_up() {
        let mut count = Count::default();
        count.read("test result: ok. 40 passed; 0 failed; 2 ignored; 0 measured; finished in 1s");
        count.read("test [skipped: this CPU lacks X] x::a ... ignored");
        count.read("test [skipped: this CPU lacks X] x::b ... ignored");
        count.read("test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured");
        assert_eq!((count.passed, count.failed, count.skipped), (43, 1, 2));
        assert_eq!(count.reasons["this CPU lacks X"], 2);
    }
}
