//! The Python package's tests, in a virtual environment of their own below `target/python`, which stays for the next run.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debian::{Debian, Piece};

/// The environment's packages besides ours.
const REQUIREMENTS: [&str; 6] =
    ["maturin>=1.9,<2", "mypy>=1.15", "numpy>=1.24", "pytest>=8", "tqdm>=4", "xxhash>=3"];

/// Where a Python has `venv` but not the pip that belongs into an environment, as Debian packages it.
static PIP: Piece = Piece {
    name: "pip for virtual environments",
    remedy: "apt-get install python3-venv",
    packages: &["python3-venv", "python3-pip"],
    arm64_packages: &[],
};

/// How the tests came to run, or why they did not.
pub(crate) enum Outcome {
    /// The output of pytest.
    Ran {
        succeeded: bool,
        said: String,
    },
    Skipped(String),
}

/// Builds the package and runs its tests.
pub(crate) fn test(install: bool) -> Result<Outcome> {
    let python = env::var_os("HUGEKIT_PYTHON").unwrap_or_else(|| "python3".into());
    if let Some(missing) = unsuitable(&python) {
        return Ok(Outcome::Skipped(missing));
    }
    let place = crate::target_dir("python");
    let environment = Environment { folder: place.join("venv") };
    if let Err(error) = environment.make(&python, install) {
        return Ok(Outcome::Skipped(format!("Python: {error:#}")));
    }
    environment.install_package(&place.join("wheels"))?;
    let mut pytest = environment.python();
    pytest.args(["-m", "pytest", "-q", "-rs", "--color=no"]).arg(package().join("tests"));
    let output = pytest.stderr(Stdio::inherit()).output().context("cannot start pytest")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    Ok(Outcome::Ran { succeeded: output.status.success(), said })
}

/// The obstacle that keeps an interpreter from loading the package.
fn unsuitable(python: &OsString) -> Option<String> {
    let ask =
        "import sys; print('.'.join(map(str, sys.version_info[:2])), sys.version_info >= (3, 11))";
    let answer = said(Command::new(python).args(["-c", ask]));
    match answer.as_deref().unwrap_or_default().trim().split_once(' ') {
        Some((_, "True")) => None,
        Some((version, _)) => Some(format!("Python: {version} is too old, the package needs 3.11")),
        None => Some("Python: no python3 (apt-get install python3 python3-venv)".to_owned()),
    }
}

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("hugekit-py")
}

/// A virtual environment.
struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Makes it, unless it is there and has what is required.
    fn make(&self, python: &OsString, install: bool) -> Result<()> {
        let stamp = self.folder.join("requirements");
        let wanted = REQUIREMENTS.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&self.folder);
        if said(Command::new(python).args(["-m", "venv"]).arg(&self.folder)).is_none() {
            ensure!(install, "no {} ({})", PIP.name, PIP.remedy);
            self.make_with_foreign_pip(python)?;
        }
        run(self.pip().args(["install", "--quiet"]).args(REQUIREMENTS))?;
        Ok(fs::write(stamp, wanted)?)
    }

    /// Lets an unpacked pip install the one that stays.
    fn make_with_foreign_pip(&self, python: &OsString) -> Result<()> {
        let debian = Debian::new("python", crate::target_dir("python").join("debian"));
        debian.fetch(&[&PIP])?;
        run(Command::new(python)
            .args(["-m", "venv", "--clear", "--without-pip"])
            .arg(&self.folder))?;
        let modules = debian.root().join("usr/lib/python3/dist-packages");
        run(self.pip().args(["install", "--quiet", "pip"]).env("PYTHONPATH", modules))
    }

    /// With the profile of the other tests, so that little is compiled twice.
    fn install_package(&self, wheels: &Path) -> Result<()> {
        let _ = fs::remove_dir_all(wheels);
        let mut maturin = self.python();
        maturin
            .args(["-m", "maturin", "build", "--quiet", "--profile", "dev", "--out"])
            .arg(wheels);
        run(maturin.current_dir(package()))?;
        let made = fs::read_dir(wheels)?.collect::<std::io::Result<Vec<_>>>()?;
        let wheels = made.iter().map(fs::DirEntry::path);
        run(self.pip().args(["install", "--quiet", "--force-reinstall", "--no-deps"]).args(wheels))
    }

    fn python(&self) -> Command {
        Command::new(self.folder.join("bin/python"))
    }

    fn pip(&self) -> Command {
        let mut pip = self.python();
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip
    }
}

/// The output of a command, if it runs and succeeds.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that says something only if it fails.
fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().next_back().unwrap_or_default();
    ensure!(output.status.success(), "{} failed: {last}", command.get_program().display());
    Ok(())
}
