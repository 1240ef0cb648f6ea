//! One event of a tender, as a terminal shows it and as a line of a log.

use hugekit_machine::plain;

use hugekit_terminal::text::{COLUMNS, wrap};

/// A name, and the value that belongs to it. Entries of the same name follow each other.
pub(super) type NewsEntry = (&'static str, String);

/// A headline, and entries below it.
#[derive(Debug, PartialEq)]
pub(super) struct News {
    headline: String,
    entries: Vec<NewsEntry>,
}

impl News {
    /// The headline may contain the name of a process, which the process chooses: no character of it acts on a terminal.
    pub(super) fn new(headline: &str, entries: Vec<NewsEntry>) -> Self {
        Self { headline: plain(headline), entries }
    }

    /// Lines that fit a terminal. The name of an entry stands only before the first value.
    pub(super) fn in_columns(&self) -> String {
        let width = self.entries.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut lines = vec![wrap(&self.headline, COLUMNS).join("\n  ")];
        let mut last = "";
        for &(name, ref value) in &self.entries {
            let mut shown = if name == last { "" } else { name };
            last = name;
            for part in wrap(value, COLUMNS - width - 4) {
                lines.push(format!("  {shown:width$}  {part}"));
                shown = "";
            }
        }
        lines.join("\n")
    }

    /// Returns one line, however long.
    pub(super) fn in_a_line(&self) -> String {
        let mut line = self.headline.clone();
        let mut last = "";
        for (name, value) in &self.entries {
            let before = if *name == last { ", ".to_owned() } else { format!(" | {name}: ") };
            line += &(before + value);
            last = name;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_each_name_once_and_no_break() {
        let long = "word ".repeat(40).trim().to_owned();
        let entries =
            vec![("cost", long.clone()), ("left out", "1".into()), ("left out", "2".into())];
        let line = News::new("a\nb (7)", entries).in_a_line();
        assert_eq!(line, format!("a\u{fffd}b (7) | cost: {long} | left out: 1, 2"));
    }
}
