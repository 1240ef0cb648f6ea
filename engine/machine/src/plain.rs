//! Text from other people for terminals and web pages.
//!
//! A record may come from another person. The program prints the names in it, for example of units,
//! CPUs and commands. A terminal or a browser acts on some characters instead of showing them, so
//! these characters are replaced.

/// The replacement for a character that is not shown.
const REPLACEMENT: char = '\u{fffd}';

/// Returns the text without characters that move the cursor, change colours, break lines or change
/// the direction of reading.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { REPLACEMENT } else { c }).collect()
}

/// Returns true for control characters of both ranges, line separators, and marks of direction.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_replaced_and_what_is_shown_stays() {
        assert_eq!(plain("2 µs → 3"), "2 µs → 3");
        for (acting, shown) in [
            ("\u{1b}[31m", "\u{fffd}[31m"),
            ("\u{9b}31m", "\u{fffd}31m"),
            ("\u{7f}", "\u{fffd}"),
            ("\r\n", "\u{fffd}\u{fffd}"),
            ("\t", "\u{fffd}"),
            ("\u{2028}", "\u{fffd}"),
            ("\u{202e}", "\u{fffd}"),
            ("\u{2066}", "\u{fffd}"),
        ] {
            assert_eq!(plain(&format!("a{acting}b")), format!("a{shown}b"));
        }
    }
}
