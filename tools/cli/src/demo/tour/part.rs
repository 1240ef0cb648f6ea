//! One part of the tour, as it is printed.

use std::fmt;
use std::time::Duration;

use hugekit_terminal::text::{COLUMNS, wrap};

/// The median of several times.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) times: Vec<Duration>,
}

/// The result of a part.
pub(super) struct PartResult {
    /// The measured task, with the size.
    pub(super) title: String,
    /// Without hugekit, the usual way first.
    pub(super) before: Vec<Measured>,
    pub(super) after: Measured,
    /// Costs, and the way in which it was measured.
    pub(super) notes: String,
    /// Commands that do it for the user's own program.
    pub(super) commands: Vec<String>,
}

/// The reason why a part was not done here.
pub(super) struct NotHere {
    pub(super) title: &'static str,
    /// True if this machine can do it, and the result was wrong.
    pub(super) is_wrong: bool,
    pub(super) reason: String,
    pub(super) remedy: Option<String>,
}

/// Columns of a label.
const LABEL: usize = 9;

impl Measured {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), times: Vec::new() }
    }

    pub(super) fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

impl fmt::Display for PartResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let ways = || self.before.iter().chain([&self.after]);
        let width = ways().map(|way| way.name.chars().count()).max().unwrap_or(0);
        for way in &self.before {
            let time = format!("{:.1?}", way.median());
            writeln!(f, "  {:LABEL$}{:width$}  {time:>9}", "before", way.name)?;
        }
        let time = format!("{:.1?}", self.after.median());
        write!(f, "  {:LABEL$}{:width$}  {time:>9}", "after", self.after.name)?;
        writeln!(f, "  {}", self.factors())?;
        for line in wrap(&self.notes, COLUMNS - 2 - LABEL) {
            writeln!(f, "  {:LABEL$}{line}", "")?;
        }
        for (nth, command) in self.commands.iter().enumerate() {
            writeln!(f, "  {:LABEL$}{command}", if nth == 0 { "yours" } else { "" })?;
        }
        Ok(())
    }
}

impl PartResult {
    /// Returns how many times as fast it is as each of the ways before.
    fn factors(&self) -> String {
        let after = self.after.median().as_secs_f64().max(1e-9);
        let times = |way: &Measured| format!("{:.1}", way.median().as_secs_f64() / after);
        let times: Vec<_> = self.before.iter().map(times).collect();
        format!("{} times as fast", times.join(" and "))
    }
}

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let remedy = self.remedy.as_ref().map(|remedy| ("remedy", remedy));
        let label = if self.is_wrong { "WRONG" } else { "not here" };
        for (label, text) in [(label, &self.reason)].into_iter().chain(remedy) {
            for (nth, line) in wrap(text, COLUMNS - 2 - LABEL).iter().enumerate() {
                writeln!(f, "  {:LABEL$}{line}", if nth == 0 { label } else { "" })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(name: &str, millis: &[u64]) -> Measured {
        let times = millis.iter().map(|&millis| Duration::from_millis(millis)).collect();
        Measured { name: name.to_owned(), times }
    }

    #[test]
    fn part_has_medians_before_and_after_and_the_command() {
        let found = PartResult {
            title: "A thing with 1GiB".to_owned(),
            before: vec![way("usual", &[90, 40, 30]), way("faster", &[5])],
            after: way("hugekit", &[10, 500, 1]),
            notes: "word ".repeat(30).trim().to_owned(),
            commands: vec!["hugekit doctor".to_owned(), "hugekit lab".to_owned()],
        };
        let text = found.to_string();
        assert!(text.contains("before   usual       40.0ms\n"), "{text}");
        assert!(
            text.contains("after    hugekit     10.0ms  4.0 and 0.5 times as fast\n"),
            "{text}"
        );
        assert!(text.contains("yours    hugekit doctor\n           hugekit lab\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn part_that_cannot_be_done_has_the_reason_and_the_remedy() {
        let remedy = Some("set the setting".to_owned());
        let reason = "a setting forbids it".to_owned();
        let not = NotHere { title: "A thing", is_wrong: false, reason, remedy };
        assert_eq!(
            not.to_string(),
            "A thing\n  not here a setting forbids it\n  remedy   set the setting\n"
        );
    }
}
