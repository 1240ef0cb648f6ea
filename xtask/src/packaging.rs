//! Each published crate has a README of its own, both licences, and words by which it is found: a registry keeps a mistake
//! permanently. No crate uses a crate of a wing that is closed to it, except in its tests. The command, which runs as root,
//! links few crates of others.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::{cargo, metadata, output, root};

/// In the package of every crate.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// A registry searches and shows these.
const FIELDS: [&str; 6] =
    ["description", "license", "repository", "readme", "keywords", "categories"];

/// Folders of the repository, each with those whose crates its own may use.
const WINGS: [(&str, &[&str]); 3] = [
    ("engine", &["engine"]),
    ("tools", &["engine", "tools"]),
    ("bindings", &["engine", "tools", "bindings"]),
];

/// Crates of others that the command may link: each is code of strangers that runs as root.
const MOST_OF_OTHERS: usize = 80;

/// Fails at the first crate that lacks something, or uses a crate that is closed to it.
pub(crate) fn check() -> Result<()> {
    let tree = ["tree", "--package", "hugekit-cli", "--edges", "normal", "--prefix", "none"];
    let linked = of_others(&output(&mut cargo(&tree))?);
    ensure!(
        linked <= MOST_OF_OTHERS,
        "the command links {linked} crates of others: at most {MOST_OF_OTHERS} are wanted"
    );
    let metadata = metadata()?;
    for package in metadata["packages"].as_array().context("cargo names no packages")? {
        let wrong = beyond_walls(package, &root());
        ensure!(wrong.is_none(), "the crate {} {}", package["name"], wrong.unwrap_or_default());
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

/// Crates in the output of `cargo tree` that lie in no folder of this machine.
fn of_others(tree: &str) -> usize {
    let crates = tree.lines().map(|line| line.trim_end_matches(" (*)"));
    crates.filter(|line| !line.is_empty() && !line.contains(" (/")).collect::<BTreeSet<_>>().len()
}

/// The first dependency that the package's wing may not use, if there is one.
fn beyond_walls(package: &Value, root: &Path) -> Option<String> {
    let wing = |path: &Value| {
        let path = Path::new(path.as_str()?).strip_prefix(root).ok()?;
        Some(path.components().next()?.as_os_str().to_str()?.to_owned())
    };
    let own = wing(&package["manifest_path"])?;
    let (_, may_use) = WINGS.iter().find(|(name, _)| *name == own)?;
    let dependencies = package["dependencies"].as_array()?.iter();
    dependencies.filter(|one| one["kind"] != "dev").find_map(|one| {
        let other = wing(&one["path"])?;
        let is_closed = !may_use.contains(&other.as_str());
        is_closed.then(|| format!("is in {own}/ and uses {}, which is in {other}/", one["name"]))
    })
}

/// The first mistake in a package's manifest, if there is one.
fn lack(package: &Value) -> Option<String> {
    let is_missing = |field: &&&str| match &package[**field] {
        Value::String(text) => text.is_empty(),
        Value::Array(words) => words.is_empty(),
        _ => true,
    };
    if let Some(field) = FIELDS.iter().find(is_missing) {
        return Some(format!("has no {field}"));
    }
    let mut dependencies = package["dependencies"].as_array()?.iter();
    let cyclic = dependencies
        .find(|one| one["kind"] == "dev" && one["path"].is_string() && one["req"] != "*")?;
    let other = Path::new(cyclic["path"].as_str()?).file_name()?.display();
    Some(format!("tests with {other} by version: name its path, or neither can be published"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dependency_beyond_a_wall_is_found_and_one_of_tests_is_none() {
        let package = |folder: &str, kind: Value, other: &str| {
            json!({
                "manifest_path": format!("/r/{folder}/Cargo.toml"),
                "dependencies": [{"kind": kind, "name": "x", "path": format!("/r/{other}")}],
            })
        };
        for (folder, kind, other, is_found) in [
            ("engine/bulk", Value::Null, "engine/sys", false),
            ("engine/bulk", Value::Null, "tools/doctor", true),
            ("tools/cli", Value::Null, "lab", true),
            ("tools/cli", json!("build"), "proof/guests", true),
            ("tools/cli", json!("dev"), "proof/guests", false),
            ("bindings/c", Value::Null, "tools/doctor", false),
            ("lab", Value::Null, "proof/guests", false),
        ] {
            let found = beyond_walls(&package(folder, kind, other), Path::new("/r"));
            assert_eq!(found.is_some(), is_found, "{folder} {other}: {found:?}");
        }
    }

    #[test]
    fn crates_of_others_are_counted_once() {
        let tree = "hugekit-cli v0.1.0 (/r/tools/cli)\nanyhow v1.0.1\nhugekit-vm v0.1.0 (/r/tools/vm) (*)\n\
                    anyhow v1.0.1 (*)\nserde_derive v1.0.2 (proc-macro)\nbitflags v1.3.2\nbitflags v2.1.0\n";
        assert_eq!(of_others(tree), 4);
    }

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
