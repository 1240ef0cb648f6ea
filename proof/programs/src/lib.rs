//! Programs of Debian's packages that tests and the lab start: installed on the machine, or unpacked below a
//! directory and not installed, as `cargo xtask test --install` and `cargo xtask fleet` do.
//!
//! An unpacked program finds neither its libraries nor its modules by itself: [`Unpacked::command`] tells it.
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod qemu;

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use qemu::{Emulator, firmware};

/// Packages unpacked below a directory, which would be `/` if they were installed. It need not exist.
#[derive(Clone, Debug)]
pub struct Unpacked {
    root: PathBuf,
}

impl Unpacked {
    /// The programs below this directory.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path that the unpacked program of that name would have.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join("usr/bin").join(name)
    }

    /// The program of that name for administrators: the machine's, else the unpacked one. Neither need be on `PATH`.
    #[must_use]
    pub fn of_administrator(&self, name: &str) -> Option<PathBuf> {
        let folders = ["usr/sbin", "sbin", "usr/bin"];
        let roots = [Path::new("/"), &self.root];
        let all = roots.iter().flat_map(|root| folders.map(|folder| root.join(folder).join(name)));
        all.into_iter().find(|path| path.exists())
    }

    /// Returns true if this is one of the unpacked programs.
    #[must_use]
    pub fn has(&self, program: &Path) -> bool {
        program.starts_with(&self.root)
    }

    /// The program of that name which answers `--version`: the machine's, else the unpacked one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Command> {
        let either = [PathBuf::from(name), self.path(name)];
        let found = either.into_iter().find(|program| self.answers(program))?;
        Some(self.command(found.as_os_str()))
    }

    /// Returns true if there is such a program, and it starts.
    #[must_use]
    pub fn answers(&self, program: &Path) -> bool {
        let mut command = self.command(program.as_os_str());
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// A command whose processes find the unpacked libraries, if the program is unpacked.
    #[must_use]
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        if self.has(Path::new(program)) {
            self.lend_libraries(&mut command);
        }
        command
    }

    /// Has a program that may be the machine's own find the unpacked libraries, too.
    pub fn lend_libraries(&self, command: &mut Command) {
        // Up to Debian 12, packages have libraries in either.
        let unpacked = ["usr/lib", "lib"]
            .map(|folder| self.root.join(format!("{folder}/{}-linux-gnu", env::consts::ARCH)));
        let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = unpacked.into_iter().chain(env::split_paths(&inherited));
        if let Ok(paths) = env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder of a test's own, below the one that cargo keeps for that.
    fn folder(name: &str) -> PathBuf {
        let folder =
            env::temp_dir().join(format!("hugekit-programs-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("usr/bin")).unwrap();
        folder
    }

    #[test]
    fn program_that_is_only_unpacked_is_found_with_its_libraries() {
        let root = folder("unpacked");
        let unpacked = Unpacked::new(&root);
        let program = unpacked.path("hugekit-test-program");
        assert!(unpacked.find("hugekit-test-program").is_none());
        fs::write(&program, "#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let output = unpacked.find("hugekit-test-program").unwrap().output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(&format!("{}/usr/lib/", root.display())), "{said}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn program_of_the_machine_is_preferred_and_gets_no_libraries() {
        let root = folder("either");
        let command = Unpacked::new(&root).find("ls").unwrap();
        assert_eq!(command.get_program(), "ls");
        assert_eq!(command.get_envs().count(), 0);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn program_for_administrators_is_found_without_a_path() {
        let root = folder("administrator");
        let unpacked = Unpacked::new(&root);
        assert_eq!(unpacked.of_administrator("hugekit-test-mkfs"), None);
        fs::create_dir_all(root.join("sbin")).unwrap();
        fs::write(root.join("sbin/hugekit-test-mkfs"), "").unwrap();
        let found = unpacked.of_administrator("hugekit-test-mkfs");
        assert_eq!(found, Some(root.join("sbin/hugekit-test-mkfs")));
        // Each machine has it, there or in `bin`.
        let own = unpacked.of_administrator("env").unwrap();
        assert!(!unpacked.has(&own), "{own:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn program_that_does_not_start_is_none() {
        let root = folder("broken");
        let unpacked = Unpacked::new(&root);
        let program = unpacked.path("hugekit-test-broken");
        fs::write(&program, "#!/bin/sh\nexit 1\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(unpacked.find("hugekit-test-broken").is_none());
        fs::remove_dir_all(root).unwrap();
    }
}
