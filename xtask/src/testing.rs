//! `cargo xtask test`: runs every test there is and counts them, the skipped ones with their reason.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::aarch64::{self, Outcome};
use crate::settings::Settings;
use crate::{chromium, compiler, emulators, faults, fleet, older, python, redis, soak, valgrind};

/// The counts of the test runners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Why tests were skipped, and how many for each reason.
    pub(crate) reasons: BTreeMap<String, usize>,
}

/// The parts of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// `cargo test`, programs in C and C++ included
    Workspace,
    /// Every system call refused once
    Faults,
    /// Snapshots and forks, as on older kernels
    Older,
    /// Models of the library's threads, explored
    Models,
    /// The library, built by the oldest compiler that it promises
    Compiler,
    /// The Python package
    Python,
    /// The library for aarch64, emulated
    Aarch64,
    /// Everything at once, for half a minute
    Soak,
    /// Three guests of the fleet: other kernels, nodes and limits
    Fleet,
}

pub(crate) fn run(install: bool, only: Option<Part>) -> Result<ExitCode> {
    let mut count = Count::default();
    let _settings = install.then(Settings::for_tests).transpose()?;
    let mut passed = true;
    for part in Part::value_variants() {
        if only.is_none_or(|only| only == *part) {
            passed &= part.run(&mut count, install)?;
        }
    }
    count.print();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Part {
    /// Whether all of it passed, or was skipped.
    fn run(self, count: &mut Count, install: bool) -> Result<bool> {
        match self {
            Self::Workspace => run_workspace(count, install),
            Self::Faults => faults::short(count),
            Self::Older => older::run(count),
            Self::Models => run_models(count),
            Self::Compiler => compiler::run(count, install),
            Self::Python => run_python(count, install),
            Self::Aarch64 => run_aarch64(count, install),
            Self::Soak => run_soak(count),
            Self::Fleet => fleet::short(install, count),
        }
    }
}

fn run_aarch64(count: &mut Count, install: bool) -> Result<bool> {
    match aarch64::test(install)? {
        Outcome::Passed => count.passed += 1,
        Outcome::Skipped { reason } => count.skip(format!("aarch64 under emulation: {reason}")),
    }
    Ok(true)
}

fn run_soak(count: &mut Count) -> Result<bool> {
    let went_well = soak::short()?;
    if went_well {
        count.passed += 1;
    } else {
        count.failed += 1;
    }
    Ok(went_well & kill_servers(count)?)
}

/// The key-value server, killed more often than a test of the workspace does it.
fn kill_servers(count: &mut Count) -> Result<bool> {
    let arguments = ["test", "--package", "kv_store", "--test", "kv_store", "killed_at_any_moment"];
    count_tests(crate::command(&arguments).env("HUGEKIT_KILLS", "50"), count)
}

fn run_workspace(count: &mut Count, install: bool) -> Result<bool> {
    if install {
        redis::fetch();
        chromium::fetch();
        emulators::fetch();
        fleet::qemu::fetch();
    }
    let mut cargo = crate::command(&["test", "--workspace", "--no-fail-fast"]);
    valgrind::tell(&mut cargo, install);
    count_tests(&mut cargo, count)
}

fn run_python(count: &mut Count, install: bool) -> Result<bool> {
    match python::test(install)? {
        python::Outcome::Skipped(reason) => {
            count.skip(reason);
            Ok(true)
        }
        python::Outcome::Ran { succeeded, said } => {
            said.lines().for_each(|line| count.read_pytest(line));
            Ok(succeeded)
        }
    }
}

/// Lets loom explore the interleavings of `sync` and `parallel`. Its crates are compiled differently, and
/// therefore elsewhere; optimised, because there are many interleavings.
fn run_models(count: &mut Count) -> Result<bool> {
    let target = crate::target_dir("loom");
    let arguments = ["test", "--release", "--package", "hugekit", "--lib", "models"];
    let mut cargo = crate::command(&arguments);
    count_tests(cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target), count)
}

/// Runs tests, passing their output on while counting. Returns whether all of them succeeded.
pub(crate) fn count_tests(cargo: &mut Command, count: &mut Count) -> Result<bool> {
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
    pub(crate) fn read(&mut self, line: &str) {
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

    /// Takes in one line of pytest's, such as `3 failed, 250 passed, 2 skipped in 20.1s`, and `SKIPPED [2] …: why`.
    fn read_pytest(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once("SKIPPED [") {
            let (tests, why) = rest.split_once("] ").unwrap_or(("1", rest));
            let reason = why.split_once(": ").map_or(why, |(_, reason)| reason);
            *self.reasons.entry(format!("Python: {reason}")).or_default() +=
                tests.parse::<usize>().unwrap_or(1);
            return;
        }
        let Some((numbers, _)) = line.rsplit_once(" in ") else { return };
        for number in numbers.trim_matches(['=', ' ']).split(", ") {
            match number.split_once(' ').map(|(number, what)| (number.parse::<usize>(), what)) {
                Some((Ok(tests), "passed")) => self.passed += tests,
                Some((Ok(tests), "failed" | "error" | "errors")) => self.failed += tests,
                Some((Ok(tests), "skipped")) => self.skipped += tests,
                _ => {}
            }
        }
    }

    /// Takes in all that another one counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        for (reason, tests) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += tests;
        }
    }

    pub(crate) fn skip(&mut self, reason: String) {
        self.skipped += 1;
        *self.reasons.entry(reason).or_default() += 1;
    }

    pub(crate) fn print(&self) {
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
        count.read_pytest("SKIPPED [3] crates/x/tests/a.py:5: no faults can be served here: EPERM");
        count.read_pytest("==== 2 failed, 250 passed, 3 skipped in 20.15s ====");
        count.read_pytest("7 passed in 0.5s");
        assert_eq!((count.passed, count.failed, count.skipped), (300, 3, 5));
        assert_eq!(count.reasons["Python: no faults can be served here: EPERM"], 3);
    }
}
