//! Settings of the machine that an experiment needs, changed for a while and put back.
//!
//! Every change is undone in reverse order: by [`Settings::restore`], which reports what could not
//! be undone, or by the drop, on an error or a panic.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::LabError;

/// Changes made so far, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    allowed: bool,
    changed: Vec<(PathBuf, String)>,
}

impl Settings {
    /// Settings that may be changed, if `allowed`.
    pub(crate) fn new(allowed: bool) -> Self {
        Self { allowed, changed: Vec::new() }
    }

    /// Writes `value` into the file of a choice such as `always [madvise] never` unless one of
    /// `enough` is chosen already. Returns whether one of them is in force now.
    pub(crate) fn choose(
        &mut self,
        path: &Path,
        enough: &[&str],
        value: &str,
    ) -> Result<bool, LabError> {
        let before = fs::read_to_string(path).map_err(failed("read", path))?;
        let before = chosen(&before);
        if enough.contains(&before) {
            return Ok(true);
        }
        if !self.allowed {
            return Ok(false);
        }
        fs::write(path, value).map_err(failed("change", path))?;
        self.changed.push((path.to_owned(), before.to_owned()));
        Ok(true)
    }

    /// Puts everything back; the first failure is reported, and the others are still tried.
    pub(crate) fn restore(&mut self) -> Result<(), LabError> {
        let mut outcome = Ok(());
        while let Some((path, value)) = self.changed.pop() {
            outcome = outcome.and(fs::write(&path, value).map_err(failed("restore", &path)));
        }
        outcome
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// The word in brackets; the whole text where there are none.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word).trim()
}

fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> LabError {
    move |cause| LabError::Setting { verb, path: path.display().to_string(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("enabled");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn what_is_enough_stays() {
        let (_dir, path) = file("always [madvise] never\n");
        let mut settings = Settings::new(true);
        assert!(settings.choose(&path, &["always", "madvise"], "madvise").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "always [madvise] never\n");
    }

    #[test]
    fn nothing_changes_unless_allowed() {
        let (_dir, path) = file("always madvise [never]\n");
        let mut settings = Settings::new(false);
        assert!(!settings.choose(&path, &["madvise"], "madvise").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "always madvise [never]\n");
    }

    #[test]
    fn a_change_is_put_back_on_drop_and_on_panic() {
        let (_dir, path) = file("always madvise [never]\n");
        let changed = std::panic::catch_unwind(|| {
            let mut settings = Settings::new(true);
            assert!(settings.choose(&path, &["madvise"], "madvise").unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), "madvise");
            panic!("an experiment failed");
        });
        assert!(changed.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "never");
    }

    #[test]
    fn an_unreadable_setting_names_its_file() {
        let error = Settings::new(true).choose(Path::new("/no/such/file"), &[], "x").unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such/file");
    }
}
