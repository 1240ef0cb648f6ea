//! The programs that guests run: the workspace's tests as `cargo test` builds them, and its commands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::aarch64;

/// A program of this workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Program {
    /// The library's unit tests.
    Units,
    /// An integration test of the library's, or `interrupted` of the soak's.
    Test(&'static str),
    Soak,
    Doctor,
    Lab,
}

impl Program {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Units => "units",
            Self::Test(name) => name,
            Self::Soak => "soak",
            Self::Doctor => "doctor",
            Self::Lab => "lab",
        }
    }

    /// The program's file in the guest's image.
    pub(super) fn file(self) -> String {
        match self {
            Self::Doctor | Self::Lab => "/hugekit".to_owned(),
            other => format!("/{}", other.name()),
        }
    }

    /// Arguments that come before those of the table.
    pub(super) fn leading(self) -> &'static [&'static str] {
        match self {
            Self::Doctor => &["doctor", "--json"],
            // With as few rounds as there can be: no figure is judged.
            Self::Lab => &["lab", "--quick", "--no-record", "--rounds", "2"],
            Self::Units | Self::Test(_) | Self::Soak => &[],
        }
    }

    /// Whether it is about snapshots of private memory, or takes some.
    pub(super) fn snapshots_private_memory(self) -> bool {
        matches!(self, Self::Units | Self::Test("snapshot") | Self::Soak)
    }

    /// Whether it counts tests itself.
    pub(super) fn is_tests(self) -> bool {
        matches!(self, Self::Units | Self::Test(_))
    }

    /// As cargo calls it: package, target, and whether it is built as tests.
    fn built_as(self) -> (&'static str, &'static str, bool) {
        match self {
            Self::Units => ("hugekit", "hugekit", true),
            Self::Test("interrupted") => ("hugekit-soak", "interrupted", true),
            Self::Test(name) => ("hugekit", name, true),
            Self::Soak => ("hugekit-soak", "hugekit-soak", false),
            Self::Doctor | Self::Lab => ("hugekit-cli", "hugekit", false),
        }
    }
}

/// Where each program is, after it was built.
#[derive(Debug)]
pub(super) struct Built(BTreeMap<(String, String, bool), PathBuf>);

impl Built {
    /// All of the workspace, so that these are the same files that `cargo test --workspace` has made.
    pub(super) fn for_this_machine() -> Result<Self> {
        let arguments =
            ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
        let output = crate::command(&arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        ensure!(output.status.success(), "the tests do not compile");
        Self::read(&String::from_utf8(output.stdout)?)
    }

    /// The packages that guests have tests and commands of, linked statically.
    pub(super) fn for_aarch64() -> Result<Self> {
        Self::read(&aarch64::build_tests(&["hugekit", "hugekit-cli", "hugekit-soak"], true)?)
    }

    /// Takes in what cargo says of its artifacts, one in each line.
    fn read(messages: &str) -> Result<Self> {
        let mut built = BTreeMap::new();
        for line in messages.lines() {
            let message: Value = serde_json::from_str(line)?;
            let Some(executable) = message["executable"].as_str() else { continue };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (
                package(&text(&message["package_id"])),
                text(&message["target"]["name"]),
                message["profile"]["test"].as_bool().unwrap_or_default(),
            );
            built.insert(key, PathBuf::from(executable));
        }
        Ok(Self(built))
    }

    pub(super) fn path(&self, program: Program) -> Result<&PathBuf> {
        let (package, target, test) = program.built_as();
        let key = (package.to_owned(), target.to_owned(), test);
        self.0.get(&key).with_context(|| format!("cargo has built no {target} of {package}"))
    }
}

/// The `hugekit` of `path+file:///…/crates/hugekit#0.1.0`, and of `…#hugekit@0.1.0`.
fn package(id: &str) -> String {
    let (path, version) = id.rsplit_once('#').unwrap_or((id, ""));
    let name = match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or_default(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let messages = [
            r#"{"reason":"compiler-artifact","package_id":"path+file:///r/crates/hugekit#0.1.0","target":{"name":"pool"},"profile":{"test":true},"executable":"/t/pool"}"#,
            r#"{"reason":"compiler-artifact","package_id":"path+file:///r/crates/hugekit-cli#0.1.0","target":{"name":"hugekit"},"profile":{"test":true},"executable":"/t/cli-tests"}"#,
            r#"{"reason":"compiler-artifact","package_id":"path+file:///r/x#hugekit-cli@0.1.0","target":{"name":"hugekit"},"profile":{"test":false},"executable":"/t/cli"}"#,
            r#"{"reason":"compiler-artifact","package_id":"a","executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let built = Built::read(&messages.join("\n")).unwrap();
        assert_eq!(built.path(Program::Test("pool")).unwrap(), &PathBuf::from("/t/pool"));
        assert_eq!(built.path(Program::Doctor).unwrap(), &PathBuf::from("/t/cli"));
        assert!(built.path(Program::Units).is_err());
    }
}
