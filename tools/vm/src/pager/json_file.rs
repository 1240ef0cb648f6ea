//! Records as files of JSON.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

/// Writes a file whole or not at all, by one system call: a VM that has just connected waits.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(value)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(&bytes)?;
    file.persist(path)?;
    Ok(())
}
