//! What each published crate has to bring: a README of its own, both licences, and words that it is found by. A registry
//! shows and keeps for good what was forgotten.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// In the package of every crate.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// What a registry searches and shows.
const FIELDS: [&str; 6] =
    ["description", "license", "repository", "readme", "keywords", "categories"];

/// Fails at the first crate that lacks something.
pub(crate) fn check() -> Result<()> {
    let metadata = crate::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo names no packages")?;
    for package in packages.iter().filter(|package| is_published(package)) {
        let name = package["name"].as_str().context("a package has a name")?;
        check_crate(name, package).with_context(|| format!("the crate {name}"))?;
    }
    Ok(())
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn check_crate(name: &str, package: &Value) -> Result<()> {
    if let Some(missing) = missing_field(package) {
        anyhow::bail!("has no {missing}");
    }
    if let Some(other) = cyclic(package) {
        anyhow::bail!(
            "tests with {other} by version: give its path alone, or neither can be published first"
        );
    }
    let mut list = crate::command(&["package", "--list", "--allow-dirty", "--package", name]);
    let said = list.output().context("cannot start cargo")?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr).trim());
    let listed = String::from_utf8(said.stdout)?;
    for file in FILES {
        ensure!(listed.lines().any(|line| line == file), "has no {file}");
    }
    Ok(())
}

fn missing_field(package: &Value) -> Option<&'static str> {
    FIELDS.into_iter().find(|&field| match &package[field] {
        Value::String(text) => text.is_empty(),
        Value::Array(words) => words.is_empty(),
        _ => true,
    })
}

/// A crate of ours that only tests depend on, and that has to be in the registry before.
fn cyclic(package: &Value) -> Option<&str> {
    let dependencies = package["dependencies"].as_array()?;
    let of_tests =
        dependencies.iter().filter(|one| one["kind"] == "dev" && one["path"].is_string());
    of_tests
        .filter(|one| one["req"] != "*")
        .find_map(|one| Path::new(one["path"].as_str()?).file_name()?.to_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complete() -> Value {
        json!({
            "description": "x", "license": "x", "repository": "x", "readme": "README.md",
            "keywords": ["x"], "categories": ["x"], "publish": null,
            "dependencies": [{"kind": "dev", "path": "/crates/other", "req": "*"}],
        })
    }

    #[test]
    fn package_without_a_readme_or_words_is_told_of() {
        assert_eq!(missing_field(&complete()), None);
        for (field, empty) in
            [("readme", Value::Null), ("keywords", json!([])), ("description", json!(""))]
        {
            let mut package = complete();
            package[field] = empty;
            assert_eq!(missing_field(&package), Some(field));
        }
    }

    #[test]
    fn crate_that_tests_with_another_by_version_is_told_of() {
        let mut package = complete();
        assert_eq!(cyclic(&package), None);
        package["dependencies"][0]["req"] = json!("^0.1.0");
        assert_eq!(cyclic(&package), Some("other"));
    }

    #[test]
    fn crate_of_no_registry_is_not_published() {
        let mut package = complete();
        assert!(is_published(&package));
        package["publish"] = json!([]);
        assert!(!is_published(&package));
    }
}
