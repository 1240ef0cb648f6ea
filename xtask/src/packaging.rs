//! Each published crate has a README of its own, both licences, and words by which it is found: a registry keeps a mistake
//! permanently.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::{cargo, metadata, output};

/// In the package of every crate.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// A registry searches and shows these.
const FIELDS: [&str; 6] =
    ["description", "license", "repository", "readme", "keywords", "categories"];

/// Fails at the first crate that lacks something.
pub(crate) fn check() -> Result<()> {
    let metadata = metadata()?;
    for package in metadata["packages"].as_array().context("cargo names no packages")? {
        // `publish = false` is an empty list of registries.
        if package["publish"].as_array().is_none_or(|registries| !registries.is_empty()) {
            let name = package["name"].as_str().context("a package has a name")?;
            let lack = lack(package);
            ensure!(lack.is_none(), "the crate {name} {}", lack.unwrap_or_default());
            let listed =
                output(&mut cargo(&["package", "--list", "--allow-dirty", "--package", name]))?;
            for file in FILES {
                ensure!(listed.lines().any(|line| line == file), "the crate {name} has no {file}");
            }
        }
    }
    Ok(())
}

/// What is wrong with a package's manifest.
fn lack(package: &Value) -> Option<String> {
    let is_missing = |field: &&&str| match &package[**field] {
        Value::String(text) => text.is_empty(),
        Value::Array(words) => words.is_empty(),
        _ => true,
    };
    if let Some(field) = FIELDS.iter().find(is_missing) {
        return Some(format!("has no {field}"));
    }
    let dependencies = package["dependencies"].as_array()?.iter();
    let cyclic = dependencies
        // The one crate that needs no other of ours is published first.
        .filter(|one| one["name"] != "hugekit-programs")
        .find(|one| one["kind"] == "dev" && one["path"].is_string() && one["req"] != "*")?;
    let other = Path::new(cyclic["path"].as_str()?).file_name()?.display();
    Some(format!("tests with {other} by version: name its path, or neither can be published"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_lack_of_a_manifest_is_found() {
        let complete = json!({
            "description": "x", "license": "x", "repository": "x", "readme": "README.md",
            "keywords": ["x"], "categories": ["x"],
            "dependencies": [{"kind": "dev", "path": "/crates/other", "req": "*"}],
        });
        assert_eq!(lack(&complete), None);
        for (path, wrong, says) in [
            ("/readme", Value::Null, "no readme"),
            ("/keywords", json!([]), "no keywords"),
            ("/description", json!(""), "no description"),
            ("/dependencies/0/req", json!("^0.1.0"), "tests with other"),
        ] {
            let mut package = complete.clone();
            *package.pointer_mut(path).unwrap() = wrong;
            assert!(lack(&package).unwrap().contains(says), "{path}");
        }
    }
}
