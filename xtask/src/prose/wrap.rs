//! The width of Markdown.

/// Prose has at most so many columns.
pub(super) const COLUMNS: usize = 100;

/// Lines of prose, from 1 on, that are longer. Tables, code and headings cannot be wrapped, nor can what
/// has no space.
pub(super) fn long(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut long = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let content = line.trim_start();
        let is_fence = content.starts_with("```");
        is_code ^= is_fence;
        let is_prose = !(is_code || is_fence || content.starts_with(['|', '#']));
        let marker = content.trim_start_matches(['-', '*', ' ']);
        if is_prose && line.chars().count() > COLUMNS && marker.contains(' ') {
            long.push(number);
        }
    }
    long
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
