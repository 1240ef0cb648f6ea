//! The records of earlier runs, one file each in the user's data directory.
//!
//! A file is written beside its place, to the disk, and linked there only when it is whole and only
//! if the name is free: no reader ever sees half a record, and no record takes another's place.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tempfile::NamedTempFile;

use crate::record::Record;
use crate::record::reading::ReadError;

const EXTENSION: &str = "json";

/// Stands for the newest record; `last~1` is the one before it.
const LAST: &str = "last";

/// The number of records of one second that can have different names.
const NAMES_PER_SECOND: usize = 100;

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Archive {
    folder: PathBuf,
}

/// The reason why an operation of the archive failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// There is neither `XDG_DATA_HOME` nor a home.
    #[error("there is no place for records: no home directory; name one by XDG_DATA_HOME")]
    Nowhere,
    /// The record could not be written. Nothing of it is left.
    #[error("cannot keep the record in {folder}")]
    Keep {
        /// The folder for it.
        folder: PathBuf,
        /// The system's word.
        #[source]
        cause: io::Error,
    },
    /// The folder could not be read.
    #[error("cannot read {folder}")]
    List {
        /// The archive's folder.
        folder: PathBuf,
        /// The system's word.
        #[source]
        cause: io::Error,
    },
    /// No record was kept yet.
    #[error("no record is kept in {folder} yet: run `hugekit lab`, or name a file")]
    Empty {
        /// The archive's folder.
        folder: PathBuf,
    },
    /// No record has this ID.
    #[error("there is no record '{id}' among the {count} in {folder}: `hugekit lab --list`")]
    Unknown {
        /// The id that was asked for.
        id: String,
        /// The number of records.
        count: usize,
        /// The archive's folder.
        folder: PathBuf,
    },
    /// Several records' IDs begin like this.
    #[error("'{id}' may be any of {}", .candidates.join(", "))]
    Ambiguous {
        /// The id that was asked for.
        id: String,
        /// The IDs that begin with it.
        candidates: Vec<String>,
    },
}

/// A record that is kept.
#[derive(Debug)]
pub struct Kept {
    /// Its name: the UTC time when it was made, as `20261121-103512`.
    pub id: String,
    /// The record, or why it cannot be used.
    pub record: Result<Record, ReadError>,
}

impl Archive {
    /// The archive of this user: `hugekit/records` in the XDG data directory.
    ///
    /// # Errors
    /// [`ArchiveError::Nowhere`] if neither the variable nor a home says where that is.
    pub fn of_user() -> Result<Self, ArchiveError> {
        let folder = data_directory().ok_or(ArchiveError::Nowhere)?.join("hugekit/records");
        Ok(Self { folder })
    }

