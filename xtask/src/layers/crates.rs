//! Which crate uses which, by `Cargo.toml`, against the first table of `crates/README.md`.
//!
//! Dependencies of tests alone are free, because no program links them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::table;

/// Each crate's dependencies on others of the workspace.
type Uses = BTreeMap<String, Vec<String>>;

/// Where the table and the crates differ, as sentences.
pub(super) fn violations(readme: &str) -> Result<Vec<String>> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = crate::command(&arguments).output().context("cannot start cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(differences(&table::crates(readme), &uses(&serde_json::from_slice(&output.stdout)?)))
}

fn uses(metadata: &Value) -> Uses {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let of_program = |dependency: &Value| {
        dependency["kind"] != "dev"
            && packages.iter().any(|package| package["name"] == dependency["name"])
    };
    let uses = |package: &Value| {
        list(&package["dependencies"]).iter().filter(|used| of_program(used)).map(name).collect()
    };
    packages.iter().map(|package| (name(package), uses(package))).collect()
}

fn differences(table: &[(String, Vec<String>)], uses: &Uses) -> Vec<String> {
    let permitted = |name: &str| table.iter().find(|(row, _)| row == name).map(|(_, may)| may);
    let stale = table.iter().filter(|(name, _)| !uses.contains_key(name));
    let stale = stale.map(|(name, _)| format!("the table has the crate `{name}`, there is none"));
    let missing = uses.keys().filter(|name| permitted(name).is_none());
    let missing = missing.map(|name| format!("the crate `{name}` is missing in the table"));
    let wrong = uses.iter().flat_map(|(name, used)| {
        let may = permitted(name).map_or(&[][..], Vec::as_slice);
        let wrong = used.iter().filter(|used| !may.contains(used));
        wrong.map(move |used| format!("the crate `{name}` uses `{used}`"))
    });
    stale.chain(missing).chain(wrong).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(name: &str, used: &[&str]) -> (String, Vec<String>) {
        (name.to_owned(), used.iter().map(|used| (*used).to_owned()).collect())
    }

    #[test]
    fn a_dependency_that_the_table_does_not_know_is_found() {
        let table = [of("a", &[]), of("b", &["a"]), of("gone", &[])];
        let crates = Uses::from([of("a", &["b"]), of("b", &["a"]), of("c", &[])]);
        assert_eq!(
            differences(&table, &crates),
            [
                "the table has the crate `gone`, there is none",
                "the crate `c` is missing in the table",
                "the crate `a` uses `b`"
            ]
        );
    }

    #[test]
    fn tests_and_crates_of_others_do_not_count() {
        let metadata = json!({ "packages": [
            { "name": "a", "dependencies": [
                { "name": "b", "kind": null }, { "name": "c", "kind": "dev" },
                { "name": "c", "kind": "build" }, { "name": "serde", "kind": null },
            ] },
            { "name": "b", "dependencies": [] },
            { "name": "c", "dependencies": [] },
        ] });
        let expected = Uses::from([of("a", &["b", "c"]), of("b", &[]), of("c", &[])]);
        assert_eq!(uses(&metadata), expected);
    }
}
