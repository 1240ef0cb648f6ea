//! Writes `docs/benchmarks.md`, `docs/records/losses.md`, the pictures in `docs/pictures` and the link to the first one in
//! `README.md` from `docs/records`: records of the lab, and `benchmarks.toml`, which has the page's text and rows.
//!
//! ```sh
//! cargo run --example benchmarks                  # writes them
//! cargo run --example benchmarks -- --check       # fails if one is stale
//! cargo run --example benchmarks -- keep SET FILE…    # keeps new records
//! ```

mod figure;
mod keep;
mod page;
mod pictures;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use page::Page;

/// The link to the README's picture is between these lines.
const MARKS: [&str; 2] = ["<!-- Written by the example `benchmarks`. -->\n", "<!-- End. -->\n"];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let records = root().join("docs/records");
    let page = Page::read(&records)?;
    match words[..] {
        [] => outputs(&page)?.iter().try_for_each(|(path, text)| write(path, text)),
        ["--check"] => outputs(&page)?.iter().try_for_each(|(path, text)| check(path, text)),
        ["keep", set, ref files @ ..] if !files.is_empty() => {
            files.iter().try_for_each(|file| keep::keep(&records.join(set), file, &page))
        }
        _ => bail!("unknown arguments: no argument, `--check`, or `keep SET FILE…`"),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files that are written, with their text.
fn outputs(page: &Page) -> Result<Vec<(PathBuf, String)>> {
    let (docs, readme) = (root().join("docs"), root().join("README.md"));
    let pictures = page.pictures()?;
    let link = format!("\n{}\n", pictures[0].link("docs/"));
    let text = between_marks(&fs::read_to_string(&readme)?, &link)?;
    let files = pictures.iter().map(|picture| {
        (docs.join("pictures").join(format!("{}.svg", picture.name)), picture.svg.clone())
    });
    let pages = [
        (docs.join("benchmarks.md"), page.text(&pictures)?),
        (docs.join("records/losses.md"), page.text_of_losses()?),
        (readme, text),
    ];
    Ok(files.chain(pages).collect())
}

fn between_marks(text: &str, link: &str) -> Result<String> {
    let (before, rest) = text.split_once(MARKS[0]).context("the README has no first mark")?;
    let (_, after) = rest.split_once(MARKS[1]).context("the README has no last mark")?;
    Ok([before, MARKS[0], link, MARKS[1], after].concat())
}

fn write(path: &Path, text: &str) -> Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn check(path: &Path, text: &str) -> Result<()> {
    let found = fs::read_to_string(path).unwrap_or_default();
    let line = found.lines().zip(text.lines()).take_while(|(one, other)| one == other).count() + 1;
    ensure!(
        found == text,
        "{}, line {line}: it is not what docs/records says; remedy: `cargo run --example \
         benchmarks`",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_marks_changes() {
        let text = ["a\n", MARKS[0], "old\n", MARKS[1], "b\n"].concat();
        let expected = ["a\n", MARKS[0], "new\n", MARKS[1], "b\n"].concat();
        assert_eq!(between_marks(&text, "new\n").unwrap(), expected);
        between_marks("a\n", "new\n").unwrap_err();
    }

    #[test]
    fn a_stale_file_is_reported_with_its_first_differing_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "1\n2\n").unwrap();
        check(file.path(), "1\n2\n").unwrap();
        let error = check(file.path(), "1\n3\n").unwrap_err().to_string();
        assert!(error.contains("line 2: it is not"), "{error}");
    }
}
