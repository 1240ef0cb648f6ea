//! `cargo xtask api`: the library's public items, compared with a list that is checked in, so that review sees each change.
//!
//! rustdoc's JSON lists the items of each crate. A stable compiler writes JSON when `RUSTC_BOOTSTRAP` is set. Only names,
//! paths and places are read, which hardly change between versions of the format; signatures come from the sources.

mod krate;
mod signature;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::run::{self, root};
use krate::Crates;

/// The crate that users depend on. It may re-export items of other crates of the workspace.
const PACKAGE: &str = "hugekit";

/// The library may have this many public items: functions, methods, types, traits, constants and macros.
const MOST_ITEMS: usize = 264;

/// The library's public items: compare them with `engine/hugekit/public-api.txt`
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Api {
    /// Write the list instead
    #[arg(long)]
    pub(crate) bless: bool,
}

/// The public interface: one line for each item, field, variant and list of implemented traits.
#[derive(Debug, Default)]
struct Listing {
    lines: BTreeSet<String>,
    items: usize,
    /// Crate and number of each item that is counted: an item may have several paths.
    counted: BTreeSet<String>,
}

impl Api {
    pub(crate) fn run(&self) -> Result<bool> {
        let mut listing = Listing::default();
        Crates::document(PACKAGE)?.walk(PACKAGE, &mut listing)?;
        let path = root().join("engine").join(PACKAGE).join("public-api.txt");
        let text: String = listing.lines.iter().map(|line| format!("{line}\n")).collect();
        if self.bless {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        } else {
            let kept = fs::read_to_string(&path).unwrap_or_default();
            let changes = changes(&kept, &text);
            ensure!(
                changes.is_empty(),
                "the public items differ from {} (- listed, + in the code):\n{}\n\
                 If that is meant: cargo xtask check --bless-api",
                path.display(),
                changes.join("\n")
            );
        }
        println!("{} public items of at most {MOST_ITEMS}", listing.items);
        ensure!(
            listing.items <= MOST_ITEMS,
            "make some private, or raise MOST_ITEMS in {}",
            file!()
        );
        Ok(true)
    }
}

/// Lines of one text that the other lacks.
fn changes(kept: &str, now: &str) -> Vec<String> {
    let [kept, now] = [kept, now].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone = kept.difference(&now).map(|line| format!("- {line}"));
    gone.chain(now.difference(&kept).map(|line| format!("+ {line}"))).collect()
}

/// Has rustdoc describe a package's library, and returns the description.
fn describe(package: &str) -> Result<serde_json::Value> {
    let target = run::target_dir("api");
    let mut cargo = run::cargo(&["rustdoc", "--quiet", "--lib", "--package", package, "--"]);
    cargo.args(["-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"]);
    cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &target).env_remove("RUSTDOCFLAGS");
    run::succeed(&mut cargo)?;
    let file = target.join("doc").join(package.replace('-', "_")).with_extension("json");
    let text = fs::read(&file).with_context(|| format!("no {}", file.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_name_what_is_gone_and_what_is_new() {
        assert_eq!(changes("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(changes("a\n", "a\n").is_empty());
    }
}
