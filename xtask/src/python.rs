//! The Python package's tests, in a virtual environment of their own below `target/python`, which stays for the next run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::environment::{self, Environment, run, said};

/// The environment's packages besides ours.
const REQUIREMENTS: [&str; 6] =
    ["maturin>=1.9,<2", "mypy>=1.15", "numpy>=1.24", "pytest>=8", "tqdm>=4", "xxhash>=3"];

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
    if let Some(missing) = unsuitable(&environment::python()) {
        return Ok(Outcome::Skipped(missing));
    }
    let place = crate::target_dir("python");
    let environment = Environment { folder: place.join("venv"), requirements: &REQUIREMENTS };
    if let Err(error) = environment.make(install) {
        return Ok(Outcome::Skipped(format!("Python: {error:#}")));
    }
    install_package(&environment, &place.join("wheels"))?;
    let mut pytest = environment.python();
    pytest.args(["-m", "pytest", "-q", "-rs", "--color=no"]).arg(package().join("tests"));
    pytest.env(crate::SLOW, "1");
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

pub(crate) fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("hugekit-py")
}

/// With the profile of the other tests, so that little is compiled twice.
fn install_package(environment: &Environment, wheels: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(wheels);
    let mut maturin = environment.python();
    maturin.args(["-m", "maturin", "build", "--quiet", "--profile", "dev", "--out"]).arg(wheels);
    run(maturin.current_dir(package()))?;
    let made = fs::read_dir(wheels)?.collect::<std::io::Result<Vec<_>>>()?;
    let wheels = made.iter().map(fs::DirEntry::path);
    run(environment
        .pip()
        .args(["install", "--quiet", "--force-reinstall", "--no-deps"])
        .args(wheels))
}
