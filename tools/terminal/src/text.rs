//! Text for a terminal: 80 columns, and colour if the terminal wants it.

use std::io::{self, Write};

use hugekit_machine::plain;

/// Columns of a line.
pub const COLUMNS: usize = 80;

/// Writes to standard output. Colours are removed unless standard output is a terminal that wants
/// them. A reader that stops reading, such as `head`, is no error.
///
/// # Errors
/// An error if standard output cannot be written.
pub fn write_out(text: &str) -> io::Result<()> {
    write_to_reader(text).map(|_has_reader| ())
}

/// Writes like [`write_out`], and returns true if there is still a reader. Without a reader, a
/// command that prints results step by step can stop.
///
/// # Errors
/// An error if standard output cannot be written.
pub fn write_to_reader(text: &str) -> io::Result<bool> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Prints a line to standard error, for people. No character of the line acts on the terminal. If
/// there is no reader, the line is dropped.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(text));
}

/// Returns a number with its noun: `1 unit`, `2 units`.
#[must_use]
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Breaks the text at spaces. A longer word, such as a path, has a line of its own.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        match line.chars().count() {
            0 => line.push_str(word),
            used if used + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(std::mem::replace(&mut line, word.to_owned())),
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "unit")), ["0 units", "1 unit", "2 units"]);
    }

    #[test]
    fn text_breaks_at_spaces_within_the_width() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
    }

    #[test]
    fn words_longer_than_the_line_are_kept_whole() {
        assert_eq!(wrap("a /very/long/path b", 4), ["a", "/very/long/path", "b"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
