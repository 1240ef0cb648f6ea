//! The values of settings before tests changed them, in a file that all runs on a machine share.
//!
//! Each run holds a shared lock on the file. Before a run changes a setting, it appends the setting's value to the file,
//! unless the file has one. The last run finds no other lock, puts all values back and empties the file; a run that begins
//! meanwhile waits. The kernel releases the lock of a run that is killed, and the file stays: the next run keeps its values,
//! and puts them back at its end.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file with a run's lock, until [`leave`](Self::leave) or the end of the process.
#[derive(Debug)]
pub(super) struct Originals(File);

impl Originals {
    pub(super) fn join(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        // Only for its owner: other users could lock what they can open.
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        file.lock_shared()?;
        Ok(Self(file))
    }

    /// Changes a setting. `before` is kept in the file, unless the file has an older value.
    ///
    /// Two runs at once may both find no value and append the same one: a run that reads `before` after the change of
    /// the other run finds the other's line.
    pub(super) fn change(&self, path: &Path, before: &str, now: &str) -> io::Result<()> {
        if !self.read()?.contains_key(path) {
            // One write, which neither a kill nor another run divides.
            (&self.0).write_all(format!("{before} {}\n", path.display()).as_bytes())?;
        }
        fs::write(path, now)
    }

    /// Puts all values back, if no other run is left.
    pub(super) fn leave(self) -> io::Result<()> {
        match self.0.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        for (path, before) in self.read()? {
            if let Err(error) = put_back(&path, &before) {
                eprintln!("{} is not {before} again: {error}", path.display());
            }
        }
        self.0.set_len(0)
    }

    /// The value of each setting.
    fn read(&self) -> io::Result<BTreeMap<PathBuf, String>> {
        let mut text = String::new();
        (&self.0).rewind()?;
        (&self.0).read_to_string(&mut text)?;
        let values = text.lines().filter_map(|line| line.split_once(' '));
        Ok(values.map(|(before, path)| (path.into(), before.to_owned())).collect())
    }
}

/// A setting that the kernel refused to change has its value still.
fn put_back(path: &Path, before: &str) -> io::Result<()> {
    if fs::read_to_string(path)?.trim() == before { Ok(()) } else { fs::write(path, before) }
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
    fn setting_that_has_its_value_is_not_written() {
        let machine = Machine::new();
        let run = machine.run();
        machine.change(&run, 0, "10");
        fs::write(&machine.settings[0], "1\n").unwrap();
        run.leave().unwrap();
        assert_eq!(machine.values(), ["1\n", "2"]);
    }

    #[test]
    fn runs_that_come_and_go_find_their_changes_and_leave_none() {
        let machine = Machine::new();
        let originals = machine.values();
        std::thread::scope(|scope| {
            for index in [0, 0, 1, 1] {
                let (machine, originals) = (&machine, &originals);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let run = machine.run();
                        machine.change(&run, index, "changed");
                        // Another run writes the same: a plain file, unlike a setting, is empty for a moment.
                        assert_ne!(machine.values()[index], originals[index]);
                        run.leave().unwrap();
                    }
                });
            }
        });
        assert_eq!(machine.values(), originals);
    }

    #[test]
    fn file_is_closed_to_other_users() {
        use std::os::unix::fs::PermissionsExt;

        let machine = Machine::new();
        machine.run().leave().unwrap();
        let file = machine.folder.path().join("state").metadata().unwrap();
        assert_eq!(file.permissions().mode() & 0o77, 0);
    }
}
