//! `cargo xtask book`: `docs/` as pages with a navigation and a search, every link checked.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::environment::Environment;
use crate::testing::Count;

/// mkdocs makes pages of Markdown as it stands in the repository.
const REQUIREMENTS: [&str; 2] = ["mkdocs>=1.6,<2", "mkdocs-material>=9,<10"];

/// Makes a book of docs/ in `target/book`; a link to nothing is an error
#[derive(Debug, Args)]
pub(crate) struct Book {
    /// Serve it on this machine, and make it anew when a page changes
    #[arg(long)]
    serve: bool,
}

impl Book {
    pub(crate) fn run(&self) -> Result<()> {
        let environment = environment();
        environment.make(true).context("cannot have mkdocs")?;
        if self.serve {
            return mkdocs(&environment, &["serve"]);
        }
        build(&environment)?;
        println!("{}", site().join("index.html").display());
        Ok(())
    }
}

/// Makes the book, counted as one test.
pub(crate) fn test(install: bool, count: &mut Count) -> Result<bool> {
    let environment = environment();
    if let Err(error) = environment.make(install) {
        count.skip(format!("the book: {error:#}"));
        return Ok(true);
    }
    let made = build(&environment);
    match &made {
        Ok(()) => count.passed += 1,
        Err(error) => {
            println!("the book: {error:#}");
            count.failed += 1;
        }
    }
    Ok(made.is_ok())
}

fn environment() -> Environment {
    let folder = crate::target_dir("book").join("venv");
    Environment { folder, requirements: &REQUIREMENTS }
}

fn site() -> PathBuf {
    crate::target_dir("book").join("site")
}

fn build(environment: &Environment) -> Result<()> {
    let site = site().display().to_string();
    mkdocs(environment, &["build", "--strict", "--site-dir", &site])
}

fn mkdocs(environment: &Environment, arguments: &[&str]) -> Result<()> {
    let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("book/mkdocs.yml");
    let mut mkdocs = environment.command("mkdocs");
    mkdocs.args(arguments).arg("--config-file").arg(config);
    // Its makers advertise a successor on each run.
    crate::succeed(mkdocs.env("NO_MKDOCS_2_WARNING", "1").env("DISABLE_MKDOCS_2_WARNING", "true"))
}
