//! The time at the start of a line, for a reader that adds none: a file, a pipe or the log of a container.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use jiff::Timestamp;
use rustix::fs::fstat;

use crate::text;

/// A line on standard error, for people.
pub(crate) fn say(line: &str) {
    text::say(&format!("{}{line}", of(&io::stderr())));
}

/// Returns the time in UTC, as RFC 3339 has it, and a space. Nothing for a terminal and for the
/// journal, which has its own.
pub(super) fn of(stream: &(impl AsFd + IsTerminal)) -> String {
    let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    if stream.is_terminal() || is_journal(stream, &journal) {
        String::new()
    } else {
        format!("{:.3} ", Timestamp::now())
    }
}

/// `JOURNAL_STREAM` is `DEVICE:INODE` of the journal's stream. A process whose output goes elsewhere inherits it, too.
fn is_journal(stream: &impl AsFd, journal: &str) -> bool {
    fstat(stream).is_ok_and(|stat| journal == format!("{}:{}", stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::linux::fs::MetadataExt;

    use super::*;

    #[test]
    fn line_of_a_file_begins_with_the_time() {
        let file = tempfile::tempfile().unwrap();
        let stamp = of(&file);
        let time: Timestamp = stamp.strip_suffix(' ').unwrap().parse().unwrap();
        assert!(time <= Timestamp::now() && stamp.ends_with("Z "), "{stamp}");
    }

    #[test]
    fn journal_is_known_by_its_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let stat = file.metadata().unwrap();
        assert!(is_journal(&file, &format!("{}:{}", stat.st_dev(), stat.st_ino())));
        assert!(!is_journal(&file, &format!("{}:{}", stat.st_dev(), stat.st_ino() + 1)));
        assert!(!is_journal(&file, ""));
    }
}
