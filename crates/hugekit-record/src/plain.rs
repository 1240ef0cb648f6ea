//! Text of strangers for terminals and pages.
//!
//! A record may come from a stranger. What it calls a unit, a CPU or a command is printed, and a terminal
//! obeys what it is sent: characters that a terminal or a browser acts on, instead of showing them, are
//! replaced.

use serde_json::Value;

/// Stands for a character that is not shown.
const REPLACEMENT: char = '\u{fffd}';

/// The text without characters that move the cursor, change colours, break lines or turn the direction of
/// reading.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if acts(c) { REPLACEMENT } else { c }).collect()
}

/// Control characters of both ranges, line separators, and marks of direction.
pub(crate) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same of every string in a document, names of fields included.
pub(crate) fn plain_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain(&text)),
        Value::Array(values) => Value::Array(values.into_iter().map(plain_value).collect()),
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(name, value)| (plain(&name), plain_value(value))).collect(),
        ),
        other => other,
    }
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

    #[test]
    fn every_string_of_a_document_is_cleaned() {
        let value = serde_json::json!({"a\u{1b}": ["\u{1b}", {"b": "\u{9b}"}, 1.5, null]});
        let text = serde_json::to_string(&plain_value(value)).unwrap();
        assert_eq!(text, "{\"a\u{fffd}\":[\"\u{fffd}\",{\"b\":\"\u{fffd}\"},1.5,null]}");
    }
}