    /// The archive in this folder, which need not exist.
    #[must_use]
    pub fn within(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder of the records.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps a record and returns its ID.
    ///
    /// # Errors
    /// [`ArchiveError::Keep`] if it cannot be written.
    pub fn keep(&self, record: &Record) -> Result<String, ArchiveError> {
        let failed = |cause| ArchiveError::Keep { folder: self.folder.clone(), cause };
        let file = self.write(record).map_err(failed)?;
        self.name(file, record.made).map_err(failed)
    }

    fn write(&self, record: &Record) -> io::Result<NamedTempFile> {
        fs::create_dir_all(&self.folder)?;
        let mut file = NamedTempFile::new_in(&self.folder)?;
        file.write_all(serde_json::to_string_pretty(record)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Gives a file the first name of its second that is free.
    fn name(&self, mut file: NamedTempFile, made: Timestamp) -> io::Result<String> {
        let second = made.strftime("%Y%m%d-%H%M%S").to_string();
        let others = (2..=NAMES_PER_SECOND).map(|number| format!("{second}-{number}"));
        let mut refused = io::ErrorKind::AlreadyExists.into();
        for id in std::iter::once(second.clone()).chain(others) {
            match file.persist_noclobber(self.path(&id)) {
                Ok(_) => return Ok(id),
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                    (file, refused) = (error.file, error.error);
                }
                Err(error) => return Err(error.error),
            }
        }
        Err(refused)
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.{EXTENSION}"))
    }

    /// All records, the oldest first, the unusable ones included.
    ///
    /// # Errors
    /// [`ArchiveError::List`] if there is a folder that cannot be read; none is an empty archive.
    pub fn list(&self) -> Result<Vec<Kept>, ArchiveError> {
        let kept = |id: String| Kept { record: Record::read(&self.path(&id)), id };
        Ok(self.ids()?.into_iter().map(kept).collect())
    }

    fn ids(&self) -> Result<Vec<String>, ArchiveError> {
        let failed = |cause| ArchiveError::List { folder: self.folder.clone(), cause };
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let paths = paths.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let mut ids: Vec<String> = paths.iter().filter_map(|path| id_of(path)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The file of the record with this ID, with an ID that begins like this, or of `last`.
    ///
    /// # Errors
    /// [`ArchiveError::Empty`] if there are no records, [`ArchiveError::Unknown`] if none has this ID,
    /// and [`ArchiveError::Ambiguous`] if several begin like this.
    pub fn find(&self, id: &str) -> Result<PathBuf, ArchiveError> {
        let ids = self.ids()?;
        if ids.is_empty() {
            return Err(ArchiveError::Empty { folder: self.folder.clone() });
        }
        let unknown = |count| {
            let (id, folder) = (id.to_owned(), self.folder.clone());
            ArchiveError::Unknown { id, count, folder }
        };
        if let Some(back) = steps_back(id) {
            let found = ids.iter().nth_back(back).ok_or_else(|| unknown(ids.len()))?;
            return Ok(self.path(found));
        }
        let mut alike: Vec<String> =
            ids.iter().filter(|other| other.starts_with(id)).cloned().collect();
        match alike.iter().position(|other| other == id) {
            Some(_) => Ok(self.path(id)),
            None if alike.len() == 1 => Ok(self.path(&alike.remove(0))),
            None if alike.is_empty() => Err(unknown(ids.len())),
            None => Err(ArchiveError::Ambiguous { id: id.to_owned(), candidates: alike }),
        }
    }
}

/// The number of records after this one: `last` is 0, `last~2` is 2.
fn steps_back(id: &str) -> Option<usize> {
    match id.strip_prefix(LAST)? {
        "" => Some(0),
        rest => rest.strip_prefix('~')?.parse().ok(),
    }
}

fn id_of(path: &Path) -> Option<String> {
    let is_record = path.extension().is_some_and(|extension| extension == EXTENSION);
    let id = path.file_stem()?.to_str()?;
    (is_record && id.starts_with(|first: char| first.is_ascii_digit())).then(|| id.to_owned())
}

/// By the XDG base directory specification, which has relative paths ignored.
fn data_directory() -> Option<PathBuf> {
    let set = env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    set.or_else(|| {
        env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".local/share"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Machine;

    fn record(second: i64) -> Record {
        Record {
            schema: "hugekit-lab/1".into(),
            made: Timestamp::from_second(second).unwrap(),
            command: format!("hugekit lab --rounds {second}"),
            machine: Machine::default(),
            uncontrolled: Vec::new(),
            experiments: Vec::new(),
        }
    }

    fn archive() -> (tempfile::TempDir, Archive) {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::within(folder.path().join("a/b"));
        (folder, archive)
    }

    fn command_of(path: &Path) -> String {
        Record::read(path).unwrap().command
    }

    #[test]
    fn records_are_listed_in_the_order_they_were_made() {
        let (_folder, archive) = archive();
        assert!(archive.list().unwrap().is_empty());
        for second in [86_400, 0, 3] {
            archive.keep(&record(second)).unwrap();
        }
        let ids: Vec<String> = archive.list().unwrap().into_iter().map(|kept| kept.id).collect();
        assert_eq!(ids, ["19700101-000000", "19700101-000003", "19700102-000000"]);
    }

    #[test]
    fn records_of_one_second_do_not_replace_each_other() {
        let (_folder, archive) = archive();
        let ids = [archive.keep(&record(5)).unwrap(), archive.keep(&record(5)).unwrap()];
        assert_eq!(ids, ["19700101-000005", "19700101-000005-2"]);
        assert_eq!(archive.list().unwrap().len(), 2);
    }

    #[test]
    fn a_record_is_found_by_id_beginning_and_age() {
        let (_folder, archive) = archive();
        assert!(matches!(archive.find("last"), Err(ArchiveError::Empty { .. })));
        for second in [1, 2, 86_400] {
            archive.keep(&record(second)).unwrap();
        }
        let found = |id: &str| command_of(&archive.find(id).unwrap());
        assert_eq!(found("19700101-000001"), "hugekit lab --rounds 1");
        assert_eq!(found("19700102"), "hugekit lab --rounds 86400");
        assert_eq!(found("last"), "hugekit lab --rounds 86400");
        assert_eq!(found("last~2"), "hugekit lab --rounds 1");
        let error = archive.find("19700101").unwrap_err();
        assert!(error.to_string().contains("19700101-000001, 19700101-000002"), "{error}");
        for unknown in ["last~3", "2026", "../19700101-000001"] {
            assert!(matches!(archive.find(unknown), Err(ArchiveError::Unknown { count: 3, .. })));
        }
    }

    #[test]
    fn a_damaged_record_does_not_hide_the_others() {
        let (_folder, archive) = archive();
        archive.keep(&record(1)).unwrap();
        fs::write(archive.folder().join("19700101-000000.json"), "{").unwrap();
        fs::write(archive.folder().join(".tmpXYZ"), "{").unwrap();
        let list = archive.list().unwrap();
        assert_eq!(list.iter().map(|kept| kept.record.is_ok()).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn what_cannot_be_kept_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Archive::within(file.clone()).keep(&record(1)).unwrap_err();
        assert!(error.to_string().starts_with("cannot keep the record in"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"");
    }
}
