//! `hugekit.h`, generated from the sources of the C interface and checked in, so that no reader needs Rust to
//! read it, and every change of it is seen.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::run::root;

const SOURCES: [&str; 10] =
    ["status", "work", "machine", "pool", "region", "snapshot", "epoch", "delta", "image", "warm"];
const HEADER: &str = "include/hugekit.h";

/// Writes the header.
pub(crate) fn generate() -> Result<()> {
    fs::write(root().join("bindings/c").join(HEADER), text()?).context("cannot write the header")
}

/// Fails if the header is not what the sources say.
pub(crate) fn check() -> Result<()> {
    let found = fs::read_to_string(root().join("bindings/c").join(HEADER)).unwrap_or_default();
    ensure!(found == text()?, "{HEADER} is stale: cargo xtask header");
    Ok(())
}

fn text() -> Result<String> {
    let folder = root().join("bindings/c");
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"));
    let mut config = config.map_err(anyhow::Error::msg)?;
    config.header = Some(fs::read_to_string(folder.join("opening.txt"))?);
    let version = env!("CARGO_PKG_VERSION");
    config.after_includes =
        Some(format!("\n// The version of this header.\n#define HUGEKIT_VERSION \"{version}\""));
    let builder = cbindgen::Builder::new().with_config(config);
    let sources = SOURCES.iter().map(|name| folder.join("src").join(name).with_extension("rs"));
    let bindings = sources.fold(builder, cbindgen::Builder::with_src).generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    // Rust's heading, which its compiler requires, means nothing to readers of C.
    Ok(String::from_utf8(text)?.replace("// # Safety\n", "// Requires:\n"))
}
