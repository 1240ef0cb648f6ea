//! What came of a guest: counts, and what failed in it.

use std::fmt;

use super::doctor;
use super::frames::{Ran, Report};
use super::machine::{Machine, Run};
use super::programs::Program;
use crate::testing::Count;

/// A guest that was booted, or why it was not.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) release: String,
    pub(super) count: Count,
    /// One line for each command, in order.
    pub(super) commands: Vec<String>,
    /// One line for each failure.
    pub(super) failures: Vec<String>,
}

impl Outcome {
    pub(super) fn of(machine: &Machine, report: &Report) -> Self {
        let mut outcome = Self {
            release: report.release.clone().unwrap_or_default(),
            count: Count::default(),
            commands: Vec::new(),
            failures: Vec::new(),
        };
        match &report.release {
            None => outcome.fail("its kernel has not come up"),
            Some(release) if !release.starts_with(machine.kernel.release) => {
                outcome.fail(&format!("it runs Linux {release}, not {}", machine.kernel.release));
            }
            Some(_) => {}
        }
        for setting in &report.refused {
            outcome.fail(&format!("its kernel does not take {setting}"));
        }
        for run in machine.runs {
            match report.ran.iter().find(|ran| ran.name == run.name()) {
                Some(ran) => outcome.take(machine, run, ran),
                None => outcome.fail(&format!("{} was not run", run.name())),
            }
        }
        for counter in &report.still {
            outcome.fail(&format!("its kernel has not counted up {counter}"));
        }
        if report.release.is_some() && !report.is_whole {
            outcome.fail("it has not switched itself off");
        }
        for (what, why) in machine.left_out {
            outcome.count.skip(format!("{what}: {why}"));
        }
        outcome
    }

    pub(super) fn skipped(reason: &str) -> Self {
        let mut count = Count::default();
        count.skip(reason.to_owned());
        let release = "none".to_owned();
        Self { release, count, commands: Vec::new(), failures: Vec::new() }
    }

    fn take(&mut self, machine: &Machine, run: &Run, ran: &Ran) {
        let mut count = Count::default();
        if run.program.is_tests() {
            ran.output.iter().for_each(|line| count.read(line));
            let failed = ran.output.iter().filter_map(|line| failed_test(line));
            let said: Vec<String> = failed.map(|test| format!("{}: {test}", run.name())).collect();
            self.failures.extend(said);
        }
        let found = match (run.program, ran.status) {
            (Program::Doctor, Some(0)) => {
                doctor::differences(machine, &self.release, &ran.output.join("\n"))
            }
            (_, Some(0)) => Vec::new(),
            (_, Some(_)) if count.failed > 0 => Vec::new(),
            (_, Some(137)) => vec![format!("ended by a signal, or after {} s", run.seconds)],
            (_, Some(status)) => vec![format!("status {status}")],
            (_, None) => vec!["the guest ended before".to_owned()],
        };
        match (found.is_empty(), run.program.is_tests()) {
            (true, true) => {}
            (true, false) => count.passed += 1,
            (false, _) => count.failed += 1,
        }
        self.failures.extend(found.iter().map(|found| format!("{}: {found}", run.name())));
        self.commands.push(format!("{}: {}", run.name(), Counted(&count)));
        self.count.add(&count);
    }

    fn fail(&mut self, what: &str) {
        self.count.failed += 1;
        self.failures.push(what.to_owned());
    }
}

/// The test of a line that says that it failed: `test NAME ... FAILED`, as both harnesses print it.
fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
    Some(name.trim_end().trim_end_matches('.').trim())
}

/// Counts in words, without those that are zero.
struct Counted<'a>(&'a Count);

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count { passed, failed, skipped, .. } = *self.0;
        let all = [(passed, "passed"), (failed, "failed"), (skipped, "skipped")];
        let words: Vec<String> = all
            .iter()
            .filter(|(number, word)| *number > 0 || *word == "passed")
            .map(|(number, word)| format!("{number} {word}"))
            .collect();
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::MACHINES;
    use super::*;

    #[test]
    fn names_of_failed_tests_are_found() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b    ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }

    #[test]
    fn guest_that_ends_before_its_commands_have_run_has_failed() {
        let machine = MACHINES[0];
        let silent = Outcome::of(&machine, &Report::default());
        assert_eq!(silent.count.failed, 1 + machine.runs.len());
        let ran = Ran { name: machine.runs[1].name(), ..Ran::default() };
        let release = Some("6.1".to_owned());
        let report = Report { release, ran: vec![ran], ..Report::default() };
        let hung = Outcome::of(&machine, &report);
        assert_eq!(hung.count.failed, machine.runs.len() + 1);
    }

    #[test]
    fn guest_whose_kernel_is_not_as_the_table_says_has_failed() {
        let of_table = MACHINES[0];
        let machine = Machine { runs: &[], ..of_table };
        let release = Some(machine.kernel.release.to_owned());
        let whole = || Report { release: release.clone(), is_whole: true, ..Report::default() };
        assert_eq!(Outcome::of(&machine, &whole()).failures, [""; 0]);
        let refused = Report { refused: vec!["/proc/a = 1".to_owned()], ..whole() };
        let still = Report { still: vec!["/proc/a b".to_owned()], ..whole() };
        for differs in [refused, still] {
            assert_eq!(Outcome::of(&machine, &differs).count.failed, 1);
        }
    }
}
