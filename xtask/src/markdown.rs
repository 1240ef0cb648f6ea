//! The width of Markdown's prose. Tables, headings, code and links cannot be wrapped.

use anyhow::{Result, ensure};

use crate::run::{output, root};

/// Prose has at most this many columns.
const COLUMNS: usize = 100;

/// Fails if a line of a tracked file is too long.
pub(crate) fn check() -> Result<()> {
    let listed = output(
        std::process::Command::new("git").current_dir(root()).args(["ls-files", "-z", "*.md"]),
    )?;
    let mut found = Vec::new();
    for path in listed.split_terminator('\0').filter(|path| root().join(path).exists()) {
        let text = std::fs::read_to_string(root().join(path))?;
        found.extend(
            long(&text).iter().map(|line| format!("{path}:{line}: more than {COLUMNS} columns")),
        );
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

/// Lines of prose, from 1 on, that are too long and have a space to be broken at.
fn long(text: &str) -> Vec<usize> {
    let (mut is_code, mut long) = (false, Vec::new());
    for (line, number) in text.lines().zip(1..) {
        let words = line.trim_start().trim_start_matches(['-', '*', ' ']);
        is_code ^= words.starts_with("```");
        let is_prose = !is_code && !words.starts_with(['|', '#', '<']);
        if is_prose && line.chars().count() > COLUMNS && words.contains(' ') {
            long.push(number);
        }
    }
    long
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_prose_must_be_short() {
        let words = "word ".repeat(30);
        let link = format!("https://{}", "x".repeat(120));
        let text = format!(
            "# {words}\n{words}\n- {words}\n| {words} |\n```sh\n{words}\n```\n{link}\n{words}"
        );
        assert_eq!(super::long(&text), [2, 3, 9]);
        assert!(super::long(&format!("{} ä", "ä".repeat(98))).is_empty());
    }
}
