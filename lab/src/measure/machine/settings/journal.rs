//! The changes that are to be put back, in a file that outlives the lab that made them.
//!
//! The file is written anew beside its place, to the disk, for every change and before it is made; it is gone
//! when nothing is changed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hugekit_machine::Root;
use tempfile::NamedTempFile;

use super::change::SettingChange;
use super::failed;
use crate::measure::LabError;

const NAME: &str = "settings.journal";

/// Changes made so far, the oldest first.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    changes: Vec<SettingChange>,
}

pub(super) fn is_in(folder: &Path) -> bool {
    folder.join(NAME).exists()
}

impl Journal {
    /// The journal in a folder, with what a run before has left, and what is to be said of that. Changes of
    /// other machines' files are not ours to undo.
    pub(super) fn left_behind(folder: &Path, root: &Root) -> Result<(Self, Vec<String>), LabError> {
        let mut journal = Self { folder: folder.to_owned(), changes: Vec::new() };
        let path = journal.path();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((journal, Vec::new()));
            }
            text => text.map_err(failed("read", &path))?,
        };
        let Ok(changes) = serde_json::from_str::<Vec<SettingChange>>(&text) else {
            let aside = path.with_extension("damaged");
            fs::rename(&path, &aside).map_err(failed("change", &path))?;
            let said = format!(
                "{} is damaged: what a `--setup` that was killed had changed was not put back",
                aside.display()
            );
            return Ok((journal, vec![said]));
        };
        journal.changes = changes.into_iter().filter(|change| change.is_of(root)).collect();
        Ok((journal, Vec::new()))
    }

    pub(super) fn changes(&self) -> &[SettingChange] {
        &self.changes
    }

    /// Notes a change that is made next.
    pub(super) fn about_to(&mut self, change: SettingChange) -> Result<(), LabError> {
        self.changes.push(change);
        self.write()
    }

    /// Notes what the last change came to.
    pub(super) fn did_reach(&mut self, pages: u64) -> Result<(), LabError> {
        if let Some(SettingChange::Pages { got, .. }) = self.changes.last_mut() {
            *got = Some(pages);
        }
        self.write()
    }

    /// Leaves a change out that was undone.
    pub(super) fn forget(&mut self, index: usize) -> Result<(), LabError> {
        self.changes.remove(index);
        self.write()
    }

    fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    fn write(&self) -> Result<(), LabError> {
        let path = self.path();
        let written = if self.changes.is_empty() { remove(&path) } else { self.replace(&path) };
        written.map_err(failed("write", &path))
    }

    fn replace(&self, path: &Path) -> io::Result<()> {
        let mut file = NamedTempFile::new_in(&self.folder)?;
        file.write_all(serde_json::to_string(&self.changes)?.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(&self.folder)?.sync_all()
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
