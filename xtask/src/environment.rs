//! Virtual environments of Python below `target/`, which stay for the next run.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::fetch::Package;
use crate::run::{output, said};

pub(crate) fn python() -> OsString {
    env::var_os("HUGEKIT_PYTHON").unwrap_or_else(|| "python3".into())
}

/// A virtual environment, and the packages that must be in it.
pub(crate) struct Environment {
    pub(crate) folder: PathBuf,
    /// Separated by spaces.
    pub(crate) requirements: &'static str,
}

impl Environment {
    /// Makes it, unless it is there and has its packages.
    pub(crate) fn make(&self) -> Result<()> {
        let stamp = self.folder.join("requirements");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == self.requirements) {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&self.folder);
        if said(Command::new(python()).args(["-m", "venv"]).arg(&self.folder)).is_none() {
            self.make_with_unpacked_pip()?;
        }
        output(self.pip().args(["install", "--quiet"]).args(self.requirements.split(' ')))?;
        Ok(fs::write(stamp, self.requirements)?)
    }

    /// Debian's Python has `venv` but not the pip that belongs into an environment: an unpacked one installs it.
    fn make_with_unpacked_pip(&self) -> Result<()> {
        let pip = Package::named("pip")?;
        let modules = pip.path("usr/lib/python3/dist-packages");
        pip.have(|| modules.is_dir())?;
        let bare = ["-m", "venv", "--clear", "--without-pip"];
        output(Command::new(python()).args(bare).arg(&self.folder))?;
        output(self.pip().args(["install", "--quiet", "pip"]).env("PYTHONPATH", modules))?;
        Ok(())
    }

    /// A program of the environment, which finds the others.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join("bin").join(program));
        self.lend_path(&mut command);
        command
    }

    /// Has a command find the environment's programs.
    pub(crate) fn lend_path(&self, command: &mut Command) {
        let bin = self.folder.join("bin");
        let others = env::var_os("PATH").unwrap_or_default();
        if let Ok(path) = env::join_paths(std::iter::once(bin).chain(env::split_paths(&others))) {
            command.env("PATH", path);
        }
    }

    pub(crate) fn pip(&self) -> Command {
        let mut pip = self.command("python");
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip
    }
}
