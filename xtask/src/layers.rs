//! Holds the tables of `crates/README.md` against the code: which crate may use which, and which layer of a
//! crate which other one. The tables are the only place where either is written down.
//!
//! Test code may use any layer, and so may links in comments: neither is in the program.

mod crates;
mod source;
mod table;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use source::Source;
use table::Layers;

/// A place where the code does what the table does not permit.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: PathBuf,
    line: usize,
    reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.reason)
    }
}

/// Fails if a layer or a crate uses one that the tables do not let it use.
pub(crate) fn check() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates");
    let readme = folder.join("README.md");
    let text = fs::read_to_string(&readme).with_context(|| format!("no {}", readme.display()))?;
    let mut found = crates::violations(&text)?;
    for layers in table::layers(&text)? {
        let source = Source::read(&root_of(&folder.join(&layers.name).join("src")))?;
        found.extend(violations(&layers, &source).iter().map(Violation::to_string));
    }
    ensure!(
        found.is_empty(),
        "the tables of {} say otherwise:\n{}",
        readme.display(),
        found.join("\n")
    );
    Ok(())
}

/// The file that a crate begins in: a library's, or a program's.
fn root_of(folder: &Path) -> PathBuf {
    let library = folder.join("lib.rs");
    if library.exists() { library } else { folder.join("main.rs") }
}

/// Uses that a crate's table of layers does not permit, and places where the table is not true.
fn violations(layers: &Layers, source: &Source) -> Vec<Violation> {
    let at_root = |reason| Violation { file: source.root.clone(), line: 1, reason };
    let stale = layers.names().filter(|layer| !source.modules.contains(*layer));
    let stale = stale.map(|layer| at_root(format!("the table has `{layer}`, the crate has not")));
    let missing = source.modules.iter().filter(|module| layers.row(module).is_none());
    let missing = missing.map(|module| at_root(format!("`{module}` is missing in the table")));
    let wrong = source.uses.iter().filter_map(|used| {
        let reason = forbidden(layers, source, &used.layer, &used.name)?;
        Some(Violation { file: used.file.clone(), line: used.line, reason })
    });
    stale.chain(missing).chain(wrong).collect()
}

/// Why this layer may not use what this name at the crate's root stands for, if it may not.
fn forbidden(layers: &Layers, source: &Source, layer: &str, name: &str) -> Option<String> {
    let Some(used) = source.layer_of(name) else {
        let defined = source.defined.contains(name);
        return defined.then(|| format!("`{layer}` uses `{name}`, which the root itself defines"));
    };
    let (user, used_row) = (layers.row(layer)?, layers.row(used)?);
    (layer != used && used_row >= user)
        .then(|| format!("`{layer}` uses `{used}`, which is not above it in the table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "\
# Crates

Inside `toy`, folders and files are layers.

| layer | holds |
| --- | --- |
| `low.rs` | |
| `left.rs`, `right.rs` | |
| `high/` | |
";

    /// The violations of a crate made up of these files, as `file:line`.
    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let layers = table::layers(README).unwrap();
        let source = Source::read(&folder.path().join("lib.rs")).unwrap();
        let place = |violation: &Violation| {
            let file = violation.file.strip_prefix(folder.path()).unwrap();
            format!("{}:{}: {}", file.display(), violation.line, violation.reason)
        };
        violations(&layers[0], &source).iter().map(place).collect()
    }

    const ROOT: (&str, &str) = (
        "lib.rs",
        "mod high;\nmod left;\nmod low;\nmod right;\npub use high::{High, own as owned};",
    );

    fn check_low(low: &str) -> Vec<String> {
        let high = "mod inner;\nuse crate::low::Low;";
        let inner = "use super::super::left;\nuse super::mine;\nuse crate::{low, right::Right};";
        let files = [ROOT, ("low.rs", low), ("left.rs", ""), ("right.rs", "")];
        check(&[&files[..], &[("high/mod.rs", high), ("high/inner.rs", inner)]].concat())
    }

    #[test]
    fn a_layer_uses_those_above_it() {
        assert_eq!(check_low(""), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_use_is_found_however_it_is_written() {
        let wrong = "low.rs:2: `low` uses `high`, which is not above it in the table";
        for text in [
            "use crate::high::High;",
            "use crate::{left as _,\n high};",
            "use crate::owned;",
            "use super::High;",
            "fn f() { let x = crate::high::x(); }",
            "fn f() { panic!(\"{}\", crate::High) }",
            "mod inner { use super::super::high; }",
            "macro_rules! m { () => { $crate::high::x() } }",
        ] {
            let found = check_low(&format!("\n{text}"));
            assert!(found.iter().any(|found| found.ends_with(&wrong[8..])), "{text}: {found:?}");
        }
        assert_eq!(check_low("\nuse crate::high::High;"), [wrong]);
    }

    #[test]
    fn layers_of_one_row_do_not_use_each_other() {
        let files = [ROOT, ("low.rs", ""), ("left.rs", "use crate::right;"), ("right.rs", "")];
        let found = check(&[&files[..], &[("high.rs", "")]].concat());
        assert_eq!(found, ["left.rs:1: `left` uses `right`, which is not above it in the table"]);
    }

    #[test]
    fn tests_and_comments_may_use_everything() {
        for text in [
            "#[cfg(test)] use crate::high::High;",
            "#[cfg(all(test, not(loom)))] mod tests { use crate::high::High; }",
            "impl X { #[cfg(test)] fn f() { crate::high::f() } }",
            "/// As [`High`](crate::high::High).\nstruct Low;",
            "pub(in crate::low) struct Low;",
        ] {
            assert_eq!(check_low(text), Vec::<String>::new(), "{text}");
        }
        assert_ne!(check_low("#[cfg(not(test))] use crate::high::High;"), Vec::<String>::new());
    }

    #[test]
    fn the_table_names_the_crate_s_layers_and_no_others() {
        let found = check(&[
            ("lib.rs", "mod low; mod more; fn f() {}"),
            ("low.rs", "use crate::f;"),
            ("more.rs", ""),
        ]);
        let [left, right, high] = ["left", "right", "high"]
            .map(|layer| format!("lib.rs:1: the table has `{layer}`, the crate has not"));
        let more = "lib.rs:1: `more` is missing in the table".to_owned();
        let f = "low.rs:1: `low` uses `f`, which the root itself defines".to_owned();
        assert_eq!(found, [left, right, high, more, f]);
    }

    #[test]
    fn the_tables_are_true() {
        super::check().unwrap();
    }
}
