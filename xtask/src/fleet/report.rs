//! What a guest reports on its second serial port, line by line, and what comes of it.
//!
//! `@refused SETTING` for each file of the kernel that refuses the table's value; `@up RELEASE` when all is set; then for
//! each command `@begin NAME`, its output with `| ` before each line, and `@end STATUS`; `@still COUNTER` for each that
//! the kernel has not moved; `@off` at the end. A line in no such frame is output that another writer has torn.

use super::doctor;
use super::guest::{Guest, Run};
use crate::count::Count;

/// A command that was begun.
#[derive(Debug, Default)]
pub(super) struct CommandRun {
    pub(super) name: String,
    pub(super) output: Vec<String>,
    /// The exit status; none if the guest ended, or was ended, before.
    pub(super) status: Option<i32>,
}

/// All that a guest has reported.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) release: Option<String>,
    /// The differences of the kernel from the table.
    differences: Vec<String>,
    pub(super) ran: Vec<CommandRun>,
    /// True if the guest has switched itself off after it had run everything.
    pub(super) is_whole: bool,
}

/// The consequence of a line for the time that the next one may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// No more than this line was awaited.
    Output,
    /// A command begins, which may take its time.
    Begins,
    /// The next frame comes soon.
    Soon,
}

impl Report {
    pub(super) fn read(&mut self, line: &str) -> Pace {
        let line = line.trim_end_matches(['\r', '\n']);
        let frame = line.strip_prefix('@').map(|rest| rest.split_once(' ').unwrap_or((rest, "")));
        let status = |text: &str| text.parse().ok();
        match frame {
            Some(("refused", setting)) => self.differ(format!("its kernel refuses {setting}")),
            Some(("still", counter)) => self.differ(format!("its kernel has not moved {counter}")),
            Some(("up", release)) => self.release = Some(release.to_owned()),
            Some(("begin", name)) => {
                self.ran.push(CommandRun { name: name.to_owned(), ..CommandRun::default() });
                return Pace::Begins;
            }
            Some(("end", text)) if status(text).is_some() => {
                self.last(|ran| ran.status = status(text));
            }
            Some(("off", "")) => self.is_whole = true,
            _ => {
                let output = line.strip_prefix("| ").unwrap_or(line);
                self.last(|ran| ran.output.push(output.to_owned()));
                return Pace::Output;
            }
        }
        Pace::Soon
    }

    /// Changes the command that was begun last, if one was.
    fn last(&mut self, change: impl FnMut(&mut CommandRun)) {
        self.ran.last_mut().into_iter().for_each(change);
    }

    fn differ(&mut self, difference: String) {
        self.differences.push(difference);
    }

    /// The counts of a guest, and one line for each command.
    pub(super) fn outcome(&self, guest: &Guest) -> (Count, Vec<String>) {
        let (mut count, mut commands) = (Count::default(), Vec::new());
        let mut fail = |what: &str| count.fail(format!("guest {}: {what}", guest.name));
        match &self.release {
            None => fail("its kernel has not come up"),
            Some(release) if !release.starts_with(&guest.kernel.release) => {
                fail(&format!("it runs Linux {release}, not {}", guest.kernel.release));
            }
            Some(_) if !self.is_whole => fail("it has not switched itself off"),
            Some(_) => {}
        }
        self.differences.iter().for_each(|difference| fail(difference));
        for run in &guest.runs {
            let Some(ran) = self.ran.iter().find(|ran| ran.name == run.name()) else {
                count.fail(format!("guest {}: {} was not run", guest.name, run.name()));
                continue;
            };
            let counted = self.counted(guest, run, ran);
            commands.push(format!("{}: {counted}", run.name()));
            count.add(&counted);
        }
        guest.left_out.iter().for_each(|what| count.skip(what.clone()));
        (count, commands)
    }

    fn counted(&self, guest: &Guest, run: &Run, ran: &CommandRun) -> Count {
        let mut count = Count::default();
        if run.is_tests() {
            ran.output.iter().for_each(|line| count.read(line));
        }
        let release = self.release.as_deref().unwrap_or_default();
        let found = match (run.program.as_str(), ran.status) {
            ("doctor", Some(0)) => doctor::differences(guest, release, &ran.output.join("\n")),
            (_, Some(0)) => Vec::new(),
            (_, Some(_)) if count.failed > 0 => Vec::new(),
            (_, Some(137)) => vec![format!("ended by a signal, or after {} s", super::SECONDS)],
            (_, Some(status)) => vec![format!("status {status}")],
            (_, None) => vec!["the guest ended before".to_owned()],
        };
        if !found.is_empty() {
            count.failed += 1;
        } else if !run.is_tests() {
            count.passed += 1;
        }
        count.failures.extend(found);
        let place = format!("guest {}: {}", guest.name, run.name());
        count.failures.iter_mut().for_each(|what| *what = format!("{place}: {what}"));
        count
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest::FleetTable;
    use super::*;

    fn report(said: &str) -> Report {
        let mut report = Report::default();
        said.lines().for_each(|line| _ = report.read(line));
        report
    }

    #[test]
    fn commands_are_told_apart_with_their_output_and_status() {
        let report = report(
            "@refused /proc/a = 1\r\n@up 6.1.0-50\r\n@begin pool --quiet\r\n| test a ... ok\r\n| \r\n@end 0\r\n\
             @begin units\r\n| @end of a line\r\n@end nothing\r\ntorn\r\n@end 101\r\n\
             @still /proc/vmstat pswpout\r\n@off\r\n",
        );
        assert_eq!(report.release.as_deref(), Some("6.1.0-50"));
        let [pool, units] = &report.ran[..] else { panic!("two commands, not {:?}", report.ran) };
        assert_eq!((pool.name.as_str(), pool.status), ("pool --quiet", Some(0)));
        assert_eq!(pool.output, ["test a ... ok", ""]);
        assert_eq!((units.status, units.output.len()), (Some(101), 3));
        assert_eq!(units.output[0], "@end of a line");
        assert_eq!(report.differences.len(), 2);
        assert!(report.is_whole);
    }

    #[test]
    fn guest_that_is_not_as_the_table_says_has_failed() {
        let table = FleetTable::read().unwrap();
        let guest = &table.guest[0];
        let failed = |said: &str| report(said).outcome(guest).0.failed;
        let all = guest.runs.len();
        assert_eq!(failed(""), 1 + all);
        // The second command was begun and has not ended; the guest is not off.
        assert_eq!(failed(&format!("@up 6.1\n@begin {}\n", guest.runs[1].name())), 1 + all);
        let empty = Guest { runs: Vec::new(), ..guest.clone() };
        let failed = |said: &str| report(said).outcome(&empty).0.failed;
        assert_eq!(failed("@up 7\n@off"), 0);
        assert_eq!((failed("@up 7\n@refused a\n@off"), failed("@up 7\n@still a\n@off")), (1, 1));
    }
}
