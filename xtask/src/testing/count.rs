//! The counts of the test runners, read off their output.

use std::collections::BTreeMap;
use std::fmt;

use super::remedies;

/// The counts of the test runners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Why tests were skipped, and how many for each reason.
    pub(crate) reasons: BTreeMap<String, usize>,
    /// The names of tests that failed, as far as their runner prints them.
    failures: Vec<String>,
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
        } else if let Some(test) =
            line.strip_prefix("test ").and_then(|test| test.strip_suffix("FAILED"))
        {
            self.failures.push(test.trim_end_matches([' ', '.']).to_owned());
        }
    }

    /// Takes in one line of pytest's, such as `3 failed, 250 passed, 2 skipped in 20.1s`, and `SKIPPED [2] …: why`.
    pub(super) fn read_pytest(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once("SKIPPED [") {
            let (tests, why) = rest.split_once("] ").unwrap_or(("1", rest));
            let reason = why.split_once(": ").map_or(why, |(_, reason)| reason);
            *self.reasons.entry(format!("Python: {reason}")).or_default() +=
                tests.parse::<usize>().unwrap_or(1);
            return;
        }
        if let Some(test) = line.strip_prefix("FAILED ") {
            self.failures.push(test.to_owned());
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
        self.failures.extend_from_slice(&other.failures);
    }

    pub(crate) fn skip(&mut self, reason: String) {
        self.skipped += 1;
        *self.reasons.entry(reason).or_default() += 1;
    }

    /// What failed, what was skipped and how it is run, and the counts.
    pub(crate) fn print(&self) {
        println!();
        self.print_details();
        println!("{self}");
    }

    /// What failed, what was skipped and how it is run.
    pub(super) fn print_details(&self) {
        for test in &self.failures {
            println!("    FAILED {test}");
        }
        for (reason, tests) in &self.reasons {
            match remedies::of(reason) {
                Some(remedy) => println!("    {tests} skipped: {reason}; {remedy}"),
                None => println!("    {tests} skipped: {reason}"),
            }
        }
    }
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
        count.read("test a::b                                             ... FAILED");
        count.read_pytest("FAILED crates/x/tests/a.py::c - AssertionError");
        assert_eq!(count.failures, ["a::b", "crates/x/tests/a.py::c - AssertionError"]);
        assert_eq!(count.reasons["Python: no faults can be served here: EPERM"], 3);
    }
}
