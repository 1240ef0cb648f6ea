//! Wraps Markdown: each paragraph and list item that has too long a line is filled anew.

use super::wrap::{COLUMNS, is_fence, is_prose};

/// The text with its long paragraphs wrapped; the others stay as they are.
pub(super) fn filled(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let (mut out, mut is_code) = (Vec::new(), false);
    while let Some(line) = lines.next() {
        is_code ^= is_fence(line);
        if is_code || !is_prose(line) {
            out.push(line.to_owned());
            continue;
        }
        let mut block = vec![line];
        while let Some(next) = lines.next_if(|next| is_prose(next) && marker(next).is_empty()) {
            block.push(next);
        }
        out.extend(fill(&block));
    }
    out.join("\n") + "\n"
}

/// A list item's mark, with the space behind it; empty where there is none.
fn marker(line: &str) -> &str {
    let line = line.trim_start();
    let digits = line.trim_start_matches(|character: char| character.is_ascii_digit());
    let mark = match digits.as_bytes() {
        [b'.' | b')', b' ', ..] if digits.len() < line.len() => line.len() - digits.len() + 2,
        [b'-' | b'*' | b'+', b' ', ..] if digits.len() == line.len() => 2,
        _ => 0,
    };
    &line[..mark]
}

fn fill(block: &[&str]) -> Vec<String> {
    if block.iter().all(|line| line.chars().count() <= COLUMNS) {
        return block.iter().map(|line| (*line).to_owned()).collect();
    }
    let indent = " ".repeat(block[0].len() - block[0].trim_start().len());
    let mark = marker(block[0]);
    let text = block.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let mut lines = vec![format!("{indent}{mark}")];
    for (index, word) in words(&text[mark.len()..]).enumerate() {
        let line = lines.last_mut().expect("one from the start");
        let fits = line.chars().count() + 1 + word.chars().count() <= COLUMNS;
        // At the beginning of a line it would be a list's mark, a heading or a table.
        let is_mark = !marker(&format!("{word} ")).is_empty() || word.starts_with(['#', '|', '>']);
        match index {
            0 => line.push_str(word),
            _ if fits || is_mark => *line = format!("{line} {word}"),
            _ => lines.push(format!("{indent}{}{word}", " ".repeat(mark.len()))),
        }
    }
    lines
}

/// The words between spaces; code in backticks is one word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    let at_space = move |character: char| {
        is_code ^= character == '`';
        character == ' ' && !is_code
    };
    text.split(at_space).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paragraphs_are_filled_and_nothing_else_changes() {
        let (long, word) = ("word ".repeat(30), "word ".repeat(20));
        let (word, rest) = (word.trim_end(), "word ".repeat(10));
        let text = format!("# {long}\n\n{long}\nshort\n\n```sh\n{long}\n```\n| {long} |\n");
        let expected =
            format!("# {long}\n\n{word}\n{rest}short\n\n```sh\n{long}\n```\n| {long} |\n");
        assert_eq!(filled(&text), expected);
        assert_eq!(filled(&expected), expected);
    }

    #[test]
    fn items_hang_and_follow_each_other() {
        let words = "word ".repeat(21);
        let text = format!("- {words}\n- short\n  12. {words}\n");
        let first = "word ".repeat(19);
        let nested = "word ".repeat(19);
        let (first, nested) = (first.trim_end(), nested.trim_end());
        let expected =
            format!("- {first}\n  word word\n- short\n  12. {nested}\n      word word\n");
        assert_eq!(filled(&text), expected);
    }

    #[test]
    fn code_stays_whole_and_no_line_becomes_a_list() {
        let words = "word ".repeat(19);
        assert_eq!(
            filled(&format!("{words}`a b c d e`\n")),
            format!("{}\n`a b c d e`\n", words.trim_end())
        );
        assert_eq!(filled(&format!("{words}abcd - e\n")), format!("{words}abcd -\ne\n"));
    }
}
