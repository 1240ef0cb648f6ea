//! The tables of `crates/README.md`.

use anyhow::{Result, ensure};

/// A crate's layers, in rows of which each may use those above it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layers {
    /// The crate's name, and its folder's.
    pub(super) name: String,
    rows: Vec<Vec<String>>,
}

impl Layers {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().flatten().map(String::as_str)
    }

    /// The row in which a layer stands.
    pub(super) fn row(&self, layer: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.iter().any(|name| name == layer))
    }
}

/// The table of each crate whose layers are told: the one below a line that begins with ``Inside `crate`, ``.
pub(super) fn layers(readme: &str) -> Result<Vec<Layers>> {
    let inside = |line: &str| Some(line.strip_prefix("Inside `")?.split_once("`,")?.0.to_owned());
    let lines: Vec<&str> = readme.lines().collect();
    let named = lines.iter().enumerate().filter_map(|(at, line)| Some((at, inside(line)?)));
    let layers = named.map(|(at, name)| {
        let rows: Vec<_> = rows(&lines[at..]).map(|row| names(row[0], "/")).collect();
        ensure!(!rows.is_empty(), "no table of the layers of {name}");
        Ok(Layers { name, rows })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    ensure!(!layers.is_empty(), "no crate's layers are told");
    Ok(layers)
}

/// Each crate, and the crates of ours that it may use: the first table, its first and last column.
pub(super) fn crates(readme: &str) -> Vec<(String, Vec<String>)> {
    let lines: Vec<&str> = readme.lines().collect();
    let row = |row: Vec<&str>| {
        let name = names(row[0], "../").pop()?;
        Some((name, names(row.last()?, "../")))
    };
    rows(&lines).filter_map(row).collect()
}

/// The cells of the rows of the first table in these lines, without its head.
fn rows<'a>(lines: &[&'a str]) -> impl Iterator<Item = Vec<&'a str>> {
    let table = lines.iter().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// The words in backticks, as names: without these characters at either end and without `.rs`.
fn names(cell: &str, around: &str) -> Vec<String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    let bare = |name: &str| {
        name.trim_matches(|character| around.contains(character)).trim_end_matches(".rs").to_owned()
    };
    quoted.map(bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_kinds_of_tables() {
        let readme = "\
| crate | what | may use |
| --- | --- | --- |
| `a` | all | nothing |
| `../b` | `x` | `a`, `c` of tests |

Inside `a`, files are layers.
A layer may use those above it.

| layer | |
| --- | --- |
| `arch/` | `not.rs` |
| `clear.rs`, `copy.rs` | |
";
        let none = Vec::new();
        let expected = [("a".to_owned(), none), ("b".to_owned(), vec!["a".into(), "c".into()])];
        assert_eq!(crates(readme), expected);
        let layers = layers(readme).unwrap();
        assert_eq!(layers.len(), 1);
        assert_eq!(layers[0].name, "a");
        assert_eq!(layers[0].rows, [vec!["arch"], vec!["clear", "copy"]]);
        assert_eq!((layers[0].row("copy"), layers[0].row("not")), (Some(1), None));
    }
}
