//! Settings of the kernel, changed by root for a moment and put back.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A setting that has another value until this is dropped, by a panic too.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// The right to change settings, of one test on the whole machine: another run of the tests, of another
    /// checkout, would take what this one sets for what stood there before. It ends when the file is closed.
    pub fn alone() -> File {
        let turn = File::open("/sys/kernel/mm").unwrap();
        turn.lock().unwrap();
        turn
    }

    pub fn change(path: &Path, value: &str) -> Self {
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

/// The active value: of several that the kernel lists, the one in brackets.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(chosen, _)| chosen)
}
