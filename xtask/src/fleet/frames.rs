//! What a guest says on its second serial port, line by line.
//!
//! `@refused SETTING` for each file of the kernel that does not take what the table says; `@up RELEASE` when all is set;
//! then for each command `@begin NAME`, its output with `| ` before each line, and `@end STATUS`; `@still COUNTER` for
//! each that the kernel has not counted up; `@off` at the end. What stands in no such frame is an output's line that was
//! torn by another writer, and is kept as one.

/// One line, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Refused { setting: String },
    Up { release: String },
    Begin { name: String },
    Output(String),
    End { status: i32 },
    Still { counter: String },
    Off,
}

impl Frame {
    pub(super) fn read(line: &str) -> Self {
        let line = line.trim_end_matches(['\r', '\n']);
        let output = || Self::Output(line.strip_prefix("| ").unwrap_or(line).to_owned());
        let Some(rest) = line.strip_prefix('@') else { return output() };
        match rest.split_once(' ').unwrap_or((rest, "")) {
            ("refused", setting) => Self::Refused { setting: setting.to_owned() },
            ("still", counter) => Self::Still { counter: counter.to_owned() },
            ("up", release) => Self::Up { release: release.to_owned() },
            ("begin", name) => Self::Begin { name: name.to_owned() },
            ("end", status) => {
                status.parse().map_or_else(|_| output(), |status| Self::End { status })
            }
            ("off", "") => Self::Off,
            _ => output(),
        }
    }
}

/// A command that was begun.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) name: String,
    pub(super) output: Vec<String>,
    /// What the shell says of its end; none if the guest ended, or was ended, before.
    pub(super) status: Option<i32>,
}

/// All that a guest has said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) release: Option<String>,
    /// Settings that its kernel does not take.
    pub(super) refused: Vec<String>,
    pub(super) ran: Vec<Ran>,
    /// Counters of what its kernel was to do, and has not done once.
    pub(super) still: Vec<String>,
    /// Whether the guest has switched itself off when it had run everything.
    pub(super) is_whole: bool,
}

impl Report {
    pub(super) fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Refused { setting } => self.refused.push(setting),
            Frame::Still { counter } => self.still.push(counter),
            Frame::Up { release } => self.release = Some(release),
            Frame::Begin { name } => self.ran.push(Ran { name, ..Ran::default() }),
            Frame::Output(line) => {
                if let Some(ran) = self.ran.last_mut() {
                    ran.output.push(line);
                }
            }
            Frame::End { status } => {
                if let Some(ran) = self.ran.last_mut() {
                    ran.status = Some(status);
                }
            }
            Frame::Off => self.is_whole = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(said: &str) -> Report {
        let mut report = Report::default();
        said.lines().for_each(|line| report.take(Frame::read(line)));
        report
    }

    #[test]
    fn commands_are_told_apart_with_their_output_and_status() {
        let report = report(
            "@refused /proc/a = 1\r\n@up 6.1.0-50\r\n@begin pool --quiet\r\n| test a ... ok\r\n| \r\n@end 0\r\n\
             @begin units\r\n| @end of a line\r\n@end 101\r\n\
             @still /proc/vmstat pswpout\r\n@off\r\n",
        );
        assert_eq!(report.release.as_deref(), Some("6.1.0-50"));
        let [pool, units] = &report.ran[..] else { panic!("two commands, not {:?}", report.ran) };
        assert_eq!((pool.name.as_str(), pool.status), ("pool --quiet", Some(0)));
        assert_eq!(pool.output, ["test a ... ok", ""]);
        assert_eq!((units.status, &units.output[0][..]), (Some(101), "@end of a line"));
        assert_eq!(report.refused, ["/proc/a = 1"]);
        assert_eq!(report.still, ["/proc/vmstat pswpout"]);
        assert!(report.is_whole);
    }

    #[test]
    fn guest_that_stops_amid_a_command_leaves_it_without_a_status() {
        let report = report("@up 6.1\n@begin units\n| test a ... ok\n@end nothing\ntorn");
        assert_eq!(report.ran[0].status, None);
        assert_eq!(report.ran[0].output, ["test a ... ok", "@end nothing", "torn"]);
        assert!(!report.is_whole);
    }
}
