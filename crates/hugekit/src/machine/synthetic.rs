//! Machines that tests make up: a directory of the text files that a kernel would show.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::Root;

pub(crate) struct Synthetic {
    directory: tempfile::TempDir,
}

impl Synthetic {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.directory.path())
    }

    /// Writes a file; the text ends with a newline as the kernel's files do.
    pub(crate) fn file(&self, path: impl AsRef<Path>, text: impl AsRef<str>) -> &Self {
        let path = self.prepare(path.as_ref());
        fs::write(path, format!("{}\n", text.as_ref())).unwrap();
        self
    }

    pub(crate) fn files(&self, directory: &str, files: &[(&str, &str)]) -> &Self {
        files.iter().for_each(|(name, text)| {
            self.file(format!("{directory}/{name}"), text);
        });
        self
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        symlink(target, self.prepare(Path::new(path))).unwrap();
        self
    }

    fn prepare(&self, path: &Path) -> std::path::PathBuf {
        let path = self.root().path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}
