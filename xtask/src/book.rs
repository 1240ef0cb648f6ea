//! `cargo xtask book`: `docs/` as pages with a navigation and a search, every link checked.

use anyhow::Result;
use clap::Args;

use crate::count::skip;
use crate::environment::Environment;
use crate::run::{may_install, passes, root, target_dir};

/// mkdocs makes pages of Markdown as it stands in the repository.
const REQUIREMENTS: &str = "mkdocs>=1.6,<2 mkdocs-material>=9,<10";

/// Makes a book of docs/ in `target/book`; a link to nothing is an error
#[derive(Debug, Args)]
pub(crate) struct Book {
    /// Serve it on this machine, and make it anew when a page changes
    #[arg(long)]
    serve: bool,
    /// Without mkdocs, report a skipped test instead of an error
    #[arg(long, hide = true)]
    test: bool,
}

impl Book {
    pub(crate) fn run(&self) -> Result<bool> {
        let place = target_dir("book");
        let environment = Environment { folder: place.join("venv"), requirements: REQUIREMENTS };
        match environment.make() {
            Err(error) if self.test && !may_install() => {
                skip("the book", &format!("{error:#}"));
                return Ok(true);
            }
            made => made?,
        }
        let mut mkdocs = environment.command("mkdocs");
        if self.serve {
            mkdocs.arg("serve");
        } else {
            mkdocs.args(["build", "--strict", "--site-dir"]).arg(place.join("site"));
        }
        mkdocs.arg("--config-file").arg(root().join("xtask/book/mkdocs.yml"));
        // Its makers advertise a successor on each run.
        passes(mkdocs.env("NO_MKDOCS_2_WARNING", "1").env("DISABLE_MKDOCS_2_WARNING", "true"))
    }
}
