//! The values of settings before tests changed them, in a file that all runs on a machine share.
//!
//! Each run holds a shared lock on the file. Before a run changes a setting, it appends the setting's value to the file,
//! unless the file has one. The last run finds no other lock and puts all values back. The kernel releases the locks of a
//! run that is killed, and the file stays: the next run keeps its values, and puts them back at its end.
//!
//! A lock on the folder, held for moments, lets one run at a time read and write the file.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const NAME: &str = "settings";

/// A run's share of the file, until [`leave`](Self::leave) or the end of the process.
#[derive(Debug)]
pub(super) struct Originals {
    folder: File,
    file: File,
}

/// The lock on the folder.
struct Turn<'a>(&'a File);

impl Originals {
    pub(super) fn join(folder: &Path) -> io::Result<Self> {
        // Only for its owner: other users could lock what they can open.
        let made = DirBuilder::new().mode(0o700).create(folder);
        made.or_else(|error| if folder.is_dir() { Ok(()) } else { Err(error) })?;
        let mut options = File::options();
        let file = options.read(true).append(true).create(true).open(folder.join(NAME))?;
        let originals = Self { folder: File::open(folder)?, file };
        let turn = Turn::take(&originals.folder)?;
        originals.file.lock_shared()?;
        drop(turn);
        Ok(originals)
    }

    /// Changes a setting. `before` is kept in the file, unless the file has an older value.
    pub(super) fn change(&self, path: &Path, before: &str, now: &str) -> io::Result<()> {
        let _turn = Turn::take(&self.folder)?;
        let len = self.file.metadata()?.len();
        if !self.read()?.contains_key(path) {
            // One write, which a kill does not divide.
            (&self.file).write_all(format!("{before} {}\n", path.display()).as_bytes())?;
        }
        fs::write(path, now).inspect_err(|_| {
            let _ = self.file.set_len(len);
        })
    }

    /// Puts all values back, if no other run is left.
    pub(super) fn leave(self) -> io::Result<()> {
        let _turn = Turn::take(&self.folder)?;
        match self.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        for (path, before) in self.read()? {
            if let Err(error) = fs::write(&path, &before) {
                eprintln!("{} is not {before} again: {error}", path.display());
            }
        }
        self.file.set_len(0)
    }

    /// The value of each setting.
    fn read(&self) -> io::Result<BTreeMap<PathBuf, String>> {
        let mut text = String::new();
        (&self.file).rewind()?;
        (&self.file).read_to_string(&mut text)?;
        let values = text.lines().filter_map(|line| line.split_once(' '));
        Ok(values.map(|(before, path)| (path.into(), before.to_owned())).collect())
    }
}

impl<'a> Turn<'a> {
    fn take(folder: &'a File) -> io::Result<Self> {
        folder.lock()?;
        Ok(Self(folder))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // It fails for no file that is open and locked.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with two settings, which are 1 and 2.
    struct Machine {
        folder: tempfile::TempDir,
        settings: [PathBuf; 2],
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let settings = ["one", "two"].map(|name| folder.path().join(name));
            fs::write(&settings[0], "1").unwrap();
            fs::write(&settings[1], "2").unwrap();
            Self { folder, settings }
        }

        fn run(&self) -> Originals {
            Originals::join(&self.folder.path().join("state")).unwrap()
        }

        /// Changes a setting to `now`, as a run does that reads the value before.
        fn change(&self, run: &Originals, index: usize, now: &str) {
            let path = &self.settings[index];
            run.change(path, &fs::read_to_string(path).unwrap(), now).unwrap();
        }

        fn values(&self) -> [String; 2] {
            self.settings.each_ref().map(|path| fs::read_to_string(path).unwrap())
        }
    }

    #[test]
    fn last_run_puts_back_the_values_before_the_first() {
        for first_leaves_first in [true, false] {
            let machine = Machine::new();
            let (first, second) = (machine.run(), machine.run());
            machine.change(&first, 0, "10");
            machine.change(&second, 0, "100");
            machine.change(&second, 1, "20");
            machine.change(&first, 1, "200");
            let (next, last) = if first_leaves_first { (first, second) } else { (second, first) };
            next.leave().unwrap();
            assert_eq!(machine.values(), ["100", "200"]);
            machine.change(&last, 0, "1000");
            last.leave().unwrap();
            assert_eq!(machine.values(), ["1", "2"]);
        }
    }

    #[test]
    fn next_run_puts_back_what_a_killed_run_changed() {
        let machine = Machine::new();
        let killed = machine.run();
        machine.change(&killed, 0, "10");
        // The kernel closes the files of a process that is killed.
        drop(killed);
        let (next, last) = (machine.run(), machine.run());
        machine.change(&next, 0, "100");
        next.leave().unwrap();
        assert_eq!(machine.values(), ["100", "2"]);
        last.leave().unwrap();
        assert_eq!(machine.values(), ["1", "2"]);
    }

    #[test]
    fn run_after_the_last_keeps_newer_values() {
        let machine = Machine::new();
        let run = machine.run();
        machine.change(&run, 0, "10");
        run.leave().unwrap();
        fs::write(&machine.settings[0], "3").unwrap();
        let run = machine.run();
        machine.change(&run, 0, "10");
        run.leave().unwrap();
        assert_eq!(machine.values(), ["3", "2"]);
    }

    #[test]
    fn setting_that_cannot_be_changed_is_not_kept() {
        let machine = Machine::new();
        let run = machine.run();
        machine.change(&run, 0, "10");
        run.change(machine.folder.path(), "5", "6").unwrap_err();
        assert_eq!(run.read().unwrap().into_keys().collect::<Vec<_>>(), machine.settings[..1]);
        run.leave().unwrap();
        assert_eq!(machine.values(), ["1", "2"]);
    }

    #[test]
    fn file_of_one_user_is_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;

        let machine = Machine::new();
        machine.run().leave().unwrap();
        let folder = machine.folder.path().join("state");
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o77, 0);
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        Originals::join(&folder).unwrap_err();
    }
}
