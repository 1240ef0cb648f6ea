//! The counts of the test runners, read from what they print: there is no other way with a stable compiler.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Parts of reasons for skipping, and what has the tests run. Other reasons name their remedy themselves.
const REMEDIES: [(&str, &str); 6] = [
    ("nightly: ", "`cargo xtask nightly` runs them"),
    ("huge page", "`cargo xtask test` reserves them as root, in a quarter of the available memory"),
    ("this CPU lacks", "`cargo xtask fleet --list` names the CPUs that are emulated"),
    ("one node", "`cargo xtask fleet --only two-nodes-6.1`"),
    ("/dev/kvm", "run on a machine whose host permits it"),
    ("no faults can be served", "`cargo run --release -- doctor` says what permits them"),
];

/// The words before the name of a test or program that failed, before the reason, or before a line of
/// `xtask/bounded.sh`. The output of a failed test may tear that test's own line, so that "FAILED" is missing there.
const FAILED: [&str; 5] =
    ["FAILED ", "---- ", "test panicked: ", "stuck: ", "error: test failed, to rerun pass "];

/// The numbers of tests that passed, failed and were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// The reasons of skips, and the number of tests that were skipped for each.
    pub(crate) reasons: BTreeMap<String, usize>,
    /// The names of tests that failed, and threads of programs that hang.
    pub(crate) failures: Vec<String>,
}

impl Count {
    /// Reads one line of libtest, libtest-mimic, pytest or another `cargo xtask` command.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.add_numbers(result.split(['.', ';']).map(str::trim));
        } else if let Some(test) = FAILED.iter().find_map(|words| line.strip_prefix(words)) {
            self.failures
                .push(test.trim_end_matches(" ----").trim_end_matches(" stdout").to_owned());
        } else if let Some(test) = line.strip_prefix("test ") {
            self.read_test(test);
        } else if let Some((tests, reason)) = skipped_by_pytest(line) {
            *self.reasons.entry(reason).or_default() += tests;
        } else if let Some((numbers, _)) = line.rsplit_once(" in ") {
            self.add_numbers(numbers.trim_matches(['=', ' ']).split(", "));
        }
    }

    /// `NAME ... ignored, REASON`, `NAME ... ignored (REASON)`, or `[nightly: REASON] NAME ... ignored`.
    fn read_test(&mut self, test: &str) {
        let Some((name, outcome)) = test.split_once("... ") else { return };
        let Some(said) = outcome.strip_prefix("ignored") else { return };
        let kind = name.strip_prefix('[').and_then(|name| name.split_once(']'));
        let said = said.trim_start_matches([',', ' ']);
        let said = said.strip_prefix('(').and_then(|said| said.strip_suffix(')')).unwrap_or(said);
        let reason =
            if said.is_empty() { kind.map_or("no reason", |(kind, _)| kind) } else { said };
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
    }

    /// Each as `3 passed`.
    fn add_numbers<'a>(&mut self, numbers: impl Iterator<Item = &'a str>) {
        for (tests, what) in numbers.filter_map(|number| number.split_once(' ')) {
            let Ok(tests) = tests.parse::<usize>() else { continue };
            match what {
                "passed" => self.passed += tests,
                "failed" | "error" | "errors" => self.failed += tests,
                "ignored" | "skipped" => self.skipped += tests,
                _ => {}
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        for (reason, tests) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += tests;
        }
        self.failures.extend_from_slice(&other.failures);
    }

    pub(crate) fn skip(&mut self, reason: String) {
        self.skipped += 1;
        *self.reasons.entry(reason).or_default() += 1;
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// Prints the counts as libtest does, so that a `cargo xtask` command that started this one can read them.
    pub(crate) fn print_as_tests(&self) {
        for (reason, tests) in &self.reasons {
            (0..*tests).for_each(|_| println!("test skipped ... ignored, {reason}"));
        }
        self.print_failures();
        let counts = self.to_string().replace(", ", "; ").replace("skipped", "ignored");
        println!("test result: {counts}");
    }

    pub(crate) fn print_failures(&self) {
        self.failures.iter().for_each(|test| println!("FAILED {test}"));
    }

    /// And what has it run.
    pub(crate) fn print_skipped(&self) {
        for (reason, tests) in &self.reasons {
            let remedy = REMEDIES.iter().find(|(part, _)| reason.contains(part));
            let remedy = remedy.map_or(String::new(), |(_, remedy)| format!("; {remedy}"));
            println!("    {tests} skipped: {reason}{remedy}");
        }
    }
}

/// `SKIPPED [2] a.py:5: REASON`.
fn skipped_by_pytest(line: &str) -> Option<(usize, String)> {
    let (tests, rest) = line.split_once("SKIPPED [")?.1.split_once("] ")?;
    let reason = rest.split_once(": ").map_or(rest, |(_, reason)| reason);
    Some((tests.parse().ok()?, format!("Python: {reason}")))
}

/// Reports that something could not be tested here.
pub(crate) fn skip(what: &str, reason: &str) {
    let mut count = Count::default();
    count.skip(format!("{what}: {reason}"));
    count.print_as_tests();
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_reasons_add_up() {
        let mut count = Count::default();
        for line in [
            "test result: ok. 40 passed; 0 failed; 2 ignored; 0 measured; finished in 1s",
            "test x::a     ... ignored (this CPU lacks X)",
            "test x::b ... ignored, this CPU lacks X",
            "test [nightly: it waits] x::c ... ignored",
            "test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured",
            "SKIPPED [3] crates/x/tests/a.py:5: no faults can be served here: EPERM",
            "==== 2 failed, 250 passed, 3 skipped in 20.15s ====",
            "7 passed in 0.5s",
            "test a::b                                             ... ",
            "---- a::b ----",
            "test panicked: 1 is not 2",
            "---- c::d stdout ----",
            "FAILED crates/x/tests/a.py::c - AssertionError",
            "error: test failed, to rerun pass `-p x --test a`",
        ] {
            count.read(line);
        }
        assert_eq!((count.passed, count.failed, count.skipped), (300, 3, 6));
        assert_eq!((count.reasons["this CPU lacks X"], count.reasons["nightly: it waits"]), (2, 1));
        assert_eq!(count.reasons["Python: no faults can be served here: EPERM"], 3);
        let python = "crates/x/tests/a.py::c - AssertionError";
        assert_eq!(count.failures, ["a::b", "1 is not 2", "c::d", python, "`-p x --test a`"]);
    }
}
