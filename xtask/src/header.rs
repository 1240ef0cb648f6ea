//! `hugekit.h`, generated from the sources of the C interface and checked in, so that no reader needs Rust to
//! read it, and every change of it is seen.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// In the order in which a reader needs them.
const SOURCES: [&str; 9] = [
    "status.rs",
    "work.rs",
    "machine.rs",
    "pool.rs",
    "region.rs",
    "snapshot.rs",
    "epoch.rs",
    "delta.rs",
    "tend.rs",
];

/// Writes the header.
pub(crate) fn generate() -> Result<()> {
    let path = path();
    fs::write(&path, text()?).with_context(|| format!("cannot write {}", path.display()))
}

/// Fails if the header is not what the sources say.
pub(crate) fn check() -> Result<()> {
    let path = path();
    let found = fs::read_to_string(&path).unwrap_or_default();
    ensure!(found == text()?, "{} is stale: cargo xtask header", path.display());
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("hugekit-c")
}

pub(crate) fn path() -> PathBuf {
    folder().join("include/hugekit.h")
}

fn text() -> Result<String> {
    let folder = folder();
    let mut config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    config.header = Some(fs::read_to_string(folder.join("opening.txt"))?);
    let version = env!("CARGO_PKG_VERSION");
    config.after_includes =
        Some(format!("\n// The version of this header.\n#define HUGEKIT_VERSION \"{version}\""));
    let builder = cbindgen::Builder::new().with_config(config);
    let sources = SOURCES.iter().map(|name| folder.join("src").join(name));
    let bindings = sources.fold(builder, cbindgen::Builder::with_src).generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(in_c_words(&String::from_utf8(text)?))
}

/// Rust's heading for what a caller has to see to, which its compiler insists on, says nothing to readers of C.
fn in_c_words(header: &str) -> String {
    header.replace("// # Safety\n", "// Requires:\n")
}
