//! The crates as their registry would get them.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Tried, VERSION};

/// Packages each crate that is published, and compiles it from what was packaged, as its users will. Nothing is uploaded.
pub(super) fn rehearse() -> Result<Tried> {
    forget_earlier_ones()?;
    crate::cargo(&["publish", "--workspace", "--dry-run", "--allow-dirty"])?;
    Ok(Tried::Works("cargo publish --dry-run would publish them".to_owned()))
}

/// cargo keeps what it has unpacked of a crate, by its version: at the next rehearsal it would compile the sources of this
/// one. The registry of a rehearsal is a folder, and named without a host.
fn forget_earlier_ones() -> Result<()> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| Some(env::home_dir()?.join(".cargo"))).context("no home of cargo's")?;
    for kind in ["src", "cache"] {
        for registry in entries(&home.join("registry").join(kind))? {
            let is_a_folder = name(&registry).starts_with('-');
            for kept in if is_a_folder { entries(&registry)? } else { Vec::new() } {
                if name(&kept).starts_with("hugekit") && name(&kept).contains(VERSION) {
                    remove(&kept).with_context(|| format!("cannot remove {}", kept.display()))?;
                }
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// None of a folder that is not there.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => Ok(listed?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?),
    }
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
