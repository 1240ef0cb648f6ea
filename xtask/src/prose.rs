//! Checks the repository's sentences: words that hide the actor, and lines of Markdown that are too long.

mod fill;
mod words;
mod wrap;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Not held to these rules, and why.
const EXEMPT: &[&str] = &[
    // Names the words that it looks for.
    "xtask/src/prose/words.rs",
];

/// Endings of the files that have sentences.
const PROSE: &[&str] = &["c", "cpp", "go", "h", "md", "py", "pyi", "rs", "run", "toml", "txt"];

/// Fails if a file of the repository has a word or a line that these rules do not permit.
pub(crate) fn check() -> Result<()> {
    let folder = folder();
    let mut found = Vec::new();
    for path in files(&folder)? {
        let text = fs::read_to_string(folder.join(&path))?;
        let lines =
            words::hiding(&text).map(|(line, word)| (line, format!("\"{word}\" hides the actor")));
        let long = is_markdown(&path).then(|| wrap::long(&text)).into_iter().flatten();
        let long = long
            .map(|line| (line, format!("more than {} columns: cargo xtask wrap", wrap::COLUMNS)));
        let says = |(line, reason)| format!("{}:{line}: {reason}", path.display());
        found.extend(lines.chain(long).map(says));
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

/// Wraps the repository's Markdown where it is too long.
pub(crate) fn wrap() -> Result<()> {
    let folder = folder();
    for path in files(&folder)?.iter().filter(|path| is_markdown(path)) {
        let path = folder.join(path);
        let text = fs::read_to_string(&path)?;
        let filled = fill::filled(&text);
        if filled != text {
            fs::write(&path, filled).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("")
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// The files of the repository that are held to the rules, from its folder on.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    let output = git.arg("-C").arg(folder).args(["ls-files", "-z"]).output();
    let output = output.context("cannot start git, which knows the repository's files")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout)?;
    let kept = listed.split_terminator('\0').filter(|path| is_prose(path)).map(PathBuf::from);
    // A file that is deleted and not committed yet is still listed.
    Ok(kept.filter(|path| folder.join(path).exists()).collect())
}

fn is_prose(path: &str) -> bool {
    let ending = path.rsplit(['.', '/']).next().unwrap_or(path);
    PROSE.contains(&ending) && !EXEMPT.iter().any(|exempt| path.starts_with(exempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_where_they_are_looked_for() {
        for path in ["README.md", ".ci/run", "xtask/src/main.rs", "crates/hugekit-c/opening.txt"] {
            assert!(is_prose(path), "{path}");
        }
        for path in ["Cargo.lock", "docs/report.png", "xtask/src/prose/words.rs"] {
            assert!(!is_prose(path), "{path}");
        }
    }

    #[test]
    fn every_sentence_of_the_repository_names_its_actor() {
        check().unwrap();
    }
}
