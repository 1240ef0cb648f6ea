//! The width of Markdown.

/// Prose has at most so many columns.
pub(super) const COLUMNS: usize = 100;

/// Lines of prose, from 1 on, that are longer and have a space to be broken at.
pub(super) fn long(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut long = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        is_code ^= is_fence(line);
        let words = line.trim_start().trim_start_matches(['-', '*', ' ']);
        let is_long = line.chars().count() > COLUMNS && words.contains(' ');
        if !is_code && is_prose(line) && is_long {
            long.push(number);
        }
    }
    long
}

/// Whether code begins or ends here.
pub(super) fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Whether a line outside of code can be wrapped: a table and a heading cannot.
pub(super) fn is_prose(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with(['|', '#', '<']) && !is_fence(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_held_to_its_width_and_nothing_else() {
        let words = "word ".repeat(30);
        let text = format!(
            "# {words}\n{words}\n- {words}\n| {words} |\n```sh\n{words}\n```\nhttps://{}\n{words}",
            "x".repeat(120)
        );
        assert_eq!(long(&text), [2, 3, 9]);
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(long(&format!("{} ä", "ä".repeat(98))), Vec::<usize>::new());
        assert_eq!(long(&format!("{} ä", "ä".repeat(99))), [1]);
    }
}
