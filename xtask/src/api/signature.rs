//! An item's signature, cut out of its source.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run::root;

/// The item's declaration in one line, without its body, its value and its comments.
pub(super) fn of(item: &Value) -> Result<String> {
    let span = &item["span"];
    let file = span["filename"].as_str().context("an item has a place")?;
    let text = fs::read_to_string(root().join(file)).with_context(|| format!("no {file}"))?;
    let place =
        |at: &str, part: usize| span[at][part].as_u64().and_then(|at| usize::try_from(at).ok());
    let all =
        (|| Some((place("begin", 0)?, place("begin", 1)?, place("end", 0)?, place("end", 1)?)))();
    let (first, from, last, to) = all.context("a place has lines and columns")?;
    let lines = text.lines().zip(1..).filter(|(_, line)| (first..=last).contains(line));
    let cut = lines.map(|(line, number)| {
        let until = if number == last { (to - 1).min(line.len()) } else { line.len() };
        line.get(if number == first { from - 1 } else { 0 }..until).unwrap_or(line)
    });
    let declared = declared(&cut.collect::<Vec<_>>());
    let declared = if is_macro_call(&declared) { of_macro(item)? } else { declared };
    let open = item["attrs"].to_string().contains("non_exhaustive");
    Ok(if open { format!("#[non_exhaustive] {declared}") } else { declared })
}

/// Joins the lines of a declaration, up to the body or the value.
fn declared(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| line.split(" // ").next().unwrap_or(line).trim());
    let code = lines.filter(|line| !line.starts_with("//"));
    let text = code.collect::<Vec<_>>().join(" ");
    let is_variant = !text.contains("fn ") && !text.starts_with("pub");
    let ends: &[&str] = if is_variant { &[] } else { &["{", " = ", ";"] };
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    let words = text[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace("( ", "(").replace(", )", ")")
}

/// The place of an item that a macro makes is the call of the macro.
fn is_macro_call(declared: &str) -> bool {
    let name = declared.split_once("! {").map(|(name, _)| name);
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

/// The kind and the name of an item.
fn of_macro(item: &Value) -> Result<String> {
    let name = item["name"].as_str().context("an item has a name")?;
    let kind = item["inner"].as_object().and_then(|inner| inner.keys().next());
    Ok(match kind.context("an item has a kind")?.as_str() {
        "variant" => name.to_owned(),
        "assoc_const" => format!("pub const {name}"),
        kind => format!("pub {kind} {name}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{declared, is_macro_call, of_macro};

    #[test]
    fn item_of_a_macro_has_its_kind_and_its_name() {
        assert!(is_macro_call("backings! { Base: 1; }") && !is_macro_call("pub enum Backing"));
        let of = |kind: &str| of_macro(&json!({"name": "Base", "inner": {kind: {}}})).unwrap();
        assert_eq!(
            [of("variant"), of("enum"), of("assoc_const")],
            ["Base", "pub enum Base", "pub const Base"]
        );
    }

    #[test]
    fn declarations_end_before_bodies_and_values() {
        let function = ["pub fn a(", "    b: u8, // no", "    c: u8,", ") -> u8 {", "    b", "}"];
        assert_eq!(
            declared(&["pub fn a<T>(b: T) -> u8 where T: X {", "1 }"]),
            "pub fn a<T>(b: T) -> u8 where T: X"
        );
        assert_eq!(declared(&function), "pub fn a(b: u8, c: u8) -> u8");
        assert_eq!(declared(&["pub const A: usize = 3;"]), "pub const A: usize");
        assert_eq!(declared(&["pub struct S(u8);"]), "pub struct S(u8)");
        assert_eq!(declared(&["/// Says", "Failed { why: u8 }"]), "Failed { why: u8 }");
    }
}
