//! Virtual environments of Python below `target/`, which stay for the next run.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::debian::{Debian, Piece};

/// Where a Python has `venv` but not the pip that belongs into an environment, as Debian packages it.
static PIP: Piece = Piece {
    name: "pip for virtual environments",
    remedy: "apt-get install python3-venv",
    packages: &["python3-venv", "python3-pip"],
    arm64_packages: &[],
};

/// The Python that environments are made with.
pub(crate) fn python() -> OsString {
    env::var_os("HUGEKIT_PYTHON").unwrap_or_else(|| "python3".into())
}

/// A virtual environment, and what is required to be in it.
pub(crate) struct Environment {
    pub(crate) folder: PathBuf,
    pub(crate) requirements: &'static [&'static str],
}

impl Environment {
    /// Makes it, unless it is there and has what is required.
    pub(crate) fn make(&self, install: bool) -> Result<()> {
        let stamp = self.folder.join("requirements");
        let wanted = self.requirements.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&self.folder);
        if said(Command::new(python()).args(["-m", "venv"]).arg(&self.folder)).is_none() {
            ensure!(install, "no {} ({})", PIP.name, PIP.remedy);
            self.make_with_foreign_pip()?;
        }
        run(self.pip().args(["install", "--quiet"]).args(self.requirements))?;
        Ok(fs::write(stamp, wanted)?)
    }

    /// Lets an unpacked pip install the one that stays.
    fn make_with_foreign_pip(&self) -> Result<()> {
        let debian = Debian::new("python", self.folder.with_file_name("debian"));
        debian.fetch(&[&PIP])?;
        run(Command::new(python())
            .args(["-m", "venv", "--clear", "--without-pip"])
            .arg(&self.folder))?;
        let modules = debian.root().join("usr/lib/python3/dist-packages");
        run(self.pip().args(["install", "--quiet", "pip"]).env("PYTHONPATH", modules))
    }

    pub(crate) fn python(&self) -> Command {
        self.command("python")
    }

    /// A program of the environment, which finds the others.
    pub(crate) fn command(&self, program: &str) -> Command {
        let bin = self.folder.join("bin");
        let mut command = Command::new(bin.join(program));
        let others = env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(bin).chain(env::split_paths(&others));
        if let Ok(path) = env::join_paths(all) {
            command.env("PATH", path);
        }
        command
    }

    pub(crate) fn pip(&self) -> Command {
        let mut pip = self.python();
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip
    }
}

/// The output of a command, if it runs and succeeds.
pub(crate) fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that says something only if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().next_back().unwrap_or_default();
    ensure!(output.status.success(), "{} failed: {last}", command.get_program().display());
    Ok(())
}
