//! Lines on standard output, none of which ends the tending: a full disk of the log must not leave a server untended.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use super::stamp;

static OUTPUT: Mutex<UnwrittenLines> =
    Mutex::new(UnwrittenLines { lost: 0, is_within_a_line: false });

/// The lines that could not be written.
#[derive(Debug, Default)]
struct UnwrittenLines {
    /// Since the last line that was written.
    lost: u64,
    /// The disk was full after a part of the last line.
    is_within_a_line: bool,
}

/// The form of a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Text,
    Json,
}

/// Writes a line. A line that cannot be written is lost, and counted in the next line. If no reader is left, no line is
/// written, and none is counted.
pub(super) fn line(line: &str, form: Form) {
    let mut output = OUTPUT.lock().unwrap_or_else(PoisonError::into_inner);
    let lost = output.lost;
    if let Err(error) = output.line(line, form, &mut Unbuffered)
        && lost == 0
    {
        stamp::say(&format!(
            "note: a line of the log is lost: cannot write to standard output: {error}"
        ));
    }
}

impl UnwrittenLines {
    fn line(&mut self, line: &str, form: Form, to: &mut dyn Write) -> io::Result<()> {
        let before = match (self.lost, form) {
            (0, _) => String::new(),
            (lost, Form::Text) => {
                format!("{}lines of the log were lost: {lost}\n", stamp::of(&io::stdout()))
            }
            (lost, Form::Json) => format!("{{\"lost\":{lost}}}\n"),
        };
        let start = if self.is_within_a_line { "\n" } else { "" };
        let written = self.write(format!("{start}{before}").as_bytes(), to);
        if written.is_ok() {
            self.lost = 0;
        }
        let written = written.and_then(|()| self.write(format!("{line}\n").as_bytes(), to));
        self.lost += u64::from(written.is_err());
        written
    }

    fn write(&mut self, mut bytes: &[u8], to: &mut dyn Write) -> io::Result<()> {
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_within_a_line = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Standard output, without the buffer that keeps lines that could not be written.
struct Unbuffered;

impl Write for Unbuffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with this much room.
    #[derive(Default)]
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.text.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(form: Form) -> String {
        let (mut output, mut disk) =
            (UnwrittenLines::default(), Disk { room: 7, ..Disk::default() });
        output.line("one", form, &mut disk).unwrap();
        assert!(output.line("second", form, &mut disk).is_err());
        assert!(output.line("third", form, &mut disk).is_err());
        disk.room = 1000;
        output.line("four", form, &mut disk).unwrap();
        output.line("five", form, &mut disk).unwrap();
        String::from_utf8(disk.text).unwrap()
    }

    #[test]
    fn next_line_after_a_full_disk_says_how_many_were_lost_and_begins_a_line() {
        assert_eq!(written(Form::Json), "one\nsec\n{\"lost\":2}\nfour\nfive\n");
        let text = written(Form::Text);
        assert!(text.starts_with("one\nsec\n"), "{text}");
        assert!(text.ends_with("lines of the log were lost: 2\nfour\nfive\n"), "{text}");
    }

    #[test]
    fn count_that_is_not_written_is_not_forgotten() {
        let (mut output, mut disk) = (UnwrittenLines::default(), Disk::default());
        assert!(output.line("one", Form::Json, &mut disk).is_err());
        disk.room = "{\"lost\":1}\n".len();
        assert!(output.line("two", Form::Json, &mut disk).is_err(), "only the count has room");
        disk.room = 1000;
        output.line("three", Form::Json, &mut disk).unwrap();
        assert_eq!(disk.text, b"{\"lost\":1}\n{\"lost\":1}\nthree\n");
    }

    #[test]
    fn line_that_no_reader_is_left_for_is_no_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut output = UnwrittenLines::default();
        output.line("one", Form::Text, &mut Closed).unwrap();
        assert_eq!(output.lost, 0);
    }
}
