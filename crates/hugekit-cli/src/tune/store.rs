//! Storing a profile: the file is the new one or the old one, never half of either.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use hugekit::profile::StoredProfile;
use tempfile::NamedTempFile;

/// Makes sure, before a minute of measuring, that the profile can be stored there.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        bail!("cannot store a profile in {}: it is no regular file", path.display());
    }
    beside(path).map(drop).with_context(|| format!("cannot store a profile in {}", path.display()))
}

/// Writes it beside its place, to the disk, and moves it there.
pub(super) fn save(path: &Path, profile: &StoredProfile) -> anyhow::Result<()> {
    write(path, &profile.to_toml())
        .with_context(|| format!("cannot store the profile in {}", path.display()))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = beside(path)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// An empty file in the same folder, which is made if need be; gone if it is dropped.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    NamedTempFile::new_in(folder)
}
