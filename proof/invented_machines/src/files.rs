//! The directory that a machine's files lie in.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A machine's files, which go when it is dropped.
#[derive(Debug)]
pub struct Files(TempDir);

/// The files of a machine that can be mounted over the kernel's own files. Memory, nodes and CPUs cannot be replaced.
const MOUNTED: [&str; 2] = ["proc/cpuinfo", "sys/devices/system/cpu/cpu0/cache"];

impl Files {
    /// None: a machine of which only those are there that a test writes.
    ///
    /// # Errors
    /// There is no place for temporary files.
    pub fn new() -> io::Result<Self> {
        tempfile::tempdir().map(Self)
    }

    /// Below this folder are `proc` and `sys`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A command that sees this machine's processor and caches where the kernel's are, and mounts
    /// of its own otherwise. `None` where the machine that runs us has no such files, or this one
    /// describes no caches.
    #[must_use]
    pub fn over_the_kernels(&self, program: &str, arguments: &[&str]) -> Option<Command> {
        let is_there =
            |path: &str| Path::new("/").join(path).exists() && self.path().join(path).exists();
        let mount = |path: &str| format!("mount --bind '{}/{path}' /{path}", self.path().display());
        let script = format!("{} && exec \"$@\"", MOUNTED.map(mount).join(" && "));
        MOUNTED.iter().all(|path| is_there(path)).then(|| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &script, "sh", program]).args(arguments);
            command
        })
    }

    /// Writes a file; the text ends with a newline as the kernel's files do.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn file(&self, path: impl AsRef<Path>, text: impl AsRef<str>) -> &Self {
        self.write(path, text.as_ref()).expect("a temporary file can be written");
        self
    }

    /// Writes a file whose bytes need not be text.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn bytes(&self, path: impl AsRef<Path>, bytes: &[u8]) -> &Self {
        let written = self.place(path).and_then(|place| fs::write(place, bytes));
        written.expect("a temporary file can be written");
        self
    }

    /// Several of one directory.
    pub fn files(&self, directory: &str, files: &[(&str, &str)]) -> &Self {
        files.iter().for_each(|(name, text)| {
            self.file(format!("{directory}/{name}"), text);
        });
        self
    }

    /// Makes a symbolic link.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn link(&self, path: &str, target: &str) -> &Self {
        let made = self.place(path).and_then(|place| symlink(target, place));
        made.expect("a temporary link can be made");
        self
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, text: &str) -> io::Result<()> {
        fs::write(self.place(path)?, format!("{text}\n"))
    }

    /// Makes the folder of a file, and returns the file's path.
    fn place(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        let place = self.path().join(path.strip_prefix("/").unwrap_or(path));
        fs::create_dir_all(place.parent().unwrap_or(Path::new("/")))?;
        Ok(place)
    }
}
