//! Settings of the kernel, changed by root for a moment and put back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whichever test changes a setting is the only one, until its last setting is put back.
static CHANGES: Mutex<()> = Mutex::new(());

/// A setting that has another value until this is dropped, by a panic too.
#[derive(Debug)]
pub(crate) struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// The right to change settings.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(path: &Path, value: &str) -> Self {
        let before = chosen(&fs::read_to_string(path).unwrap()).to_owned();
        let setting = Self { path: path.to_owned(), before };
        fs::write(path, value).unwrap();
        setting
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        fs::write(&self.path, &self.before).unwrap();
    }
}

/// The value in force: of several that the kernel lists, the one in brackets.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(chosen, _)| chosen)
}
